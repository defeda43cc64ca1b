#include <hip/hip_bf16.h>
#include <hip/hip_fp8.h>
#include <hip/hip_runtime.h>

__global__ void convert(const float* in, __hip_bfloat16* half, __hip_fp8_e4m3* eighth, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  half[i] = __float2bfloat16(in[i]);
  eighth[i] = __hip_fp8_e4m3(__bfloat162float(half[i]));
}

void run(const float* in, __hip_bfloat16* half, __hip_fp8_e4m3* eighth, int n) {
  convert<<<(n + 255) / 256, 256>>>(in, half, eighth, n);
}
