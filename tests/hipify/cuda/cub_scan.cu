#include <cub/block/block_load.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/cub.cuh>
#include <cuda_runtime.h>

namespace device_algorithms = cub;

template <int THREADS, int ITEMS>
__global__ void offsets(const int* in, int* out) {
  using Load = cub::BlockLoad<int, THREADS, ITEMS, cub::BLOCK_LOAD_TRANSPOSE>;
  using Scan = cub::BlockScan<int, THREADS>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Scan::TempStorage scan;
  } shared;
  int items[ITEMS];
  Load(shared.load).Load(in + blockIdx.x * THREADS * ITEMS, items);
  __syncthreads();
  Scan(shared.scan).ExclusiveSum(items, items);
  for (int i = 0; i < ITEMS; ++i) out[(blockIdx.x * THREADS + threadIdx.x) * ITEMS + i] = items[i];
}

cudaError_t run(const float* keys, float* sorted, const int* values, int* order, int n, int* counts, cudaStream_t stream) {
  size_t bytes = 0;
  cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted, values, order, n, 0, 32, stream);
  void* scratch = nullptr;
  cudaMallocAsync(&scratch, bytes, stream);
  cudaError_t status = cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted, values, order, n, 0, 32, stream);
  device_algorithms::DeviceScan::ExclusiveSum(scratch, bytes, counts, counts, n, stream);
  offsets<128, 4><<<n / 512, 128, 0, stream>>>(counts, order);
  cudaFreeAsync(scratch, stream);
  return status;
}
