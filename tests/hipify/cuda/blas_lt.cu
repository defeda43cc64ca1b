#include <cublasLt.h>
#include <cuda_runtime.h>

bool matmul(cublasLtHandle_t light, const float* a, const float* b, float* c, int m, int n, int k, cudaStream_t stream) {
  cublasLtMatmulDesc_t description;
  cublasLtMatrixLayout_t a_layout, b_layout, c_layout;
  cublasOperation_t transposed = CUBLAS_OP_T;
  const float alpha = 1.0f, beta = 0.0f;
  cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
  cublasLtMatrixLayoutCreate(&a_layout, CUDA_R_32F, k, m, k);
  cublasLtMatrixLayoutCreate(&b_layout, CUDA_R_32F, k, n, k);
  cublasLtMatrixLayoutCreate(&c_layout, CUDA_R_32F, m, n, m);
  cublasStatus_t status = cublasLtMatmul(light, description, &alpha, a, a_layout, b, b_layout, &beta, c, c_layout, c,
                                         c_layout, nullptr, nullptr, 0, stream);
  cublasLtMatrixLayoutDestroy(a_layout);
  cublasLtMatmulDescDestroy(description);
  return status == CUBLAS_STATUS_SUCCESS;
}
