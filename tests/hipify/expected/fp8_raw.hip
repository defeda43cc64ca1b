// 8-bit floats by their storage and their functions of conversion, as kernels of quantized models have them.
#include <hip/hip_complex.h>
#include <hip/hip_bf16.h>
#include <hip/hip_fp16.h>
#include <hip/hip_fp8.h>
#include <hip/hip_runtime.h>

using Storage = __hip_fp8_storage_t;

__global__ void quantize(const float2* x, __hip_fp8x2_storage_t* y, Storage* z, __half* back, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = __hip_cvt_float2_to_fp8x2(x[i], __HIP_SATFINITE, __HIP_E4M3);
  z[i] = __hip_cvt_float_to_fp8(x[i].x, __HIP_NOSAT, __HIP_E5M2);
  back[i] = __half(__hip_cvt_fp8_to_halfraw(z[i], __HIP_E5M2));
}

__global__ void narrow(const hipDoubleComplex* x, hipFloatComplex* y) { y[threadIdx.x] = hipComplexDoubleToFloat(x[threadIdx.x]); }
