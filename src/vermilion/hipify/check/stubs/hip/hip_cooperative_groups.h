// Stub for the compile check: cooperative groups of HIP.
#pragma once
#include <hip/hip_runtime.h>
namespace cooperative_groups {
struct thread_group {
  unsigned n, r;
  __device__ unsigned size() const { return n; }
  __device__ unsigned num_threads() const { return n; }
  __device__ unsigned thread_rank() const { return r; }
  __device__ void sync() const { __syncthreads(); }
  __device__ bool is_valid() const { return true; }
};
struct thread_block : thread_group {
  __device__ dim3 group_index() const { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
  __device__ dim3 thread_index() const { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
  __device__ dim3 group_dim() const { return dim3(blockDim.x, blockDim.y, blockDim.z); }
};
struct grid_group : thread_group {
  __device__ dim3 group_dim() const { return dim3(gridDim.x, gridDim.y, gridDim.z); }
};
struct multi_grid_group : thread_group {};
struct coalesced_group : thread_group {
  template <class T> __device__ T shfl(T v, int lane) const { return __shfl(v, lane); }
  template <class T> __device__ T shfl_down(T v, unsigned d) const { return __shfl_down(v, d); }
  template <class T> __device__ T shfl_up(T v, unsigned d) const { return __shfl_up(v, d); }
  __device__ unsigned meta_group_rank() const { return 0; }
  __device__ unsigned meta_group_size() const { return 1; }
};
template <unsigned Size, class Parent = thread_block> struct thread_block_tile : thread_group {
  static_assert(Size <= 64 && (Size & (Size - 1)) == 0, "a tile is a power of two up to 64");
  __device__ static constexpr unsigned size() { return Size; }
  __device__ static constexpr unsigned num_threads() { return Size; }
  __device__ unsigned meta_group_rank() const { return threadIdx.x / Size; }
  __device__ unsigned meta_group_size() const { return blockDim.x / Size; }
  template <class T> __device__ T shfl(T v, int lane) const { return __shfl(v, lane, Size); }
  template <class T> __device__ T shfl_down(T v, unsigned d) const { return __shfl_down(v, d, Size); }
  template <class T> __device__ T shfl_up(T v, unsigned d) const { return __shfl_up(v, d, Size); }
  template <class T> __device__ T shfl_xor(T v, unsigned d) const { return __shfl_xor(v, d, Size); }
  __device__ int any(int p) const { return __any(p); }
  __device__ int all(int p) const { return __all(p); }
  __device__ unsigned long long ballot(int p) const { return __ballot(p); }
};
__device__ inline thread_block this_thread_block() { return {}; }
__device__ inline grid_group this_grid() { return {}; }
__device__ inline multi_grid_group this_multi_grid() { return {}; }
__device__ inline coalesced_group coalesced_threads() { return {}; }
template <unsigned Size, class Parent> __device__ inline thread_block_tile<Size, Parent> tiled_partition(const Parent&) { return {}; }
template <class Parent> __device__ inline thread_group tiled_partition(const Parent&, unsigned) { return {}; }
template <class Group> __device__ inline void sync(const Group& g) { g.sync(); }
}  // namespace cooperative_groups
