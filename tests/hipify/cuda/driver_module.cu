// The driver interface: load a module, launch a kernel of it.
#include <cuda.h>

CUresult run(const char* image, CUdeviceptr out, int n) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction kernel;
  CUstream stream;
  if (cuInit(0) != CUDA_SUCCESS) return CUDA_ERROR_NOT_INITIALIZED;
  cuDeviceGet(&device, 0);
  cuCtxCreate(&context, 0, device);
  cuModuleLoadData(&module, image);
  cuModuleGetFunction(&kernel, module, "fill");
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  CUdeviceptr scratch;
  cuMemAlloc(&scratch, n * sizeof(float));
  cuMemcpyDtoD(scratch, out, n * sizeof(float));
  cuMemsetD32Async(scratch, 0, n, stream);
  void* arguments[] = {&out, &n};
  CUresult status = cuLaunchKernel(kernel, (n + 255) / 256, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr);
  int registers = 0;
  cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel);
  cuStreamSynchronize(stream);
  cuMemFree(scratch);
  cuModuleUnload(module);
  cuCtxDestroy(context);
  return status;
}
