#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#include <hip/hip_math_constants.h>

template <int THREADS>
__global__ void __launch_bounds__(THREADS, ((4) * (THREADS) + 255) / 256) softmax(const half* __restrict__ in, half* __restrict__ out, int columns) {
  __shared__ float shared[THREADS];
  const half* row = in + (size_t)blockIdx.x * columns;
  float best = -HIP_INF_F;
  for (int i = threadIdx.x; i < columns; i += THREADS) best = fmaxf(best, __half2float(__ldg(row + i)));
  shared[threadIdx.x] = best;
  __syncthreads();
  for (int step = THREADS / 2; step > 0; step >>= 1) {
    if (threadIdx.x < step) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + step]);
    __syncthreads();
  }
  best = shared[0];
  __syncthreads();
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += THREADS) sum += __expf(__half2float(row[i]) - best);
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (int step = THREADS / 2; step > 0; step >>= 1) {
    if (threadIdx.x < step) shared[threadIdx.x] += shared[threadIdx.x + step];
    __syncthreads();
  }
  sum = shared[0];
  for (int i = threadIdx.x; i < columns; i += THREADS)
    out[(size_t)blockIdx.x * columns + i] = __float2half(__expf(__half2float(row[i]) - best) / sum);
}

__global__ void scale2(half2* data, half2 by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] = __hfma2(data[i], by, __float2half2_rn(0.0f));
}

hipError_t run(const half* in, half* out, int rows, int columns, hipStream_t stream) {
  softmax<256><<<rows, 256, 0, stream>>>(in, out, columns);
  scale2<<<rows, 128, 0, stream>>>(reinterpret_cast<half2*>(out), __float2half2_rn(1.0f), columns / 2);
  return hipPeekAtLastError();
}
