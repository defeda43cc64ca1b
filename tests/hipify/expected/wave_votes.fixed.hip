#include <hip/hip_runtime.h>

constexpr int kWarpSize = 32;

// Counts lanes by `warpSize`: what votes works on whole waves.
__global__ void compact(const int* in, int* out, int* total, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int lane = threadIdx.x & (warpSize - 1), warps = blockDim.x / warpSize;
  bool keep = i < n && in[i] > warps;
  unsigned long long mask = __ballot_sync(__activemask(), keep);
  unsigned long long below = mask & ((1ull << lane) - 1);
  int base = 0;
  if (lane == 0) base = atomicAdd(total, __popcll(mask));
  base = __shfl_sync(__activemask(), base, 0);
  if (keep) out[base + __popcll(below)] = in[i];
  if (__any_sync(0x0000ffff, keep)) out[0] = 1;
}

void run(const int* in, int* out, int* total, int n) { compact<<<(n + 255) / 256, 256>>>(in, out, total, n); }
