#include <hip/hip_runtime.h>

__global__ void fast(const float* __restrict__ in, float* out, const int* bytes, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = *(in + i) + *(in + i);
  float s, c;
  __sincosf(x, &s, &c);
  out[i] = __fdividef(__sinf(x) * s + c, __logf(x + 1.0f)) + __saturatef(x) + __powf(x, 2.0f) + __frcp_rn(x);
  out[i] += __int_as_float(__float_as_int(x)) + __umulhi(3u, 5u) + __clz(i) + __brev(i) + __byte_perm(i, i, 0x3210);
}

__global__ void spin(volatile int* flag, int* out, int a, int b) {
  while (*flag == 0) __nanosleep(100);
  *out = __dp4a(a, b, 0);
}

void run(const float* in, float* out, const int* bytes, int n) { fast<<<(n + 255) / 256, 256>>>(in, out, bytes, n); }
