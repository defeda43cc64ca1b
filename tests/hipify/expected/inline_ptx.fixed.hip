#include <hip/hip_runtime.h>

__device__ unsigned lane_id() {
  unsigned lane;
  lane = (__lane_id() & 31);
  return lane;
}

__device__ unsigned long long nanoseconds() {
  unsigned long long time;
  time = wall_clock64();
  return time;
}

__device__ int load_streaming(const int* p) {
  int value;
  asm volatile("ld.global.cs.s32 %0, [%1];" : "=r"(value) : "l"(p));
  return value;
}

__global__ void publish(int* flag, int* data, unsigned long long* when) {
  data[threadIdx.x] = (int)lane_id();
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    *flag = 1;
    *when = nanoseconds();
  }
}

void run(int* flag, int* data, unsigned long long* when) { publish<<<1, 64>>>(flag, data, when); }
