// Stub for the compile check: complex numbers of HIP.
#pragma once
#include <hip/hip_runtime.h>
typedef float2 hipFloatComplex;
typedef double2 hipDoubleComplex;
typedef hipFloatComplex hipComplex;
#define VERMILION_COMPLEX(T, R, S)                                                             \
  __host__ __device__ static inline R hipCreal##S(T z) { return z.x; }                         \
  __host__ __device__ static inline R hipCimag##S(T z) { return z.y; }                         \
  __host__ __device__ static inline T hipConj##S(T z) { return T(z.x, -z.y); }                 \
  __host__ __device__ static inline R hipCabs##S(T z) { return sqrt(z.x * z.x + z.y * z.y); }  \
  __host__ __device__ static inline T hipCadd##S(T p, T q) { return T(p.x + q.x, p.y + q.y); } \
  __host__ __device__ static inline T hipCsub##S(T p, T q) { return T(p.x - q.x, p.y - q.y); } \
  __host__ __device__ static inline T hipCmul##S(T p, T q) {                                   \
    return T(p.x * q.x - p.y * q.y, p.x * q.y + p.y * q.x);                                    \
  }                                                                                            \
  __host__ __device__ static inline T hipCdiv##S(T p, T q) { return hipCmul##S(p, q); }        \
  __host__ __device__ static inline T hipCfma##S(T p, T q, T r) { return hipCadd##S(hipCmul##S(p, q), r); }
VERMILION_COMPLEX(hipFloatComplex, float, f)
VERMILION_COMPLEX(hipDoubleComplex, double, )
#undef VERMILION_COMPLEX
__host__ __device__ static inline hipFloatComplex make_hipFloatComplex(float a, float b) { return hipFloatComplex(a, b); }
__host__ __device__ static inline hipDoubleComplex make_hipDoubleComplex(double a, double b) { return hipDoubleComplex(a, b); }
__host__ __device__ static inline hipComplex make_hipComplex(float a, float b) { return hipComplex(a, b); }
__host__ __device__ static inline hipDoubleComplex hipComplexFloatToDouble(hipFloatComplex z) { return hipDoubleComplex(z.x, z.y); }
__host__ __device__ static inline hipFloatComplex hipComplexDoubleToFloat(hipDoubleComplex z) { return hipFloatComplex(z.x, z.y); }
