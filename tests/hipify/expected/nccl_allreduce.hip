#include <hip/hip_runtime.h>
#include <rccl/rccl.h>
#include <roctracer/roctx.h>

ncclResult_t all_reduce(float* gradient, size_t n, ncclComm_t communicator, hipStream_t stream) {
  roctxRangePush("all-reduce");
  ncclGroupStart();
  ncclResult_t result = ncclAllReduce(gradient, gradient, n, ncclFloat, ncclSum, communicator, stream);
  ncclGroupEnd();
  roctxRangePop();
  roctxMark("done");
  return result;
}
