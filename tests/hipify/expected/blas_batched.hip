#include <hipblas/hipblas.h>
#include <hip/hip_fp16.h>

hipblasStatus_t batched(hipblasHandle_t handle, const half* a, const half* b, half* c, int m, int n, int k, int count) {
  const float alpha = 1.0f, beta = 0.0f;
  hipblasSetPointerMode(handle, HIPBLAS_POINTER_MODE_HOST);
  hipblasStatus_t status = hipblasGemmStridedBatchedEx(
      handle, HIPBLAS_OP_T, HIPBLAS_OP_N, m, n, k, &alpha, a, HIP_R_16F, k, (long long)m * k, b, HIP_R_16F, k,
      (long long)n * k, &beta, c, HIP_R_16F, m, (long long)m * n, count, HIPBLAS_COMPUTE_32F, HIPBLAS_GEMM_DEFAULT);
  return status;
}

float dot(hipblasHandle_t handle, const float* x, const float* y, int n) {
  float result = 0.0f;
  if (hipblasSdot(handle, n, x, 1, y, 1, &result) != HIPBLAS_STATUS_SUCCESS) return -1.0f;
  int index = 0;
  hipblasIsamax(handle, n, x, 1, &index);
  hipblasSscal(handle, n, &result, const_cast<float*>(x), 1);
  return result + (float)index;
}
