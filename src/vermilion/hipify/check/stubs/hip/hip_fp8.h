// Stub for the compile check: 8-bit floats of HIP.
#pragma once
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
typedef unsigned char __hip_fp8_storage_t;
typedef unsigned short __hip_fp8x2_storage_t;
typedef unsigned int __hip_fp8x4_storage_t;
enum __hip_saturation_t { __HIP_NOSAT, __HIP_SATFINITE };
enum __hip_fp8_interpretation_t { __HIP_E4M3, __HIP_E5M2, __HIP_E4M3_FNUZ, __HIP_E5M2_FNUZ };
template <int Kind> struct vermilion_fp8 {
  __hip_fp8_storage_t __x;
  vermilion_fp8() = default;
  __host__ __device__ explicit vermilion_fp8(float f) : __x((unsigned char)f) {}
  __host__ __device__ explicit operator float() const { return (float)__x; }
};
typedef vermilion_fp8<0> __hip_fp8_e4m3;
typedef vermilion_fp8<1> __hip_fp8_e5m2;
template <int Kind, class Storage, class Floats> struct vermilion_fp8s {
  Storage __x;
  vermilion_fp8s() = default;
  __host__ __device__ explicit vermilion_fp8s(Floats f) : __x((Storage)f.x) {}
  __host__ __device__ explicit operator Floats() const { return Floats{}; }
};
typedef vermilion_fp8s<0, __hip_fp8x2_storage_t, float2> __hip_fp8x2_e4m3;
typedef vermilion_fp8s<1, __hip_fp8x2_storage_t, float2> __hip_fp8x2_e5m2;
typedef vermilion_fp8s<0, __hip_fp8x4_storage_t, float4> __hip_fp8x4_e4m3;
typedef vermilion_fp8s<1, __hip_fp8x4_storage_t, float4> __hip_fp8x4_e5m2;
#define VERMILION_TO_FP8(NAME, FROM, TO)                                                            \
  __host__ __device__ static inline TO NAME(FROM, __hip_saturation_t,                   \
                                                        __hip_fp8_interpretation_t) {               \
    return 0;                                                                                       \
  }
VERMILION_TO_FP8(__hip_cvt_float_to_fp8, float, __hip_fp8_storage_t)
VERMILION_TO_FP8(__hip_cvt_float2_to_fp8x2, float2, __hip_fp8x2_storage_t)
VERMILION_TO_FP8(__hip_cvt_double_to_fp8, double, __hip_fp8_storage_t)
VERMILION_TO_FP8(__hip_cvt_double2_to_fp8x2, double2, __hip_fp8x2_storage_t)
VERMILION_TO_FP8(__hip_cvt_halfraw_to_fp8, __half_raw, __hip_fp8_storage_t)
VERMILION_TO_FP8(__hip_cvt_halfraw2_to_fp8x2, __half2_raw, __hip_fp8x2_storage_t)
VERMILION_TO_FP8(__hip_cvt_bfloat16raw_to_fp8, __hip_bfloat16_raw, __hip_fp8_storage_t)
VERMILION_TO_FP8(__hip_cvt_bfloat16raw2_to_fp8x2, __hip_bfloat162_raw, __hip_fp8x2_storage_t)
#undef VERMILION_TO_FP8
__host__ __device__ static inline __half_raw __hip_cvt_fp8_to_halfraw(__hip_fp8_storage_t, __hip_fp8_interpretation_t) {
  return __half_raw{};
}
__host__ __device__ static inline __half2_raw __hip_cvt_fp8x2_to_halfraw2(__hip_fp8x2_storage_t, __hip_fp8_interpretation_t) {
  return __half2_raw{};
}
