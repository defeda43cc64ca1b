#include <hip/hip_runtime.h>

__managed__ int counter;  // hipify: allow(managed-memory) one word, read once

__global__ void count(const int* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && in[i] > 0) atomicAdd(&counter, 1);
}

int run(int n) {
  int* data = nullptr;
  hipMallocManaged(&data, n * sizeof(int));
  // hipify: allow(managed-memory) the pages stay where they are
  hipMallocManaged(&data, n * sizeof(int));
  hipMemAdvise(data, n * sizeof(int), hipMemAdviseSetReadMostly, 0);
  count<<<(n + 255) / 256, 256>>>(data, n);
  hipDeviceSynchronize();
  return counter;
}
