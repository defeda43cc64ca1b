#include <hip/hip_runtime.h>

__device__ unsigned lane_id() {
  unsigned lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

__device__ unsigned long long nanoseconds() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__device__ int load_streaming(const int* p) {
  int value;
  asm volatile("ld.global.cs.s32 %0, [%1];" : "=r"(value) : "l"(p));
  return value;
}

__global__ void publish(int* flag, int* data, unsigned long long* when) {
  data[threadIdx.x] = (int)lane_id();
  asm volatile("membar.sys;" ::: "memory");
  __asm__ __volatile__("bar.sync 0;");
  if (threadIdx.x == 0) {
    *flag = 1;
    *when = nanoseconds();
  }
}

void run(int* flag, int* data, unsigned long long* when) { publish<<<1, 64>>>(flag, data, when); }
