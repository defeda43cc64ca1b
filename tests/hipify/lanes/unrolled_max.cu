// block: 64, 1
__global__ void kernel(const float* in, float* out) {
  float v = in[threadIdx.x], w;
  w = __shfl_down_sync(~0u, v, 16); v = w > v ? w : v;
  w = __shfl_down_sync(~0u, v, 8); v = w > v ? w : v;
  w = __shfl_down_sync(~0u, v, 4); v = w > v ? w : v;
  w = __shfl_down_sync(~0u, v, 2); v = w > v ? w : v;
  w = __shfl_down_sync(~0u, v, 1); v = w > v ? w : v;
  if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = v;
}
