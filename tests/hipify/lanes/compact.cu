// block: 128, 1
__global__ void kernel(const float* in, float* out) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  bool keep = in[threadIdx.x] > 0.5f;
  unsigned kept = __ballot_sync(0xffffffff, keep);
  int lane = threadIdx.x & 31;
  int total = __popc(kept);
  if (lane == 0) atomicAdd(&count, total);
  __syncthreads();
  if (threadIdx.x == 0) out[0] = count;
}
