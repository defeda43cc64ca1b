#include <hip/hip_runtime.h>

__constant__ float weights[64];
__device__ int progress;

__global__ void filter(const float* in, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0.0f;
  for (int k = 0; k < 64 && i + k < n; ++k) sum += weights[k] * in[i + k];
  if (i < n) out[i] = sum;
  if (i == 0) atomicAdd(&progress, 1);
}

int run(const float* host, const float* in, float* out, int n, hipStream_t stream) {
  int done = 0;
  void* address = nullptr;
  hipMemcpyToSymbol(HIP_SYMBOL(weights), host, sizeof(weights));
  hipMemcpyToSymbolAsync(HIP_SYMBOL(weights), host, 32 * sizeof(float), 0, hipMemcpyHostToDevice, stream);
  filter<<<(n + 127) / 128, 128, 0, stream>>>(in, out, n);
  hipMemcpyFromSymbol(&done, HIP_SYMBOL(progress), sizeof(done));
  hipGetSymbolAddress(&address, HIP_SYMBOL(progress));
  return done + (address != nullptr);
}
