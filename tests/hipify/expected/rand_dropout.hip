#include <hip/hip_runtime.h>
#include <hiprand/hiprand_kernel.h>

__global__ void dropout(const float4* in, float4* out, unsigned char* kept, int n, float rate, unsigned long long seed) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  hiprandStatePhilox4_32_10_t state;
  hiprand_init(seed, i, 0, &state);
  if (i >= n) return;
  float4 random = hiprand_uniform4(&state);
  float4 value = in[i];
  float scale = 1.0f / (1.0f - rate);
  value.x = random.x > rate ? value.x * scale : 0.0f;
  value.y = random.y > rate ? value.y * scale : 0.0f;
  value.z = random.z > rate ? value.z * scale : 0.0f;
  value.w = random.w > rate ? value.w * scale : 0.0f;
  out[i] = value;
  kept[i] = (unsigned char)((random.x > rate) | (random.y > rate) << 1 | (random.z > rate) << 2 | (random.w > rate) << 3);
}

__global__ void walk(hiprandState* states, float* position) {
  hiprandState local = states[threadIdx.x];
  position[threadIdx.x] += hiprand_normal(&local) * (hiprand(&local) & 1u);
  states[threadIdx.x] = local;
}

void run(const float4* in, float4* out, unsigned char* kept, hiprandState* states, float* position, int n) {
  dropout<<<(n + 127) / 128, 128>>>(in, out, kept, n, 0.1f, 42ull);
  walk<<<1, 64>>>(states, position);
}
