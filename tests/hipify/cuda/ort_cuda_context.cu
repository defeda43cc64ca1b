// The context that only ONNX Runtime's CUDA provider fills.
#include <cuda_runtime.h>
#include "core/providers/cuda/cuda_context.h"
#include "onnxruntime_cxx_api.h"

cudaStream_t stream_of(const OrtKernelContext& context) {
  Ort::Custom::CudaContext cuda;
  cuda.Init(context);
  return cuda.cuda_stream;
}
