#include <cuda_runtime.h>
#include <nccl.h>
#include <nvToolsExt.h>

ncclResult_t all_reduce(float* gradient, size_t n, ncclComm_t communicator, cudaStream_t stream) {
  nvtxRangePushA("all-reduce");
  ncclGroupStart();
  ncclResult_t result = ncclAllReduce(gradient, gradient, n, ncclFloat, ncclSum, communicator, stream);
  ncclGroupEnd();
  nvtxRangePop();
  nvtxMarkA("done");
  return result;
}
