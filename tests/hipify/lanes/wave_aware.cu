// block: 128, 1
__global__ void kernel(const float* in, float* out) {
  __shared__ float part[64];
  int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
  float v = in[threadIdx.x];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
  if (lane == 0) part[warp] = v;
  __syncthreads();
  v = 0.0f;
  for (int w = 0; w * warpSize < blockDim.x; ++w) v += part[w];
  out[threadIdx.x] = v;
}
