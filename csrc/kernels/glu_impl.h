// Gated linear units (Shazeer, arXiv:2002.05202) for one instruction set S (see simd.h).
#pragma once
#include "simd.h"

namespace tidemill {

// x / (1 + exp(exponent))
template <class S>
TIDEMILL_INLINE typename S::V times_sigmoid(typename S::V x, typename S::V exponent) {
  return simd::near_quotient<S>(x, S::add(S::set(1.0f), simd::exp<S>(exponent)));
}

template <class S>
TIDEMILL_INLINE typename S::V silu(typename S::V x) {
  return times_sigmoid<S>(x, S::sub(S::zero(), x));
}

// GELU in its tanh form: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), which does not cancel where x is negative.
template <class S>
TIDEMILL_INLINE typename S::V gelu_tanh(typename S::V x) {
  constexpr double kRoot = 0.79788456080286535588;  // sqrt(2 / pi)
  const auto linear = S::set(static_cast<float>(-2.0 * kRoot));
  const auto cubic = S::set(static_cast<float>(-2.0 * kRoot * 0.044715));
  return times_sigmoid<S>(x, S::mul(x, S::fma(S::mul(x, x), cubic, linear)));
}

// activation(gate) * up
template <class S, class Activation>
TIDEMILL_INLINE void glu(const float* gate, const float* up, std::int32_t n, float* out, Activation activation) {
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    const auto activated = activation(simd::load<S>(gate + i, lanes));
    simd::store<S>(out + i, S::mul(activated, simd::load<S>(up + i, lanes)), lanes);
  });
}

template <class S>
void silu_glu(const float* gate, const float* up, std::int32_t n, float* out) {
  glu<S>(gate, up, n, out, [](typename S::V g) { return silu<S>(g); });
}

template <class S>
void gelu_tanh_glu(const float* gate, const float* up, std::int32_t n, float* out) {
  glu<S>(gate, up, n, out, [](typename S::V g) { return gelu_tanh<S>(g); });
}

// (u + 1) g / (1 + exp(-alpha g)), both held within the limit, g from above only (the gated unit of gpt-oss).
template <class S>
void clamped_glu(const float* gate, const float* up, std::int32_t n, float alpha, float limit, float* out) {
  const auto one = S::set(1.0f), high = S::set(limit), low = S::set(-limit), slope = S::set(-alpha);
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    const auto g = S::min(high, simd::load<S>(gate + i, lanes));
    const auto u = S::min(high, S::max(low, simd::load<S>(up + i, lanes)));
    const auto gated = S::div(g, S::add(one, simd::exp<S>(S::mul(g, slope))));
    simd::store<S>(out + i, S::mul(gated, S::add(u, one)), lanes);
  });
}

}  // namespace tidemill
