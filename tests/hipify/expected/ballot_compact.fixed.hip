#include <hip/hip_runtime.h>
#include <cstdint>

// Stream compaction by warp votes.
__global__ void compact(const int* in, int* out, int* total, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int lane = threadIdx.x & (warpSize - 1);
  bool keep = i < n && in[i] > 0;
  unsigned long long mask = __ballot_sync(0xffffffffffffffffull, keep);
  unsigned long long below = mask & ((1ull << lane) - 1);
  int base = 0;
  if (lane == 0) base = atomicAdd(total, __popcll(mask));
  base = __shfl_sync(0xffffffffffffffffull, base, 0);
  if (keep) out[base + __popcll(below)] = in[i];
}

__global__ void votes(const int* in, int* out) {
  int value = in[threadIdx.x];
  const unsigned long long FULL = 0xffffffffffffffffull;
  unsigned long long active = __activemask();
  int leader = __ffsll(active) - 1;
  unsigned long long peers = __match_any_sync(FULL, value);
  bool all = __all_sync(FULL, value > 0), any = __any_sync(FULL, value < 0);
  __syncwarp();
  out[threadIdx.x] = leader + __popcll(peers) + all + any + __popcll(__ballot_sync(0x0000ffff, value));
}

void run(const int* in, int* out, int* total, int n) {
  compact<<<(n + 255) / 256, 256>>>(in, out, total, n);
  votes<<<1, 64>>>(in, out);
}
