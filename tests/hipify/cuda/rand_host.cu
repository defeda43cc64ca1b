#include <cuda_runtime.h>
#include <curand.h>

curandStatus_t fill(float* uniform, float* normal, size_t n, cudaStream_t stream) {
  curandGenerator_t generator;
  curandStatus_t status = curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_PHILOX4_32_10);
  if (status != CURAND_STATUS_SUCCESS) return status;
  curandSetStream(generator, stream);
  curandSetPseudoRandomGeneratorSeed(generator, 1234ULL);
  curandGenerateUniform(generator, uniform, n);
  curandGenerateNormal(generator, normal, n, 0.0f, 1.0f);
  return curandDestroyGenerator(generator);
}
