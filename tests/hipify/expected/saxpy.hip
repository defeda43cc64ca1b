// y = a * x + y, the smallest complete program. cudaMalloc in a comment stays.
#include <hip/hip_runtime.h>
#include <cstdio>
#include <vector>

#define CUDA_CHECK(call)                                                      \
  do {                                                                        \
    hipError_t status = (call);                                              \
    if (status != hipSuccess) {                                              \
      std::fprintf(stderr, "cuda failed: %s\n", hipGetErrorString(status));  \
      return 1;                                                               \
    }                                                                         \
  } while (0)

__global__ void saxpy(int n, float a, const float* __restrict__ x, float* y) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
    y[i] = a * x[i] + y[i];
  }
}

int main() {
  const int n = 1 << 20;
  std::vector<float> host(n, 1.0f);
  float *x = nullptr, *y = nullptr;
  CUDA_CHECK(hipMalloc(&x, n * sizeof(float)));
  CUDA_CHECK(hipMalloc(&y, n * sizeof(float)));
  CUDA_CHECK(hipMemcpy(x, host.data(), n * sizeof(float), hipMemcpyHostToDevice));
  CUDA_CHECK(hipMemset(y, 0, n * sizeof(float)));
  saxpy<<<(n + 255) / 256, 256>>>(n, 2.0f, x, y);
  CUDA_CHECK(hipGetLastError());
  CUDA_CHECK(hipDeviceSynchronize());
  CUDA_CHECK(hipMemcpy(host.data(), y, n * sizeof(float), hipMemcpyDeviceToHost));
  std::printf("cudaMemcpy is only a word here: %f\n", host[0]);
  CUDA_CHECK(hipFree(x));
  CUDA_CHECK(hipFree(y));
  return 0;
}
