// Stub for the compile check: the context of ONNX Runtime's ROCm provider (up to 1.22).
#pragma once
#include <hip/hip_runtime.h>
#include <onnxruntime_cxx_api.h>
namespace Ort { namespace Custom {
struct RocmContext {
  hipStream_t hip_stream = {};
  void* miopen_handle = {};
  void* rocblas_handle = {};
  void Init(const OrtKernelContext&);
};
} }  // namespace Ort::Custom
