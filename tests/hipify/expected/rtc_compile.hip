#include <hip/hip_runtime.h>
#include <hip/hiprtc.h>
#include <string>

std::string compile(const char* source) {
  hiprtcProgram program;
  if (hiprtcCreateProgram(&program, source, "kernel.cu", 0, nullptr, nullptr) != HIPRTC_SUCCESS) return "";
  const char* options[] = {"-O3"};
  hiprtcResult status = hiprtcCompileProgram(program, 1, options);
  size_t size = 0;
  hiprtcGetProgramLogSize(program, &size);
  std::string log(size, '\0');
  hiprtcGetProgramLog(program, &log[0]);
  hiprtcDestroyProgram(&program);
  return status == HIPRTC_SUCCESS ? log : hiprtcGetErrorString(status);
}
