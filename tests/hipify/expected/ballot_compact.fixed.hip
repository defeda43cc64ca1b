#include <hip/hip_runtime.h>
#include <cstdint>

// Stream compaction by warp votes.
__global__ void compact(const int* in, int* out, int* total, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int lane = threadIdx.x & 31;
  bool keep = i < n && in[i] > 0;
  unsigned int mask = (unsigned)(__ballot(keep) >> (__lane_id() & 32));
  unsigned int below = mask & ((1u << lane) - 1);
  int base = 0;
  if (lane == 0) base = atomicAdd(total, __popc(mask));
  base = __shfl_sync(__activemask(), base, 0, 32);
  if (keep) out[base + __popc(below)] = in[i];
}

__global__ void votes(const int* in, int* out) {
  int value = in[threadIdx.x];
  const unsigned FULL = 0xFFFFFFFF;
  uint32_t active = (unsigned)(__activemask() >> (__lane_id() & 32));
  int leader = __ffs(active) - 1;
  unsigned peers = (unsigned)(__match_any(value) >> (__lane_id() & 32));
  bool all = ((unsigned)(__ballot(!(value > 0)) >> (__lane_id() & 32)) == 0), any = ((unsigned)(__ballot(value < 0) >> (__lane_id() & 32)) != 0);
  __syncwarp();
  out[threadIdx.x] = leader + __popc(peers) + all + any + __popc(((unsigned)(__ballot(value) >> (__lane_id() & 32)) & (0x0000ffff)));
}

void run(const int* in, int* out, int* total, int n) {
  compact<<<(n + 255) / 256, 256>>>(in, out, total, n);
  votes<<<1, 64>>>(in, out);
}
