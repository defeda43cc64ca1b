#include <cuda_runtime.h>
#include <cusparse.h>

cusparseStatus_t spmv(cusparseHandle_t handle, int* offsets, int* columns, float* values, float* x, float* y, int rows,
                      int width, int nonzeros) {
  cusparseSpMatDescr_t matrix;
  cusparseDnVecDescr_t in, out;
  const float alpha = 1.0f, beta = 0.0f;
  size_t bytes = 0;
  void* buffer = nullptr;
  cusparseCreateCsr(&matrix, rows, width, nonzeros, offsets, columns, values, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                    CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F);
  cusparseCreateDnVec(&in, width, x, CUDA_R_32F);
  cusparseCreateDnVec(&out, rows, y, CUDA_R_32F);
  cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, in, &beta, out, CUDA_R_32F,
                          CUSPARSE_SPMV_ALG_DEFAULT, &bytes);
  cudaMalloc(&buffer, bytes);
  cusparseStatus_t status = cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, in, &beta, out,
                                         CUDA_R_32F, CUSPARSE_SPMV_ALG_DEFAULT, buffer);
  cudaFree(buffer);
  cusparseDestroySpMat(matrix);
  cusparseDestroyDnVec(in);
  cusparseDestroyDnVec(out);
  return status;
}
