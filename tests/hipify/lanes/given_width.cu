// block: 64, 1
__global__ void kernel(const float* in, float* out) {
  int column = threadIdx.x % 8;
  float v = in[threadIdx.x];
  for (int o = 4; o > 0; o /= 2) v += __shfl_down_sync(0xffffffff, v, o, 8);
  if (column == 0) out[threadIdx.x / 8] = v;
}
