#include <hip/hip_runtime.h>
#define CHECKED(call) if ((call) != hipSuccess) return 1
#define ALLOCATE(pointer, n) \
  CHECKED(hipMalloc(&pointer, (n) * sizeof(*pointer))); \
  CHECKED(hipMemset(pointer, 0, (n) * sizeof(*pointer)))
#define KERNEL(name) __global__ void name##_kernel(float* x)

KERNEL(zero) { x[threadIdx.x] = 0.0f; }

/* cudaMalloc in a comment /* that looks nested */
static const char* text = R"cuda(cudaFree("in a raw string") // "
  __shfl_down_sync(0xffffffff, v, 16) )cuda";
static const char* joined = "cudaMem\
cpy";

int run() {
  float* x = nullptr;
  ALLOCATE(x, 1'024);
  zero_kernel<<<1, 1'024>>>(x);
  CHECKED(hipDeviceSynchronize\
());  // the name goes on in the next line \
     and so does this comment with cudaFree
  CHECKED(hipFree(x)); return text[0] == joined[0];
}
