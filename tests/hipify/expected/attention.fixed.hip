// One head of attention with an online softmax; K and V pass through shared memory.
#include <hip/hip_runtime.h>
#include <float.h>

constexpr int HEAD = 64;
constexpr int KEYS = 64;
constexpr unsigned kFullMask = 0xffffffff;
static constexpr int kWarpSize = 32;

__device__ float warp_all_sum(float v) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask >>= 1) v += __shfl_xor_sync(__activemask(), v, mask, 32);
  return v;
}

__global__ void attention(const float* q, const float* k, const float* v, float* out, int sequence, float scale) {
  extern __shared__ float shared[];
  float* keys = shared;
  float* values = shared + KEYS * HEAD;
  const int row = blockIdx.x * (blockDim.x / kWarpSize) + threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  float accumulator[HEAD / kWarpSize] = {};
  float best = -FLT_MAX, sum = 0.0f;
  for (int first = 0; first < sequence; first += KEYS) {
    for (int i = threadIdx.x; i < KEYS * HEAD; i += blockDim.x) {
      keys[i] = first * HEAD + i < sequence * HEAD ? k[first * HEAD + i] : 0.0f;
      values[i] = first * HEAD + i < sequence * HEAD ? v[first * HEAD + i] : 0.0f;
    }
    __syncthreads();
    for (int j = 0; j < KEYS && first + j < sequence; ++j) {
      float dot = 0.0f;
      for (int d = lane; d < HEAD; d += kWarpSize) dot += q[row * HEAD + d] * keys[j * HEAD + d];
      dot = warp_all_sum(dot) * scale;
      float next = fmaxf(best, dot), shrink = __expf(best - next), weight = __expf(dot - next);
      sum = sum * shrink + weight;
      for (int d = 0; d < HEAD / kWarpSize; ++d)
        accumulator[d] = accumulator[d] * shrink + weight * values[j * HEAD + d * kWarpSize + lane];
      best = next;
    }
    __syncthreads();
  }
  for (int d = 0; d < HEAD / kWarpSize; ++d) out[row * HEAD + d * kWarpSize + lane] = accumulator[d] / sum;
}

hipError_t launch(const float* q, const float* k, const float* v, float* out, int sequence, hipStream_t stream) {
  const int bytes = 2 * KEYS * HEAD * sizeof(float);
  hipError_t status = hipFuncSetAttribute(reinterpret_cast<const void*>(attention), hipFuncAttributeMaxDynamicSharedMemorySize, 96 * 1024);
  if (status != hipSuccess) return status;
  attention<<<sequence / 4, 128, bytes, stream>>>(q, k, v, out, sequence, 0.125f);
  return hipGetLastError();
}
