// Stub for the compile check: half precision of HIP.
#pragma once
#include <hip/hip_runtime.h>
#define VH __host__ __device__ inline
struct __half_raw { unsigned short x; };
struct __half2_raw { unsigned short x, y; };
struct __half {
  _Float16 data;
  __half() = default;
  VH __half(float f) : data((_Float16)f) {}
  VH __half(double f) : data((_Float16)f) {}
  VH __half(int i) : data((_Float16)i) {}
  VH __half(unsigned i) : data((_Float16)i) {}
  VH __half(_Float16 h) : data(h) {}
  VH __half(const __half_raw& r) : data(__builtin_bit_cast(_Float16, r.x)) {}
  VH operator __half_raw() const { return __half_raw{__builtin_bit_cast(unsigned short, data)}; }
  VH operator float() const { return (float)data; }
  VH __half& operator+=(const __half& o) { data += o.data; return *this; }
  VH __half& operator-=(const __half& o) { data -= o.data; return *this; }
  VH __half& operator*=(const __half& o) { data *= o.data; return *this; }
  VH __half& operator/=(const __half& o) { data /= o.data; return *this; }
};
struct __half2 {
  __half x, y;
  __half2() = default;
  VH __half2(__half a, __half b) : x(a), y(b) {}
};
typedef __half half;
typedef __half2 half2;
#define VERMILION_OPERATOR(o, name)                                                     \
  VH __half operator o(const __half& a, const __half& b) { return __half(a.data o b.data); } \
  VH __half2 operator o(const __half2& a, const __half2& b) { return __half2(a.x o b.x, a.y o b.y); } \
  VH __half __h##name(__half a, __half b) { return a o b; }                             \
  VH __half2 __h##name##2(__half2 a, __half2 b) { return a o b; }
VERMILION_OPERATOR(+, add)
VERMILION_OPERATOR(-, sub)
VERMILION_OPERATOR(*, mul)
#undef VERMILION_OPERATOR
VH __half operator/(const __half& a, const __half& b) { return __half(a.data / b.data); }
VH __half operator-(const __half& a) { return __half(-a.data); }
VH __half __hdiv(__half a, __half b) { return a / b; }
VH __half2 __h2div(__half2 a, __half2 b) { return __half2(a.x / b.x, a.y / b.y); }
VH __half __hneg(__half a) { return -a; }
VH __half __habs(__half a) { return a.data < 0 ? -a : a; }
VH __half __hfma(__half a, __half b, __half c) { return a * b + c; }
VH __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return a * b + c; }
VH __half __hmax(__half a, __half b) { return a.data > b.data ? a : b; }
VH __half __hmin(__half a, __half b) { return a.data < b.data ? a : b; }
VH __half2 __hmax2(__half2 a, __half2 b) { return __half2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }
VH __half2 __hmin2(__half2 a, __half2 b) { return __half2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }
VH bool __heq(__half a, __half b) { return a.data == b.data; }
VH bool __hne(__half a, __half b) { return a.data != b.data; }
VH bool __hgt(__half a, __half b) { return a.data > b.data; }
VH bool __hge(__half a, __half b) { return a.data >= b.data; }
VH bool __hlt(__half a, __half b) { return a.data < b.data; }
VH bool __hle(__half a, __half b) { return a.data <= b.data; }
VH bool __hisnan(__half a) { return a.data != a.data; }
VH float __half2float(__half a) { return (float)a; }
VH __half __float2half(float f) { return __half(f); }
VH __half __float2half_rn(float f) { return __half(f); }
VH __half2 __float2half2_rn(float f) { return __half2(__half(f), __half(f)); }
VH __half2 __floats2half2_rn(float a, float b) { return __half2(__half(a), __half(b)); }
VH __half2 __float22half2_rn(float2 v) { return __half2(__half(v.x), __half(v.y)); }
VH float2 __half22float2(__half2 v) { return float2((float)v.x, (float)v.y); }
VH __half2 __half2half2(__half a) { return __half2(a, a); }
VH __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
VH __half2 make_half2(__half a, __half b) { return __half2(a, b); }
VH __half __low2half(__half2 v) { return v.x; }
VH __half __high2half(__half2 v) { return v.y; }
VH float __low2float(__half2 v) { return (float)v.x; }
VH float __high2float(__half2 v) { return (float)v.y; }
VH int __half2int_rn(__half a) { return (int)(float)a; }
VH __half __int2half_rn(int i) { return __half(i); }
VH unsigned short __half_as_ushort(__half a) { return __builtin_bit_cast(unsigned short, a.data); }
VH __half __ushort_as_half(unsigned short u) { return __half(__builtin_bit_cast(_Float16, u)); }
VH short __half_as_short(__half a) { return __builtin_bit_cast(short, a.data); }
VH __half __short_as_half(short u) { return __half(__builtin_bit_cast(_Float16, u)); }
#define VERMILION_FUNCTION(name, call)                                   \
  __device__ inline __half h##name(__half a) { return __half(call((float)a)); } \
  __device__ inline __half2 h2##name(__half2 a) { return __half2(h##name(a.x), h##name(a.y)); }
VERMILION_FUNCTION(exp, expf)
VERMILION_FUNCTION(log, logf)
VERMILION_FUNCTION(sqrt, sqrtf)
VERMILION_FUNCTION(rsqrt, rsqrtf)
VERMILION_FUNCTION(sin, sinf)
VERMILION_FUNCTION(cos, cosf)
#undef VERMILION_FUNCTION
__device__ inline __half hrcp(__half a) { return __half(1.0f) / a; }
__device__ inline __half __ldg(const __half* p) { return *p; }
__device__ inline __half2 __ldg(const __half2* p) { return *p; }
template <class M> __device__ inline __half __shfl_down_sync(M mask, __half v, unsigned d, int w = warpSize) { return __half(__shfl_down_sync(mask, (float)v, d, w)); }
template <class M> __device__ inline __half __shfl_xor_sync(M mask, __half v, int d, int w = warpSize) { return __half(__shfl_xor_sync(mask, (float)v, d, w)); }
__device__ inline __half2 unsafeAtomicAdd(__half2* p, __half2 v) { __half2 old = *p; *p = old + v; return old; }
#undef VH
