#include <cuda_runtime.h>
#include <cufft.h>

__global__ void multiply(cufftComplex* spectrum, const cufftComplex* filter, int n, float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  cufftComplex a = spectrum[i], b = filter[i];
  spectrum[i].x = (a.x * b.x - a.y * b.y) * scale;
  spectrum[i].y = (a.x * b.y + a.y * b.x) * scale;
}

cufftResult filter(cufftReal* signal, cufftComplex* spectrum, const cufftComplex* response, int n, int batch, cudaStream_t stream) {
  cufftHandle forward, back;
  cufftResult status = cufftPlan1d(&forward, n, CUFFT_R2C, batch);
  if (status != CUFFT_SUCCESS) return status;
  cufftPlan1d(&back, n, CUFFT_C2R, batch);
  cufftSetStream(forward, stream);
  cufftSetStream(back, stream);
  cufftExecR2C(forward, signal, spectrum);
  multiply<<<(n / 2 + 256) / 256, 256, 0, stream>>>(spectrum, response, n / 2 + 1, 1.0f / n);
  cufftExecC2R(back, spectrum, signal);
  cufftDestroy(forward);
  return cufftDestroy(back);
}
