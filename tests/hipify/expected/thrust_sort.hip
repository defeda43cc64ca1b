#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/functional.h>
#include <thrust/host_vector.h>
#include <thrust/sort.h>
#include <thrust/system/hip/execution_policy.h>
#include <thrust/transform_reduce.h>

struct Square {
  __host__ __device__ float operator()(float x) const { return x * x; }
};

float norm(const thrust::host_vector<float>& host, hipStream_t stream) {
  thrust::device_vector<float> values = host;
  thrust::device_vector<int> order(values.size());
  thrust::sequence(thrust::hip::par.on(stream), order.begin(), order.end());
  thrust::sort_by_key(thrust::hip::par.on(stream), values.begin(), values.end(), order.begin());
  return thrust::transform_reduce(values.begin(), values.end(), Square(), 0.0f, thrust::plus<float>());
}
