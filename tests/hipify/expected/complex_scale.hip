#include <hip/hip_complex.h>
#include <hipblas/hipblas.h>
#include <hip/hip_runtime.h>

__global__ void scale(hipComplex* z, hipFloatComplex by, hipDoubleComplex* w, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  z[i] = hipCmulf(z[i], by);
  w[i] = hipCadd(w[i], make_hipDoubleComplex(hipCrealf(z[i]), hipCimagf(z[i])));
}

void run(hipblasHandle_t handle, hipComplex* z, hipDoubleComplex* w, int n) {
  hipComplex one = make_hipComplex(1.0f, 0.0f);
  scale<<<(n + 255) / 256, 256>>>(z, one, w, n);
  hipblasCscal(handle, n, &one, z, 1);
}
