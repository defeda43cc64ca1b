#include <hip/hip_runtime.h>

#ifdef __HIP_DEVICE_COMPILE__
#define WHERE 1
#else
#define WHERE 0
#endif

__host__ __device__ int where() {
#if defined(__HIP_DEVICE_COMPILE__)
  return 1;
#else
  return 0;
#endif
}

__global__ void add(double* x, double v) {
#if __CUDA_ARCH__ >= 600
  atomicAdd(x, v);
#else
  unsigned long long* address = (unsigned long long*)x;
  unsigned long long old = *address, assumed;
  do {
    assumed = old;
    old = atomicCAS(address, assumed, __double_as_longlong(v + __longlong_as_double(assumed)));
  } while (assumed != old);
#endif
}

#if defined(__HIPCC__) && HIP_VERSION >= 11000
void run(double* x) { add<<<1, 64>>>(x, 1.0 + where()); }
#endif
