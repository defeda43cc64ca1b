#include <hip/hip_runtime.h>
#ifndef HIPIFY_WAVE_SIZE  // lanes of a wave at compile time
#if defined(__GFX8__) || defined(__GFX9__)
#define HIPIFY_WAVE_SIZE 64
#else
#define HIPIFY_WAVE_SIZE 32
#endif
#endif

template <int N> struct Lanes { int at[N]; };

// The size of a wave where C++ wants a constant.
__global__ void by_lane(int* p) {
  constexpr int width = HIPIFY_WAVE_SIZE;
  __shared__ int s[HIPIFY_WAVE_SIZE];
  Lanes<HIPIFY_WAVE_SIZE> lanes{};
  s[threadIdx.x % width] = p[threadIdx.x] + lanes.at[0];
  __syncthreads();
  if (threadIdx.x < warpSize) p[threadIdx.x] = s[threadIdx.x % warpSize];
}
