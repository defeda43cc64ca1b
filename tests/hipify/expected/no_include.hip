// nvcc includes its runtime by itself; this file counts on that.
__global__ void fill(int* x, int value) { x[blockIdx.x * blockDim.x + threadIdx.x] = value; }

hipError_t launch(int* x) {
  fill<<<4, 64>>>(x, 7);
  return hipGetLastError();
}
