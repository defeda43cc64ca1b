// Types of the driver interface, which are HIP's by their letters, and functions that link programs.
#include <hip/hip_runtime.h>

void  done(void* data) { *static_cast<uint64_t*>(data) = 1; }

hipError_t run(hipStream_t stream, void* image, size_t size, uint64_t* flag) {
  hipLinkState_t state;
  hipModule_t module;
  void* linked;
  size_t linked_size;
  hipLinkCreate(0, nullptr, nullptr, &state);
  hipLinkAddData(state, hipJitInputCubin, image, size, "kernels", 0, nullptr, nullptr);
  hipLinkComplete(state, &linked, &linked_size);
  hipModuleLoadData(&module, linked);
  hipLinkDestroy(state);

  hipMemLocation here = {hipMemLocationTypeDevice, 0};
  hipMemAllocationProp properties = {};
  properties.type = hipMemAllocationTypePinned;
  properties.location = here;
  hipMemAllocationHandleType handle = hipMemHandleTypeNone;
  hipMemAccessFlags access = hipMemAccessFlagsProtReadWrite;
  hipStreamCaptureStatus status;
  hipStreamCaptureMode mode = hipStreamCaptureModeRelaxed;
  hipGraphNodeType kind = hipGraphNodeTypeKernel;
  hipMemoryAdvise advice = hipMemAdviseSetReadMostly;
  hipStreamIsCapturing(stream, &status);
  int supported = 0;
  hipDeviceGetAttribute(&supported, hipDeviceAttributeVirtualMemoryManagementSupported, 0);
  hipError_t result = hipLaunchHostFunc(stream, done, flag);
  return (int)handle + access + mode + kind + advice + supported > 0 ? result : hipErrorUnknown;
}
