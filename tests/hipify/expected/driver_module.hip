// The driver interface: load a module, launch a kernel of it.
#include <hip/hip_runtime.h>

hipError_t run(const char* image, hipDeviceptr_t out, int n) {
  hipDevice_t device;
  hipCtx_t context;
  hipModule_t module;
  hipFunction_t kernel;
  hipStream_t stream;
  if (hipInit(0) != hipSuccess) return hipErrorNotInitialized;
  hipDeviceGet(&device, 0);
  hipCtxCreate(&context, 0, device);
  hipModuleLoadData(&module, image);
  hipModuleGetFunction(&kernel, module, "fill");
  hipStreamCreateWithFlags(&stream, hipStreamNonBlocking);
  hipDeviceptr_t scratch;
  hipMalloc(&scratch, n * sizeof(float));
  hipMemcpyDtoD(scratch, out, n * sizeof(float));
  hipMemsetD32Async(scratch, 0, n, stream);
  void* arguments[] = {&out, &n};
  hipError_t status = hipModuleLaunchKernel(kernel, (n + 255) / 256, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr);
  int registers = 0;
  hipFuncGetAttribute(&registers, HIP_FUNC_ATTRIBUTE_NUM_REGS, kernel);
  hipStreamSynchronize(stream);
  hipFree(scratch);
  hipModuleUnload(module);
  hipCtxDestroy(context);
  return status;
}
