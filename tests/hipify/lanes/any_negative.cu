// block: 128, 1
__global__ void kernel(const float* in, float* out) {
  __shared__ int found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  int any = __any_sync(0xffffffff, in[threadIdx.x] < 0.01f);
  if (threadIdx.x % 32 == 0 && any) found = 1;
  __syncthreads();
  out[threadIdx.x] = found;
}
