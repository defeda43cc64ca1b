#include <cuda_fp16.h>
#include <mma.h>

using namespace nvcuda;

__global__ void gemm16(const half* a, const half* b, float* c, int n) {
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> left;
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, half, nvcuda::wmma::col_major> right;
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int k = 0; k < n; k += 16) {
    nvcuda::wmma::load_matrix_sync(left, a + k, n);
    nvcuda::wmma::load_matrix_sync(right, b + k, n);
    nvcuda::wmma::mma_sync(sum, left, right, sum);
  }
  nvcuda::wmma::store_matrix_sync(c, sum, n, nvcuda::wmma::mem_row_major);
}

void launch(const half* a, const half* b, float* c, int n) { gemm16<<<1, 32>>>(a, b, c, n); }
