#include <cuda_runtime.h>
#include <cudnn.h>

// What MIOpen does by the same parameters compiles without a hand on it.
bool relu(cudaStream_t stream, const float* x, float* y) {
  cudnnHandle_t handle;
  if (cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) return false;
  cudnnSetStream(handle, stream);
  cudnnTensorDescriptor_t shape;
  cudnnActivationDescriptor_t activation;
  cudnnCreateTensorDescriptor(&shape);
  cudnnCreateActivationDescriptor(&activation);
  const float one = 1.0f, zero = 0.0f;
  cudnnStatus_t status = cudnnActivationForward(handle, activation, &one, shape, x, &zero, shape, y);
  cudnnDestroyActivationDescriptor(activation);
  cudnnDestroyTensorDescriptor(shape);
  cudnnDestroy(handle);
  return status == CUDNN_STATUS_SUCCESS;
}
