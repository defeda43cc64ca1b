#include <cuda_runtime.h>

texture<float, 2, cudaReadModeElementType> image;

__global__ void sample(cudaTextureObject_t object, float* out, int width) {
  int x = threadIdx.x, y = blockIdx.x;
  out[y * width + x] = tex2D<float>(object, x + 0.5f, y + 0.5f);
}

cudaTextureObject_t make(cudaArray_t array) {
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc description = {};
  description.addressMode[0] = cudaAddressModeClamp;
  description.filterMode = cudaFilterModeLinear;
  description.readMode = cudaReadModeElementType;
  cudaTextureObject_t object = 0;
  cudaCreateTextureObject(&object, &resource, &description, nullptr);
  return object;
}
