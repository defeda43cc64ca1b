#include <hip/hip_runtime.h>
#include <miopen/miopen.h>

// What MIOpen does by the same parameters compiles without a hand on it.
bool relu(hipStream_t stream, const float* x, float* y) {
  miopenHandle_t handle;
  if (miopenCreate(&handle) != miopenStatusSuccess) return false;
  miopenSetStream(handle, stream);
  miopenTensorDescriptor_t shape;
  miopenActivationDescriptor_t activation;
  miopenCreateTensorDescriptor(&shape);
  miopenCreateActivationDescriptor(&activation);
  const float one = 1.0f, zero = 0.0f;
  miopenStatus_t status = miopenActivationForward(handle, activation, &one, shape, x, &zero, shape, y);
  miopenDestroyActivationDescriptor(activation);
  miopenDestroyTensorDescriptor(shape);
  miopenDestroy(handle);
  return status == miopenStatusSuccess;
}
