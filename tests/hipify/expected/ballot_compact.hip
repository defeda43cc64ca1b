#include <hip/hip_runtime.h>
#include <cstdint>

// Stream compaction by warp votes.
__global__ void compact(const int* in, int* out, int* total, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int lane = threadIdx.x & 31;
  bool keep = i < n && in[i] > 0;
  unsigned int mask = __ballot_sync(0xffffffffu, keep);
  unsigned int below = mask & ((1u << lane) - 1);
  int base = 0;
  if (lane == 0) base = atomicAdd(total, __popc(mask));
  base = __shfl_sync(0xffffffffu, base, 0);
  if (keep) out[base + __popc(below)] = in[i];
}

__global__ void votes(const int* in, int* out) {
  int value = in[threadIdx.x];
  const unsigned FULL = 0xFFFFFFFF;
  uint32_t active = __activemask();
  int leader = __ffs(active) - 1;
  unsigned peers = __match_any_sync(FULL, value);
  bool all = __all_sync(FULL, value > 0), any = __any_sync(FULL, value < 0);
  __syncwarp();
  out[threadIdx.x] = leader + __popc(peers) + all + any + __popc(__ballot_sync(0x0000ffff, value));
}

void run(const int* in, int* out, int* total, int n) {
  compact<<<(n + 255) / 256, 256>>>(in, out, total, n);
  votes<<<1, 64>>>(in, out);
}
