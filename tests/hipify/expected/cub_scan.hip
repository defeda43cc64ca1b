#include <hipcub/hipcub.hpp>
#include <hipcub/hipcub.hpp>
#include <hipcub/hipcub.hpp>
#include <hip/hip_runtime.h>

namespace device_algorithms = hipcub;

template <int THREADS, int ITEMS>
__global__ void offsets(const int* in, int* out) {
  using Load = hipcub::BlockLoad<int, THREADS, ITEMS, hipcub::BLOCK_LOAD_TRANSPOSE>;
  using Scan = hipcub::BlockScan<int, THREADS>;
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

hipError_t run(const float* keys, float* sorted, const int* values, int* order, int n, int* counts, hipStream_t stream) {
  size_t bytes = 0;
  hipcub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted, values, order, n, 0, 32, stream);
  void* scratch = nullptr;
  hipMallocAsync(&scratch, bytes, stream);
  hipError_t status = hipcub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted, values, order, n, 0, 32, stream);
  device_algorithms::DeviceScan::ExclusiveSum(scratch, bytes, counts, counts, n, stream);
  offsets<128, 4><<<n / 512, 128, 0, stream>>>(counts, order);
  hipFreeAsync(scratch, stream);
  return status;
}
