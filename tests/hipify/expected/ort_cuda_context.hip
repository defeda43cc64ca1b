// The context that only ONNX Runtime's CUDA provider fills.
#include <hip/hip_runtime.h>
#include "core/providers/rocm/rocm_context.h"
#include "onnxruntime_cxx_api.h"

hipStream_t stream_of(const OrtKernelContext& context) {
  Ort::Custom::CudaContext cuda;
  cuda.Init(context);
  return cuda.cuda_stream;
}
