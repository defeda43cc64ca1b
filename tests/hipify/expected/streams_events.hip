#include <hip/hip_runtime_api.h>
#include <hip/hip_runtime_api.h>

static void  finished(void* flag) { *static_cast<int*>(flag) = 1; }

int overlap(float* device, float* host, size_t n) {
  hipDeviceProp_t properties;
  int warps = 0, shared = 0, flag = 0, low = 0, high = 0;
  hipGetDeviceProperties(&properties, 0);
  hipDeviceGetAttribute(&warps, hipDeviceAttributeWarpSize, 0);
  hipDeviceGetAttribute(&shared, hipDeviceAttributeSharedMemPerBlockOptin, 0);
  hipDeviceGetStreamPriorityRange(&low, &high);
  hipStream_t stream;
  hipEvent_t begin, end;
  hipStreamCreateWithPriority(&stream, hipStreamNonBlocking, high);
  hipEventCreateWithFlags(&begin, hipEventDefault);
  hipEventCreateWithFlags(&end, hipEventBlockingSync);
  float* pinned = nullptr;
  hipHostMalloc(&pinned, n * sizeof(float), hipHostMallocMapped | hipHostMallocPortable);
  hipEventRecord(begin, stream);
  hipMemcpyAsync(device, pinned, n * sizeof(float), hipMemcpyHostToDevice, stream);
  hipLaunchHostFunc(stream, finished, &flag);
  hipEventRecord(end, stream);
  hipStreamWaitEvent(stream, end, 0);
  hipError_t status = hipEventSynchronize(end);
  float milliseconds = 0.0f;
  hipEventElapsedTime(&milliseconds, begin, end);
  hipProfilerStop();
  hipHostFree(pinned);
  hipEventDestroy(begin);
  switch (status) {
    case hipErrorMemoryAllocation: return -1;
    case hipErrorLaunchTimeOut: return -2;
    case hipErrorNoBinaryForGpu: return -3;
    default: return warps + shared + flag + properties.multiProcessorCount;
  }
}
