#include <cuda_runtime.h>

template <int N> struct Lanes { int at[N]; };

// The size of a wave where C++ wants a constant.
__global__ void by_lane(int* p) {
  constexpr int width = warpSize;
  __shared__ int s[warpSize];
  Lanes<warpSize> lanes{};
  s[threadIdx.x % width] = p[threadIdx.x] + lanes.at[0];
  __syncthreads();
  if (threadIdx.x < warpSize) p[threadIdx.x] = s[threadIdx.x % warpSize];
}
