#include <hip/hip_runtime.h>

constexpr int STAGES = 3;
#define TILE_ELEMS (128 * 64)

__global__ void staged(const float* in, float* out) {
  extern __shared__ float buffer[];
  buffer[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = buffer[blockDim.x - threadIdx.x - 1];
}

__global__ void fixed(float* out) {
  __shared__ float a[128][160];
  a[threadIdx.x][0] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = a[127 - threadIdx.x][0];
}

void launch(const float* in, float* out) {
  hipFuncSetAttribute(reinterpret_cast<const void*>(staged), hipFuncAttributeMaxDynamicSharedMemorySize, STAGES * 32768);
  staged<<<1, 128, STAGES * 32768>>>(in, out);
  fixed<<<1, 128>>>(out);
}
