// Stub for the compile check: rocWMMA.
#pragma once
#include <hip/hip_runtime.h>
namespace rocwmma {
struct matrix_a {}; struct matrix_b {}; struct accumulator {};
struct row_major {}; struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
template <class Use, unsigned M, unsigned N, unsigned K, class T, class Layout = void> struct fragment {
  T x[8];
  static constexpr int num_elements = 8;
};
template <class F, class T> __device__ inline void fill_fragment(F& f, T v) { for (auto& e : f.x) e = v; }
template <class F, class T> __device__ inline void load_matrix_sync(F& f, const T* p, unsigned ld) { f.x[0] = p[ld]; }
template <class F, class T> __device__ inline void load_matrix_sync(F& f, const T* p, unsigned ld, layout_t) { f.x[0] = p[ld]; }
template <class T, class F> __device__ inline void store_matrix_sync(T* p, const F& f, unsigned ld, layout_t) { p[ld] = f.x[0]; }
template <class D, class A, class B, class C> __device__ inline void mma_sync(D& d, const A& a, const B& b, const C& c) { d.x[0] = c.x[0] + (float)a.x[0] * (float)b.x[0]; }
__device__ inline void synchronize_workgroup() { __syncthreads(); }
}  // namespace rocwmma
