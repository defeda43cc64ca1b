#include <cublas_v2.h>
#include <cuda_fp16.h>

cublasStatus_t batched(cublasHandle_t handle, const half* a, const half* b, half* c, int m, int n, int k, int count) {
  const float alpha = 1.0f, beta = 0.0f;
  cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST);
  cublasStatus_t status = cublasGemmStridedBatchedEx(
      handle, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &alpha, a, CUDA_R_16F, k, (long long)m * k, b, CUDA_R_16F, k,
      (long long)n * k, &beta, c, CUDA_R_16F, m, (long long)m * n, count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT_TENSOR_OP);
  return status;
}

float dot(cublasHandle_t handle, const float* x, const float* y, int n) {
  float result = 0.0f;
  if (cublasSdot_v2(handle, n, x, 1, y, 1, &result) != CUBLAS_STATUS_SUCCESS) return -1.0f;
  int index = 0;
  cublasIsamax(handle, n, x, 1, &index);
  cublasSscal(handle, n, &result, const_cast<float*>(x), 1);
  return result + (float)index;
}
