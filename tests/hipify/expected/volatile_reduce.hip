#include <hip/hip_runtime.h>

__device__ void last_warp(volatile float* sums, int tid) {
  sums[tid] += sums[tid + 32];
  sums[tid] += sums[tid + 16];
  sums[tid] += sums[tid + 8];
  sums[tid] += sums[tid + 4];
  sums[tid] += sums[tid + 2];
  sums[tid] += sums[tid + 1];
}

__global__ void reduce(const float* in, float* out) {
  __shared__ float sums[256];
  int tid = threadIdx.x;
  sums[tid] = in[blockIdx.x * 256 + tid];
  __syncthreads();
  for (int s = 128; s > 32; s >>= 1) {
    if (tid < s) sums[tid] += sums[tid + s];
    __syncthreads();
  }
  if (tid < 32) last_warp(sums, tid);
  if (tid == 0) out[blockIdx.x] = sums[0];
}

void run(const float* in, float* out, int blocks) { reduce<<<blocks, 256>>>(in, out); }
