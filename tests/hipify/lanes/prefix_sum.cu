// block: 128, 1
__global__ void kernel(const float* in, float* out) {
  int lane = threadIdx.x & 31;
  float v = in[threadIdx.x];
  for (int o = 1; o < 32; o <<= 1) {
    float w = __shfl_up_sync(0xffffffff, v, o);
    if (lane >= o) v += w;
  }
  out[threadIdx.x] = v;
}
