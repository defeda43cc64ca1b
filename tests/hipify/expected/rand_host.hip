#include <hip/hip_runtime.h>
#include <hiprand/hiprand.h>

hiprandStatus_t fill(float* uniform, float* normal, size_t n, hipStream_t stream) {
  hiprandGenerator_t generator;
  hiprandStatus_t status = hiprandCreateGenerator(&generator, HIPRAND_RNG_PSEUDO_PHILOX4_32_10);
  if (status != HIPRAND_STATUS_SUCCESS) return status;
  hiprandSetStream(generator, stream);
  hiprandSetPseudoRandomGeneratorSeed(generator, 1234ULL);
  hiprandGenerateUniform(generator, uniform, n);
  hiprandGenerateNormal(generator, normal, n, 0.0f, 1.0f);
  return hiprandDestroyGenerator(generator);
}
