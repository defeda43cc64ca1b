// Stub for the compile check: complex numbers of rocThrust.
#pragma once
#include <complex>
#include <hip/hip_runtime.h>
#define VERMILION_HD __host__ __device__
namespace thrust {
template <class T> struct complex {
  using value_type = T;
  VERMILION_HD complex(const T& re = T(), const T& im = T()) : re_(re), im_(im) {}
  template <class U> VERMILION_HD complex(const complex<U>& z) : re_(z.real()), im_(z.imag()) {}
  template <class U> complex(const std::complex<U>& z) : re_(z.real()), im_(z.imag()) {}
  VERMILION_HD T real() const { return re_; }
  VERMILION_HD T imag() const { return im_; }
  VERMILION_HD void real(T v) { re_ = v; }
  VERMILION_HD void imag(T v) { im_ = v; }
  VERMILION_HD complex& operator+=(const complex& z) { re_ += z.re_; im_ += z.im_; return *this; }
  VERMILION_HD complex& operator-=(const complex& z) { re_ -= z.re_; im_ -= z.im_; return *this; }
  VERMILION_HD complex& operator*=(const complex& z) {
    T re = re_ * z.re_ - im_ * z.im_;
    im_ = re_ * z.im_ + im_ * z.re_;
    re_ = re;
    return *this;
  }
  VERMILION_HD complex& operator/=(const complex& z);
  operator std::complex<T>() const { return {re_, im_}; }
 private:
  T re_, im_;
};
#define VERMILION_BINARY(OP) \
  template <class T> VERMILION_HD complex<T> operator OP(complex<T> a, const complex<T>& b) { return a OP##= b; } \
  template <class T> VERMILION_HD complex<T> operator OP(complex<T> a, const T& b) { return a OP##= complex<T>(b); } \
  template <class T> VERMILION_HD complex<T> operator OP(const T& a, const complex<T>& b) { return complex<T>(a) OP##= b; }
VERMILION_BINARY(+)
VERMILION_BINARY(-)
VERMILION_BINARY(*)
VERMILION_BINARY(/)
#undef VERMILION_BINARY
template <class T> VERMILION_HD complex<T> operator-(const complex<T>& z) { return {-z.real(), -z.imag()}; }
template <class T> VERMILION_HD bool operator==(const complex<T>& a, const complex<T>& b) { return a.real() == b.real() && a.imag() == b.imag(); }
template <class T> VERMILION_HD bool operator!=(const complex<T>& a, const complex<T>& b) { return !(a == b); }
#define VERMILION_UNARY(NAME) template <class T> VERMILION_HD complex<T> NAME(const complex<T>& z);
VERMILION_UNARY(exp) VERMILION_UNARY(log) VERMILION_UNARY(log10) VERMILION_UNARY(sqrt)
VERMILION_UNARY(sin) VERMILION_UNARY(cos) VERMILION_UNARY(tan)
VERMILION_UNARY(sinh) VERMILION_UNARY(cosh) VERMILION_UNARY(tanh)
VERMILION_UNARY(asin) VERMILION_UNARY(acos) VERMILION_UNARY(atan)
VERMILION_UNARY(asinh) VERMILION_UNARY(acosh) VERMILION_UNARY(atanh)
VERMILION_UNARY(conj) VERMILION_UNARY(proj)
#undef VERMILION_UNARY
template <class T> VERMILION_HD T abs(const complex<T>& z);
template <class T> VERMILION_HD T arg(const complex<T>& z);
template <class T> VERMILION_HD T norm(const complex<T>& z);
template <class T> VERMILION_HD complex<T> polar(const T& m, const T& theta = T());
template <class T> VERMILION_HD complex<T> pow(const complex<T>& x, const complex<T>& y);
template <class T> VERMILION_HD complex<T> pow(const complex<T>& x, const T& y);
template <class T> VERMILION_HD complex<T> pow(const T& x, const complex<T>& y);
}  // namespace thrust
#undef VERMILION_HD
