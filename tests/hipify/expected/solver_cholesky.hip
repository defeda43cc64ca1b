#include <hip/hip_runtime.h>
#include <hipsolver/hipsolver.h>

int factor(hipsolverDnHandle_t handle, float* a, int n, int* info) {
  int size = 0;
  float* work = nullptr;
  hipsolverDnSpotrf_bufferSize(handle, HIPBLAS_FILL_MODE_LOWER, n, a, n, &size);
  hipMalloc((void**)&work, size * sizeof(float));
  hipsolverStatus_t status = hipsolverDnSpotrf(handle, HIPBLAS_FILL_MODE_LOWER, n, a, n, work, size, info);
  hipFree(work);
  return status == HIPSOLVER_STATUS_SUCCESS ? 0 : 1;
}
