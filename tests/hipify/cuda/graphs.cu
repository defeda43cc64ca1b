#include <cuda_runtime.h>

__global__ void step(float* x) { x[threadIdx.x] *= 0.5f; }

cudaError_t replay(float* x, int times) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  step<<<1, 128, 0, stream>>>(x);
  step<<<1, 128, 0, stream>>>(x);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&executable, graph, nullptr, nullptr, 0);
  for (int i = 0; i < times; ++i) cudaGraphLaunch(executable, stream);
  cudaStreamSynchronize(stream);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return cudaStreamDestroy(stream);
}
