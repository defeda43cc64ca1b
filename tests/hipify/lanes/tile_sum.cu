// block: 128, 1
namespace cg = cooperative_groups;
__global__ void kernel(const float* in, float* out) {
  auto tile = cg::tiled_partition<32>(cg::this_thread_block());
  float v = in[threadIdx.x];
  for (int o = 16; o > 0; o /= 2) v += tile.shfl_down(v, o);
  if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = v;
}
