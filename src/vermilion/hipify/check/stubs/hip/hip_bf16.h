// Stub for the compile check: bfloat16 of HIP.
#pragma once
#include <hip/hip_runtime.h>
struct __hip_bfloat16_raw { unsigned short x; };
struct __hip_bfloat162_raw { unsigned short x, y; };
struct __hip_bfloat16 {
  unsigned short data;
  __hip_bfloat16() = default;
  __host__ __device__ __hip_bfloat16(float f) : data((unsigned short)(__builtin_bit_cast(unsigned, f) >> 16)) {}
  __host__ __device__ __hip_bfloat16(const __hip_bfloat16_raw& r) : data(r.x) {}
  __host__ __device__ operator __hip_bfloat16_raw() const { return __hip_bfloat16_raw{data}; }
  __host__ __device__ operator float() const { return __builtin_bit_cast(float, (unsigned)data << 16); }
};
struct __hip_bfloat162 { __hip_bfloat16 x, y; };
typedef __hip_bfloat16 hip_bfloat16;
__host__ __device__ inline float __bfloat162float(__hip_bfloat16 a) { return (float)a; }
__host__ __device__ inline __hip_bfloat16 __float2bfloat16(float f) { return __hip_bfloat16(f); }
__host__ __device__ inline __hip_bfloat16 __float2bfloat16_rn(float f) { return __hip_bfloat16(f); }
__host__ __device__ inline __hip_bfloat162 __floats2bfloat162_rn(float a, float b) { return __hip_bfloat162{a, b}; }
__host__ __device__ inline __hip_bfloat16 __hadd(__hip_bfloat16 a, __hip_bfloat16 b) { return (float)a + (float)b; }
__host__ __device__ inline __hip_bfloat16 __hmul(__hip_bfloat16 a, __hip_bfloat16 b) { return (float)a * (float)b; }
__host__ __device__ inline unsigned short __bfloat16_as_ushort(__hip_bfloat16 a) { return a.data; }
__host__ __device__ inline __hip_bfloat16 __ushort_as_bfloat16(unsigned short u) { return __hip_bfloat16_raw{u}; }
__host__ __device__ inline float __low2float(__hip_bfloat162 a) { return (float)a.x; }
__host__ __device__ inline float __high2float(__hip_bfloat162 a) { return (float)a.y; }
__host__ __device__ inline float2 __bfloat1622float2(__hip_bfloat162 a) { return float2((float)a.x, (float)a.y); }
__host__ __device__ inline __hip_bfloat162 __float22bfloat162_rn(float2 v) { return __hip_bfloat162{v.x, v.y}; }
__host__ __device__ inline __hip_bfloat162 __bfloat162bfloat162(__hip_bfloat16 a) { return __hip_bfloat162{a, a}; }
__device__ inline __hip_bfloat162 unsafeAtomicAdd(__hip_bfloat162* p, __hip_bfloat162 v) { __hip_bfloat162 old = *p; *p = __hip_bfloat162{(float)old.x + (float)v.x, (float)old.y + (float)v.y}; return old; }
