#include <hip/hip_fp16.h>
#include <rocwmma/rocwmma.hpp>

namespace wmma = rocwmma;

__global__ void gemm16(const half* a, const half* b, float* c, int n) {
  rocwmma::fragment<rocwmma::matrix_a, 16, 16, 16, half, rocwmma::row_major> left;
  rocwmma::fragment<rocwmma::matrix_b, 16, 16, 16, half, rocwmma::col_major> right;
  rocwmma::fragment<rocwmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int k = 0; k < n; k += 16) {
    rocwmma::load_matrix_sync(left, a + k, n);
    rocwmma::load_matrix_sync(right, b + k, n);
    rocwmma::mma_sync(sum, left, right, sum);
  }
  rocwmma::store_matrix_sync(c, sum, n, rocwmma::mem_row_major);
}

void launch(const half* a, const half* b, float* c, int n) { gemm16<<<1, 32>>>(a, b, c, n); }
