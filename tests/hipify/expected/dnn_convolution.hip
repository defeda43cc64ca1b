#include <hip/hip_runtime.h>
#include <miopen/miopen.h>

// MIOpen takes other parameters for a convolution: the port is not done by names alone.
void convolve(miopenHandle_t handle, const float* x, const float* w, float* y, int n, int c, int h, int wd, int k) {
  miopenTensorDescriptor_t input, output;
  miopenTensorDescriptor_t filter;
  miopenConvolutionDescriptor_t convolution;
  miopenCreateTensorDescriptor(&input);
  miopenCreateTensorDescriptor(&output);
  miopenCreateTensorDescriptor(&filter);
  miopenCreateConvolutionDescriptor(&convolution);
  miopenSet4dTensorDescriptor(input, miopenTensorNCHW, miopenFloat, n, c, h, wd);
  miopenInitConvolutionDescriptor(convolution, 1, 1, 1, 1, 1, 1, miopenConvolution, miopenFloat);
  cudnnSetConvolutionMathType(convolution, CUDNN_TENSOR_OP_MATH);
  const float one = 1.0f, zero = 0.0f;
  miopenConvolutionForward(handle, &one, input, x, filter, w, convolution, miopenConvolutionFwdAlgoImplicitGEMM,
                          nullptr, 0, &zero, output, y);
}
