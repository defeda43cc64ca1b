#include <cuda_runtime.h>
#include <cudnn.h>

// MIOpen takes other parameters for a convolution: the port is not done by names alone.
void convolve(cudnnHandle_t handle, const float* x, const float* w, float* y, int n, int c, int h, int wd, int k) {
  cudnnTensorDescriptor_t input, output;
  cudnnFilterDescriptor_t filter;
  cudnnConvolutionDescriptor_t convolution;
  cudnnCreateTensorDescriptor(&input);
  cudnnCreateTensorDescriptor(&output);
  cudnnCreateFilterDescriptor(&filter);
  cudnnCreateConvolutionDescriptor(&convolution);
  cudnnSetTensor4dDescriptor(input, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, wd);
  cudnnSetConvolution2dDescriptor(convolution, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
  cudnnSetConvolutionMathType(convolution, CUDNN_TENSOR_OP_MATH);
  const float one = 1.0f, zero = 0.0f;
  cudnnConvolutionForward(handle, &one, input, x, filter, w, convolution, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                          nullptr, 0, &zero, output, y);
}
