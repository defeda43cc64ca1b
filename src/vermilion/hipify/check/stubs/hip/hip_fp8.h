// Stub for the compile check: 8-bit floats of HIP.
#pragma once
#include <hip/hip_runtime.h>
template <int Kind> struct vermilion_fp8 {
  unsigned char data;
  vermilion_fp8() = default;
  __host__ __device__ explicit vermilion_fp8(float f) : data((unsigned char)f) {}
  __host__ __device__ explicit operator float() const { return (float)data; }
};
typedef vermilion_fp8<0> __hip_fp8_e4m3;
typedef vermilion_fp8<1> __hip_fp8_e5m2;
