#include <hip/hip_runtime.h>

__global__ void step(float* x) { x[threadIdx.x] *= 0.5f; }

hipError_t replay(float* x, int times) {
  hipStream_t stream;
  hipGraph_t graph;
  hipGraphExec_t executable;
  hipStreamCreateWithFlags(&stream, hipStreamNonBlocking);
  hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal);
  step<<<1, 128, 0, stream>>>(x);
  step<<<1, 128, 0, stream>>>(x);
  hipStreamEndCapture(stream, &graph);
  hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0);
  for (int i = 0; i < times; ++i) hipGraphLaunch(executable, stream);
  hipStreamSynchronize(stream);
  hipGraphExecDestroy(executable);
  hipGraphDestroy(graph);
  return hipStreamDestroy(stream);
}
