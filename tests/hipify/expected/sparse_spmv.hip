#include <hip/hip_runtime.h>
#include <hipsparse/hipsparse.h>

hipsparseStatus_t spmv(hipsparseHandle_t handle, int* offsets, int* columns, float* values, float* x, float* y, int rows,
                      int width, int nonzeros) {
  hipsparseSpMatDescr_t matrix;
  hipsparseDnVecDescr_t in, out;
  const float alpha = 1.0f, beta = 0.0f;
  size_t bytes = 0;
  void* buffer = nullptr;
  hipsparseCreateCsr(&matrix, rows, width, nonzeros, offsets, columns, values, HIPSPARSE_INDEX_32I, HIPSPARSE_INDEX_32I,
                    HIPSPARSE_INDEX_BASE_ZERO, HIP_R_32F);
  hipsparseCreateDnVec(&in, width, x, HIP_R_32F);
  hipsparseCreateDnVec(&out, rows, y, HIP_R_32F);
  hipsparseSpMV_bufferSize(handle, HIPSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, in, &beta, out, HIP_R_32F,
                          HIPSPARSE_SPMV_ALG_DEFAULT, &bytes);
  hipMalloc(&buffer, bytes);
  hipsparseStatus_t status = hipsparseSpMV(handle, HIPSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, in, &beta, out,
                                         HIP_R_32F, HIPSPARSE_SPMV_ALG_DEFAULT, buffer);
  hipFree(buffer);
  hipsparseDestroySpMat(matrix);
  hipsparseDestroyDnVec(in);
  hipsparseDestroyDnVec(out);
  return status;
}
