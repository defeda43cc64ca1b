// Waves on the CPU: a thread a lane, a barrier a wave, so that shuffles and votes see each other's
// lanes. WAVE is 32 or 64. CUDA's kernels and their translations compile with it unchanged.
#pragma once
#include <barrier>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __syncthreads() block->arrive_and_wait()
#define __popcll __builtin_popcountll
#define __popc __builtin_popcount
#define __ffsll __builtin_ffsll
#define __ffs __builtin_ffs

struct Place { unsigned x, y, z; };
static thread_local Place threadIdx, blockIdx;
static Place blockDim, gridDim;
static const int warpSize = WAVE;

// Half a wave of 64 meets alone where a width of 32 needs no more: the other half may be elsewhere.
struct Wave {
  std::barrier<> meet{WAVE};
  std::barrier<> halves[2] = {std::barrier<>(32), std::barrier<>(32)};
  uint64_t slots[WAVE];
};
static thread_local Wave* wave;
static thread_local unsigned lane_in_wave;
static std::unique_ptr<std::barrier<>> block;

// Each lane leaves its value, all meet, each reads another's, all meet again.
template <class T> T exchange(T value, unsigned from, bool inside, int width) {
  std::barrier<>& meet = width <= 32 ? wave->halves[lane_in_wave / 32] : wave->meet;
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  wave->slots[lane_in_wave] = bits;
  meet.arrive_and_wait();
  uint64_t read = wave->slots[inside ? from % WAVE : lane_in_wave];
  meet.arrive_and_wait();
  T result;
  __builtin_memcpy(&result, &read, sizeof result);
  return result;
}

template <class M, class T> T __shfl_sync(M, T v, int from, int width = WAVE) {
  return exchange(v, (lane_in_wave & ~(width - 1)) | (from & (width - 1)), true, width);
}
template <class M, class T> T __shfl_xor_sync(M, T v, int mask, int width = WAVE) {
  unsigned from = lane_in_wave ^ mask;
  return exchange(v, from, (from & ~(width - 1)) == (lane_in_wave & ~(width - 1)), width);
}
template <class M, class T> T __shfl_down_sync(M, T v, unsigned by, int width = WAVE) {
  unsigned at = lane_in_wave & (width - 1);
  return exchange(v, lane_in_wave + by, at + by < (unsigned)width, width);
}
template <class M, class T> T __shfl_up_sync(M, T v, unsigned by, int width = WAVE) {
  unsigned at = lane_in_wave & (width - 1);
  return exchange(v, lane_in_wave - by, at >= by, width);
}
template <class M> uint64_t __ballot_sync(M, int predicate) {
  wave->slots[lane_in_wave] = predicate != 0;
  wave->meet.arrive_and_wait();
  uint64_t bits = 0;
  for (int i = 0; i < WAVE; ++i) bits |= wave->slots[i] << i;
  wave->meet.arrive_and_wait();
  return bits;
}
template <class M> int __any_sync(M m, int p) { return __ballot_sync(m, p) != 0; }
template <class M> int __all_sync(M m, int p) { return __ballot_sync(m, !p) == 0; }
inline uint64_t __activemask() { return WAVE == 64 ? ~0ull : 0xffffffffull; }
template <class M = unsigned> void __syncwarp(M = 0) { wave->meet.arrive_and_wait(); }
static int atomicAdd(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
static float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }

struct Tile {
  int width;
  template <class T> T shfl_down(T v, unsigned by) const { return __shfl_down_sync(0, v, by, width); }
  template <class T> T shfl_xor(T v, unsigned by) const { return __shfl_xor_sync(0, v, by, width); }
};
namespace cooperative_groups {
struct Block {};
inline Block this_thread_block() { return {}; }
template <int N> Tile tiled_partition(Block) { return {N}; }
}  // namespace cooperative_groups

// Runs one block: warps are made of threads in the order x, y, as on the device.
template <class F> void run_block(unsigned x, unsigned y, F kernel) {
  blockDim = {x, y, 1};
  gridDim = {1, 1, 1};
  unsigned count = x * y;
  block = std::make_unique<std::barrier<>>(count);
  std::vector<std::unique_ptr<Wave>> waves;
  for (unsigned i = 0; i < count / WAVE; ++i) waves.push_back(std::make_unique<Wave>());
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < count; ++i)
    threads.emplace_back([=, &waves] {
      threadIdx = {i % x, i / x, 0};
      blockIdx = {0, 0, 0};
      wave = waves[i / WAVE].get();
      lane_in_wave = i % WAVE;
      kernel();
    });
  for (auto& thread : threads) thread.join();
}
