#include <hip/hip_runtime.h>
#include <hipfft/hipfft.h>

__global__ void multiply(hipfftComplex* spectrum, const hipfftComplex* filter, int n, float scale) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  hipfftComplex a = spectrum[i], b = filter[i];
  spectrum[i].x = (a.x * b.x - a.y * b.y) * scale;
  spectrum[i].y = (a.x * b.y + a.y * b.x) * scale;
}

hipfftResult filter(hipfftReal* signal, hipfftComplex* spectrum, const hipfftComplex* response, int n, int batch, hipStream_t stream) {
  hipfftHandle forward, back;
  hipfftResult status = hipfftPlan1d(&forward, n, HIPFFT_R2C, batch);
  if (status != HIPFFT_SUCCESS) return status;
  hipfftPlan1d(&back, n, HIPFFT_C2R, batch);
  hipfftSetStream(forward, stream);
  hipfftSetStream(back, stream);
  hipfftExecR2C(forward, signal, spectrum);
  multiply<<<(n / 2 + 256) / 256, 256, 0, stream>>>(spectrum, response, n / 2 + 1, 1.0f / n);
  hipfftExecC2R(back, spectrum, signal);
  hipfftDestroy(forward);
  return hipfftDestroy(back);
}
