#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

static void CUDART_CB finished(void* flag) { *static_cast<int*>(flag) = 1; }

int overlap(float* device, float* host, size_t n) {
  cudaDeviceProp properties;
  int warps = 0, shared = 0, flag = 0, low = 0, high = 0;
  cudaGetDeviceProperties(&properties, 0);
  cudaDeviceGetAttribute(&warps, cudaDevAttrWarpSize, 0);
  cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
  cudaDeviceGetStreamPriorityRange(&low, &high);
  cudaStream_t stream;
  cudaEvent_t begin, end;
  cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high);
  cudaEventCreateWithFlags(&begin, cudaEventDefault);
  cudaEventCreateWithFlags(&end, cudaEventBlockingSync);
  float* pinned = nullptr;
  cudaHostAlloc(&pinned, n * sizeof(float), cudaHostAllocMapped | cudaHostAllocPortable);
  cudaEventRecord(begin, stream);
  cudaMemcpyAsync(device, pinned, n * sizeof(float), cudaMemcpyHostToDevice, stream);
  cudaLaunchHostFunc(stream, finished, &flag);
  cudaEventRecord(end, stream);
  cudaStreamWaitEvent(stream, end, 0);
  cudaError_t status = cudaEventSynchronize(end);
  float milliseconds = 0.0f;
  cudaEventElapsedTime(&milliseconds, begin, end);
  cudaProfilerStop();
  cudaFreeHost(pinned);
  cudaEventDestroy(begin);
  switch (status) {
    case cudaErrorMemoryAllocation: return -1;
    case cudaErrorLaunchTimeout: return -2;
    case cudaErrorNoKernelImageForDevice: return -3;
    default: return warps + shared + flag + properties.multiProcessorCount;
  }
}
