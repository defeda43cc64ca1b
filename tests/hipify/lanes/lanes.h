// Waves on the CPU: a thread a lane, a barrier a wave, so that shuffles and votes see each other's
// lanes. WAVE is 32 or 64. CUDA's kernels and their translations compile with it unchanged.
#pragma once
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <type_traits>
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

// Whoever takes part: half a wave of 64 meets alone, because the other half may be elsewhere.
struct Active {
  operator uint64_t() const { return WAVE == 64 ? ~0ull : 0xffffffffull; }
};

struct Wave {
  std::barrier<> meet{WAVE};
  std::barrier<> halves[2] = {std::barrier<>(32), std::barrier<>(32)};
  uint64_t slots[WAVE];
};
static thread_local Wave* wave;
static thread_local unsigned lane_in_wave;
static std::unique_ptr<std::barrier<>> block;

// Each lane leaves its value, all meet, each reads another's, all meet again.
// All that a mask names have to come, as HIP's functions check.
template <class M> std::barrier<>& meeting(M mask, int width) {
  bool half = std::is_same_v<M, Active> ? width <= 32 : (uint64_t)mask >> 32 == 0;
  return half ? wave->halves[lane_in_wave / 32] : wave->meet;
}
template <class M, class T> T exchange(M mask, T value, unsigned from, bool inside, int width) {
  std::barrier<>& meet = meeting(mask, width);
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

template <class M, class T> T __shfl_sync(M m, T v, int from, int width = WAVE) {
  return exchange(m, v, (lane_in_wave & ~(width - 1)) | (from & (width - 1)), true, width);
}
template <class M, class T> T __shfl_xor_sync(M m, T v, int mask, int width = WAVE) {
  unsigned from = lane_in_wave ^ mask;
  return exchange(m, v, from, (from & ~(width - 1)) == (lane_in_wave & ~(width - 1)), width);
}
template <class M, class T> T __shfl_down_sync(M m, T v, unsigned by, int width = WAVE) {
  unsigned at = lane_in_wave & (width - 1);
  return exchange(m, v, lane_in_wave + by, at + by < (unsigned)width, width);
}
template <class M, class T> T __shfl_up_sync(M m, T v, unsigned by, int width = WAVE) {
  unsigned at = lane_in_wave & (width - 1);
  return exchange(m, v, lane_in_wave - by, at >= by, width);
}
inline uint64_t ballot(std::barrier<>& meet, int predicate) {
  wave->slots[lane_in_wave] = predicate != 0;
  meet.arrive_and_wait();
  uint64_t bits = 0;
  for (int i = 0; i < WAVE; ++i) bits |= (wave->slots[i] & 1) << i;
  meet.arrive_and_wait();
  return bits;
}
template <class M> uint64_t __ballot_sync(M m, int p) { return ballot(meeting(m, WAVE), p); }
template <class M> int __any_sync(M m, int p) { return __ballot_sync(m, p) != 0; }
template <class M> int __all_sync(M m, int p) { return __ballot_sync(m, !p) == 0; }
inline uint64_t __ballot(int p) { return ballot(meeting(Active{}, 32), p); }
inline Active __activemask() { return {}; }
inline unsigned __lane_id() { return lane_in_wave; }
inline void __syncwarp() { meeting(Active{}, 32).arrive_and_wait(); }
template <class M> void __syncwarp(M mask) {
  // HIP checks the mask as it is, on waves of 32 lanes too.
  if (WAVE == 32 && (uint64_t)mask != 0xffffffffull) std::abort();
  meeting(mask, WAVE).arrive_and_wait();
}
static int atomicAdd(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
static float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }

struct Tile {
  int width;
  template <class T> T shfl_down(T v, unsigned by) const { return __shfl_down_sync(Active{}, v, by, width); }
  template <class T> T shfl_xor(T v, unsigned by) const { return __shfl_xor_sync(Active{}, v, by, width); }
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
