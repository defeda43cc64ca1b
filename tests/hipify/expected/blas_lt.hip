#include <hipblaslt/hipblaslt.h>
#include <hip/hip_runtime.h>

bool matmul(hipblasLtHandle_t light, const float* a, const float* b, float* c, int m, int n, int k, hipStream_t stream) {
  hipblasLtMatmulDesc_t description;
  hipblasLtMatrixLayout_t a_layout, b_layout, c_layout;
  hipblasOperation_t transposed = HIPBLAS_OP_T;
  const float alpha = 1.0f, beta = 0.0f;
  hipblasLtMatmulDescCreate(&description, HIPBLAS_COMPUTE_32F, HIP_R_32F);
  hipblasLtMatmulDescSetAttribute(description, HIPBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
  hipblasLtMatrixLayoutCreate(&a_layout, HIP_R_32F, k, m, k);
  hipblasLtMatrixLayoutCreate(&b_layout, HIP_R_32F, k, n, k);
  hipblasLtMatrixLayoutCreate(&c_layout, HIP_R_32F, m, n, m);
  hipblasStatus_t status = hipblasLtMatmul(light, description, &alpha, a, a_layout, b, b_layout, &beta, c, c_layout, c,
                                         c_layout, nullptr, nullptr, 0, stream);
  hipblasLtMatrixLayoutDestroy(a_layout);
  hipblasLtMatmulDescDestroy(description);
  return status == HIPBLAS_STATUS_SUCCESS;
}
