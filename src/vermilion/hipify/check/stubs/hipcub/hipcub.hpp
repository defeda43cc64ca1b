// Stub for the compile check: hipCUB.
#pragma once
#include <hip/hip_runtime.h>
namespace hipcub {
struct Sum { template <class T> __host__ __device__ T operator()(const T& a, const T& b) const { return a + b; } };
struct Max { template <class T> __host__ __device__ T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
struct Min { template <class T> __host__ __device__ T operator()(const T& a, const T& b) const { return b < a ? b : a; } };
struct ArgMax {}; struct ArgMin {};
template <class K, class V> struct KeyValuePair { K key; V value; };
enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING, BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm { BLOCK_LOAD_DIRECT, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE };
enum BlockStoreAlgorithm { BLOCK_STORE_DIRECT, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE };
struct vermilion_storage { int words[64]; };
#define VERMILION_COLLECTIVE(name) \
  using TempStorage = vermilion_storage; \
  __device__ name(TempStorage& s) : storage(s) {} \
  TempStorage& storage;
template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1> struct BlockReduce {
  VERMILION_COLLECTIVE(BlockReduce)
  __device__ T Sum(T v) { storage.words[threadIdx.x & 63] = 1; __syncthreads(); return v + (T)storage.words[0]; }
  template <int N> __device__ T Sum(T (&v)[N]) { return v[0]; }
  template <class F> __device__ T Reduce(T v, F f) { return f(v, Sum(v)); }
  template <class F> __device__ T Reduce(T v, F f, int) { return f(v, Sum(v)); }
};
template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1> struct BlockScan {
  VERMILION_COLLECTIVE(BlockScan)
  __device__ void InclusiveSum(T in, T& out) { storage.words[threadIdx.x & 63] = 1; out = in; }
  __device__ void ExclusiveSum(T in, T& out) { out = in; }
  __device__ void ExclusiveSum(T in, T& out, T& all) { out = in; all = in; }
  template <int N> __device__ void ExclusiveSum(T (&in)[N], T (&out)[N]) { out[0] = in[0]; }
  template <class F> __device__ void InclusiveScan(T in, T& out, F f) { out = f(in, in); }
};
template <class T, int W = 32> struct WarpReduce {
  VERMILION_COLLECTIVE(WarpReduce)
  __device__ T Sum(T v) { return v; }
  template <class F> __device__ T Reduce(T v, F f) { return f(v, v); }
};
template <class T, int W = 32> struct WarpScan {
  VERMILION_COLLECTIVE(WarpScan)
  __device__ void InclusiveSum(T in, T& out) { out = in; }
};
template <class K, int X, int N, class V = int> struct BlockRadixSort {
  VERMILION_COLLECTIVE(BlockRadixSort)
  __device__ void Sort(K (&)[N], int = 0, int = 8 * sizeof(K)) {}
  __device__ void Sort(K (&)[N], V (&)[N], int = 0, int = 8 * sizeof(K)) {}
};
template <class T, int X, int N, BlockLoadAlgorithm = BLOCK_LOAD_DIRECT> struct BlockLoad {
  VERMILION_COLLECTIVE(BlockLoad)
  template <class I> __device__ void Load(I in, T (&v)[N]) { v[0] = in[0]; }
  template <class I> __device__ void Load(I in, T (&v)[N], int) { v[0] = in[0]; }
};
template <class T, int X, int N, BlockStoreAlgorithm = BLOCK_STORE_DIRECT> struct BlockStore {
  VERMILION_COLLECTIVE(BlockStore)
  template <class O> __device__ void Store(O out, T (&v)[N]) { out[0] = v[0]; }
  template <class O> __device__ void Store(O out, T (&v)[N], int) { out[0] = v[0]; }
};
#undef VERMILION_COLLECTIVE
struct DeviceReduce {
  template <class I, class O> static hipError_t Sum(void*, size_t&, I, O, int, hipStream_t = 0) { return hipSuccess; }
  template <class I, class O> static hipError_t Max(void*, size_t&, I, O, int, hipStream_t = 0) { return hipSuccess; }
  template <class I, class O> static hipError_t Min(void*, size_t&, I, O, int, hipStream_t = 0) { return hipSuccess; }
  template <class I, class O> static hipError_t ArgMax(void*, size_t&, I, O, int, hipStream_t = 0) { return hipSuccess; }
  template <class I, class O, class F, class T> static hipError_t Reduce(void*, size_t&, I, O, int, F, T, hipStream_t = 0) { return hipSuccess; }
};
struct DeviceScan {
  template <class I, class O> static hipError_t ExclusiveSum(void*, size_t&, I, O, int, hipStream_t = 0) { return hipSuccess; }
  template <class I, class O> static hipError_t InclusiveSum(void*, size_t&, I, O, int, hipStream_t = 0) { return hipSuccess; }
  template <class I, class O, class F> static hipError_t InclusiveScan(void*, size_t&, I, O, F, int, hipStream_t = 0) { return hipSuccess; }
};
struct DeviceRadixSort {
  template <class K> static hipError_t SortKeys(void*, size_t&, const K*, K*, int, int = 0, int = 8 * sizeof(K), hipStream_t = 0) { return hipSuccess; }
  template <class K, class V> static hipError_t SortPairs(void*, size_t&, const K*, K*, const V*, V*, int, int = 0, int = 8 * sizeof(K), hipStream_t = 0) { return hipSuccess; }
  template <class K, class V> static hipError_t SortPairsDescending(void*, size_t&, const K*, K*, const V*, V*, int, int = 0, int = 8 * sizeof(K), hipStream_t = 0) { return hipSuccess; }
};
struct DeviceSelect {
  template <class I, class F, class O, class N> static hipError_t Flagged(void*, size_t&, I, F, O, N, int, hipStream_t = 0) { return hipSuccess; }
};
struct DeviceHistogram {
  template <class I, class C, class L> static hipError_t HistogramEven(void*, size_t&, I, C*, int, L, L, int, hipStream_t = 0) { return hipSuccess; }
};
}  // namespace hipcub
