#include <hip/hip_runtime.h>

texture<float, 2, hipReadModeElementType> image;

__global__ void sample(hipTextureObject_t object, float* out, int width) {
  int x = threadIdx.x, y = blockIdx.x;
  out[y * width + x] = tex2D<float>(object, x + 0.5f, y + 0.5f);
}

hipTextureObject_t make(hipArray_t array) {
  hipResourceDesc resource = {};
  resource.resType = hipResourceTypeArray;
  resource.res.array.array = array;
  hipTextureDesc description = {};
  description.addressMode[0] = hipAddressModeClamp;
  description.filterMode = hipFilterModeLinear;
  description.readMode = hipReadModeElementType;
  hipTextureObject_t object = 0;
  hipCreateTextureObject(&object, &resource, &description, nullptr);
  return object;
}
