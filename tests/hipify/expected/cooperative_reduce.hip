#include <hip/hip_cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <hip/hip_runtime.h>

namespace cg = cooperative_groups;

__global__ void sum(const float* in, float* out) {
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  float value = cg::reduce(tile, in[threadIdx.x], cg::plus<float>());
  if (tile.thread_rank() == 0) out[threadIdx.x / 16] = value;
}
