#include <hip/hip_runtime.h>

// A tile of 32 is no warp: nothing here may be taken for one.
constexpr int TILE = 32;
constexpr int ROWS = 8;

template <typename T>
__global__ void transpose(T* __restrict__ out, const T* __restrict__ in, int width, int height) {
  __shared__ T tile[TILE][TILE + 1];
  int x = blockIdx.x * TILE + threadIdx.x;
  int y = blockIdx.y * TILE + threadIdx.y;
  for (int j = 0; j < TILE; j += ROWS)
    if (x < width && y + j < height) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * TILE + threadIdx.x;
  y = blockIdx.x * TILE + threadIdx.y;
  for (int j = 0; j < TILE; j += ROWS)
    if (x < height && y + j < width) out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}

void launch(float* out, const float* in, int width, int height, hipStream_t stream) {
  dim3 grid((width + TILE - 1) / TILE, (height + TILE - 1) / TILE), block(TILE, ROWS);
  transpose<float><<<grid, block, 0, stream>>>(out, in, width, height);
}
