// Types of the driver interface, which are HIP's by their letters, and functions that link programs.
#include <cuda.h>

void CUDA_CB done(void* data) { *static_cast<cuuint64_t*>(data) = 1; }

CUresult run(CUstream stream, void* image, size_t size, cuuint64_t* flag) {
  CUlinkState state;
  CUmodule module;
  void* linked;
  size_t linked_size;
  cuLinkCreate(0, nullptr, nullptr, &state);
  cuLinkAddData(state, CU_JIT_INPUT_CUBIN, image, size, "kernels", 0, nullptr, nullptr);
  cuLinkComplete(state, &linked, &linked_size);
  cuModuleLoadData(&module, linked);
  cuLinkDestroy(state);

  CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = here;
  CUmemAllocationHandleType handle = CU_MEM_HANDLE_TYPE_NONE;
  CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUstreamCaptureStatus status;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUgraphNodeType kind = CU_GRAPH_NODE_TYPE_KERNEL;
  CUmem_advise advice = CU_MEM_ADVISE_SET_READ_MOSTLY;
  cuStreamIsCapturing(stream, &status);
  int supported = 0;
  cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 0);
  CUresult result = cuLaunchHostFunc(stream, done, flag);
  return (int)handle + access + mode + kind + advice + supported > 0 ? result : CUDA_ERROR_UNKNOWN;
}
