#include <cuda_runtime.h>
#include <cusolverDn.h>

int factor(cusolverDnHandle_t handle, float* a, int n, int* info) {
  int size = 0;
  float* work = nullptr;
  cusolverDnSpotrf_bufferSize(handle, CUBLAS_FILL_MODE_LOWER, n, a, n, &size);
  cudaMalloc((void**)&work, size * sizeof(float));
  cusolverStatus_t status = cusolverDnSpotrf(handle, CUBLAS_FILL_MODE_LOWER, n, a, n, work, size, info);
  cudaFree(work);
  return status == CUSOLVER_STATUS_SUCCESS ? 0 : 1;
}
