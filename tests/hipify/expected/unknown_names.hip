#include <hip/hip_runtime.h>
#include <cuda/pipeline>
#include <cutlass/cutlass.h>

#define cudaMyMacro(x) (x)

int cudaHelper(int x) { return cudaMyMacro(x); }

// Hopper's clusters, access to L2, and a name that nobody knows.
hipError_t configure(hipStream_t stream) {
  hipLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  cudaCtxResetPersistingL2Cache();
  cudaDeviceSetFlux(3);
  return cudaHelper(1) ? cudaErrorNotYetImplemented : hipSuccess;
}
