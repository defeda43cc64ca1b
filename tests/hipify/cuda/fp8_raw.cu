// 8-bit floats by their storage and their functions of conversion, as kernels of quantized models have them.
#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

using Storage = __nv_fp8_storage_t;

__global__ void quantize(const float2* x, __nv_fp8x2_storage_t* y, Storage* z, __nv_half* back, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = __nv_cvt_float2_to_fp8x2(x[i], __NV_SATFINITE, __NV_E4M3);
  z[i] = __nv_cvt_float_to_fp8(x[i].x, __NV_NOSAT, __NV_E5M2);
  back[i] = __nv_half(__nv_cvt_fp8_to_halfraw(z[i], __NV_E5M2));
}

__global__ void narrow(const cuDoubleComplex* x, cuFloatComplex* y) { y[threadIdx.x] = cuComplexDoubleToFloat(x[threadIdx.x]); }
