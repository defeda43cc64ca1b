#include <cuda_runtime.h>
#include <nvrtc.h>
#include <string>

std::string compile(const char* source) {
  nvrtcProgram program;
  if (nvrtcCreateProgram(&program, source, "kernel.cu", 0, nullptr, nullptr) != NVRTC_SUCCESS) return "";
  const char* options[] = {"-O3"};
  nvrtcResult status = nvrtcCompileProgram(program, 1, options);
  size_t size = 0;
  nvrtcGetProgramLogSize(program, &size);
  std::string log(size, '\0');
  nvrtcGetProgramLog(program, &log[0]);
  nvrtcDestroyProgram(&program);
  return status == NVRTC_SUCCESS ? log : nvrtcGetErrorString(status);
}
