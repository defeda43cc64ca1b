// Stub for the compile check: hipRAND in device code.
#pragma once
#include <hiprand/hiprand.h>
#define VERMILION_STATE(name)  \
  struct name { unsigned s; }; \
  typedef name name##_t;
VERMILION_STATE(hiprandStateXORWOW)
VERMILION_STATE(hiprandStatePhilox4_32_10)
VERMILION_STATE(hiprandStateMRG32k3a)
VERMILION_STATE(hiprandStateSobol32)
VERMILION_STATE(hiprandStateSobol64)
VERMILION_STATE(hiprandStateScrambledSobol32)
VERMILION_STATE(hiprandStateScrambledSobol64)
VERMILION_STATE(hiprandStateMtgp32)
#undef VERMILION_STATE
typedef hiprandStateXORWOW hiprandState;
typedef hiprandStateXORWOW hiprandState_t;
#define VD template <class S> __device__ inline
VD void hiprand_init(unsigned long long seed, unsigned long long, unsigned long long, S* s) { s->s = (unsigned)seed; }
VD void skipahead(unsigned long long n, S* s) { s->s += (unsigned)n; }
VD unsigned hiprand(S* s) { return s->s = s->s * 1664525u + 1013904223u; }
VD uint4 hiprand4(S* s) { return uint4(hiprand(s), hiprand(s), hiprand(s), hiprand(s)); }
VD float hiprand_uniform(S* s) { return hiprand(s) * 2.3283064e-10f; }
VD float4 hiprand_uniform4(S* s) { return float4(hiprand_uniform(s), hiprand_uniform(s), hiprand_uniform(s), hiprand_uniform(s)); }
VD double hiprand_uniform_double(S* s) { return hiprand(s) * 2.3283064365386963e-10; }
VD double2 hiprand_uniform2_double(S* s) { return double2(hiprand_uniform_double(s), hiprand_uniform_double(s)); }
VD double4 hiprand_uniform4_double(S* s) { return double4(hiprand_uniform_double(s), 0, 0, 0); }
VD float hiprand_normal(S* s) { return hiprand_uniform(s); }
VD float2 hiprand_normal2(S* s) { return float2(hiprand_normal(s), hiprand_normal(s)); }
VD float4 hiprand_normal4(S* s) { return hiprand_uniform4(s); }
VD double hiprand_normal_double(S* s) { return hiprand_uniform_double(s); }
VD double2 hiprand_normal2_double(S* s) { return hiprand_uniform2_double(s); }
VD double4 hiprand_normal4_double(S* s) { return hiprand_uniform4_double(s); }
VD float hiprand_log_normal(S* s, float m, float d) { return m + d * hiprand_uniform(s); }
VD float2 hiprand_log_normal2(S* s, float m, float d) { return float2(hiprand_log_normal(s, m, d), hiprand_log_normal(s, m, d)); }
VD float4 hiprand_log_normal4(S* s, float m, float d) { return float4(hiprand_log_normal(s, m, d), 0, 0, 0); }
VD double hiprand_log_normal_double(S* s, double m, double d) { return m + d * hiprand_uniform_double(s); }
VD unsigned hiprand_poisson(S* s, double) { return hiprand(s); }
VD uint4 hiprand_poisson4(S* s, double) { return hiprand4(s); }
VD unsigned hiprand_discrete(S* s, hiprandDiscreteDistribution_t) { return hiprand(s); }
VD uint4 hiprand_discrete4(S* s, hiprandDiscreteDistribution_t) { return hiprand4(s); }
#undef VD
