// Activations of whole rows for one instruction set S (see simd.h).
#pragma once
#include "glu_impl.h"
#include "simd.h"

namespace tidemill {

// erfc(z) for z >= 0, as exp(-z^2) t P(t) with t = 1 / (1 + 0.4 z): P is a least-squares fit of degree 8 to
// erfc(z) exp(z^2) / t, within 7e-8 of it for z up to 10; beyond, exp(-z^2) is 0.
template <class S>
TIDEMILL_INLINE typename S::V erfc_of_positive(typename S::V z) {
  using V = typename S::V;
  const V one = S::set(1.0f);
  const V t = S::div(one, S::fma(z, S::set(0.4f), one));
  V p = S::set(0.041941803417f);
  p = S::fma(p, t, S::set(-0.143589129706f));
  p = S::fma(p, t, S::set(0.090559442441f));
  p = S::fma(p, t, S::set(0.080683572194f));
  p = S::fma(p, t, S::set(0.084602700975f));
  p = S::fma(p, t, S::set(0.191415135654f));
  p = S::fma(p, t, S::set(0.202369641083f));
  p = S::fma(p, t, S::set(0.226379132800f));
  p = S::fma(p, t, S::set(0.225637767600f));
  return S::mul(S::mul(p, t), simd::exp<S>(S::sub(S::zero(), S::mul(z, z))));
}

// x / 2 * (1 + erf(x / sqrt(2))): for negative x by erfc, which keeps its digits there.
template <class S>
TIDEMILL_INLINE typename S::V gelu(typename S::V x) {
  const auto magnitude = S::max(x, S::sub(S::zero(), x));
  const auto tail = S::mul(S::set(0.5f), erfc_of_positive<S>(S::mul(magnitude, S::set(0.70710678f))));
  return S::mul(x, S::select(S::greater(x, S::zero()), S::sub(S::set(1.0f), tail), tail));
}

template <class S, class Activation>
TIDEMILL_INLINE void activate_row(const float* x, std::int32_t n, float* out, Activation activation) {
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    simd::store<S>(out + i, activation(simd::load<S>(x + i, lanes)), lanes);
  });
}

template <class S>
void sigmoid_gate_row(const float* x, float gate, std::int32_t n, float* out) {
  activate_row<S>(x, n, out, [&](typename S::V v) { return times_sigmoid<S>(v, S::set(-gate)); });
}

template <class S>
void silu_row(const float* x, std::int32_t n, float* out) {
  activate_row<S>(x, n, out, [](typename S::V v) { return silu<S>(v); });
}

template <class S>
void gelu_tanh_row(const float* x, std::int32_t n, float* out) {
  activate_row<S>(x, n, out, [](typename S::V v) { return gelu_tanh<S>(v); });
}

template <class S>
void gelu_row(const float* x, std::int32_t n, float* out) {
  activate_row<S>(x, n, out, [](typename S::V v) { return gelu<S>(v); });
}

template <class S>
void relu_row(const float* x, std::int32_t n, float* out) {
  activate_row<S>(x, n, out, [](typename S::V v) { return S::max(S::zero(), v); });
}

}  // namespace tidemill
