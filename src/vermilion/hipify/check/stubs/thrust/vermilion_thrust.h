// Stub for the compile check: rocThrust.
#pragma once
#include <hip/hip_runtime.h>
#include <stddef.h>
namespace thrust {
template <class T> struct device_ptr {
  T* p;
  device_ptr(T* q = nullptr) : p(q) {}
  T* get() const { return p; }
  T& operator*() const { return *p; }
  T& operator[](size_t i) const { return p[i]; }
  device_ptr operator+(ptrdiff_t n) const { return device_ptr(p + n); }
  ptrdiff_t operator-(const device_ptr& o) const { return p - o.p; }
};
template <class T> struct vermilion_vector {
  typedef device_ptr<T> iterator;
  vermilion_vector() {}
  explicit vermilion_vector(size_t) {}
  vermilion_vector(size_t, const T&) {}
  template <class I> vermilion_vector(I, I) {}
  template <class V> vermilion_vector(const V&) {}
  template <class V> vermilion_vector& operator=(const V&) { return *this; }
  iterator begin() const { return iterator(p); }
  iterator end() const { return iterator(p); }
  T* data() const { return p; }
  size_t size() const { return 0; }
  void resize(size_t) {}
  T& operator[](size_t i) const { return p[i]; }
  T* p = nullptr;
};
template <class T> struct device_vector : vermilion_vector<T> { using vermilion_vector<T>::vermilion_vector; };
template <class T> struct host_vector : vermilion_vector<T> { using vermilion_vector<T>::vermilion_vector; };
template <class T> device_ptr<T> device_pointer_cast(T* p) { return device_ptr<T>(p); }
template <class T> T* raw_pointer_cast(T* p) { return p; }
template <class T> T* raw_pointer_cast(device_ptr<T> p) { return p.p; }
template <class A, class B> struct pair { A first; B second; };
#define VERMILION_FUNCTOR(name, e) template <class T = void> struct name { __host__ __device__ auto operator()(const T& a, const T& b) const { return e; } };
VERMILION_FUNCTOR(plus, a + b) VERMILION_FUNCTOR(minus, a - b) VERMILION_FUNCTOR(multiplies, a * b)
VERMILION_FUNCTOR(maximum, a < b ? b : a) VERMILION_FUNCTOR(minimum, b < a ? b : a)
VERMILION_FUNCTOR(less, a < b) VERMILION_FUNCTOR(greater, b < a) VERMILION_FUNCTOR(equal_to, a == b)
#undef VERMILION_FUNCTOR
struct vermilion_policy { template <class X> vermilion_policy on(X) const { return {}; } };
namespace hip { static const vermilion_policy par{}; static const vermilion_policy par_nosync{}; }
static const vermilion_policy device{}; static const vermilion_policy host{};
template <class T> struct counting_iterator { T v; T operator*() const { return v; } counting_iterator operator+(ptrdiff_t n) const { return {(T)(v + n)}; } };
template <class T> counting_iterator<T> make_counting_iterator(T v) { return {v}; }
#define P const vermilion_policy&
template <class I, class T> void fill(I, I, const T&) {}
template <class I, class T> void fill(P, I, I, const T&) {}
template <class I> void sequence(I, I) {}
template <class I> void sequence(P, I, I) {}
template <class I> void sort(I, I) {}
template <class I> void sort(P, I, I) {}
template <class I, class F> void sort(I, I, F) {}
template <class K, class V> void sort_by_key(K, K, V) {}
template <class K, class V> void sort_by_key(P, K, K, V) {}
template <class K, class V, class F> void sort_by_key(P, K, K, V, F) {}
template <class I, class O> O copy(I, I, O o) { return o; }
template <class I, class O> O copy(P, I, I, O o) { return o; }
template <class I, class O, class F> O transform(I, I, O o, F) { return o; }
template <class I, class O, class F> O transform(P, I, I, O o, F) { return o; }
template <class I, class J, class O, class F> O transform(I, I, J, O o, F) { return o; }
template <class I, class J, class O, class F> O transform(P, I, I, J, O o, F) { return o; }
template <class I, class F> void for_each(I, I, F) {}
template <class I, class F> void for_each(P, I, I, F) {}
template <class I, class T> T reduce(I, I, T t) { return t; }
template <class I, class T, class F> T reduce(I, I, T t, F) { return t; }
template <class I, class T, class F> T reduce(P, I, I, T t, F) { return t; }
template <class I, class U, class T, class F> T transform_reduce(I, I, U, T t, F) { return t; }
template <class I, class O> O inclusive_scan(I, I, O o) { return o; }
template <class I, class O> O exclusive_scan(I, I, O o) { return o; }
template <class I, class O> O exclusive_scan(P, I, I, O o) { return o; }
template <class I> I max_element(I i, I) { return i; }
template <class I> I unique(I i, I) { return i; }
#undef P
}  // namespace thrust
