// block: 64, 1
__device__ __forceinline__ float reduce(float v) {
#pragma unroll
  for (int mask = 16; mask; mask /= 2) v += __shfl_xor_sync(0xffffffff, v, mask);
  return v;
}
__global__ void kernel(const float* in, float* out) {
  float v = in[threadIdx.x];
  out[threadIdx.x] = v * rsqrtf(reduce(v * v) / 32.0f + 1e-6f);
}
