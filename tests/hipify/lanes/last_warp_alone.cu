// block: 256, 1
// The sums of the warps are summed by one warp, half a wave of 64 lanes.
__device__ float warp_sum(float v, unsigned mask) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(mask, v, o);
  return v;
}
__global__ void kernel(const float* in, float* out) {
  __shared__ float partial[8];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float v = warp_sum(in[threadIdx.x], 0xffffffff);
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  if (warp == 0) {
    v = warp_sum(lane < 8 ? partial[lane] : 0.0f, 0xffffffff);
    unsigned positive = __ballot_sync(0xffffffff, v > 0.0f);
    out[lane] = v + __popc(positive);
  }
}
