// Gated linear units (Shazeer, arXiv:2002.05202) for one instruction set S (see simd.h).
#pragma once
#include "simd.h"

namespace tidemill {

// gate / (1 + exp(exponent(gate))) * up
template <class S, class Exponent>
TIDEMILL_INLINE void sigmoid_glu(const float* gate, const float* up, std::int32_t n, float* out, Exponent exponent) {
  const auto one = S::set(1.0f);
  simd::for_lanes(n, [&](int i, int lanes) {
    const auto g = simd::load<S>(gate + i, lanes);
    const auto activated = S::div(g, S::add(one, simd::exp<S>(exponent(g))));
    simd::store<S>(out + i, S::mul(activated, simd::load<S>(up + i, lanes)), lanes);
  });
}

template <class S>
void silu_glu(const float* gate, const float* up, std::int32_t n, float* out) {
  sigmoid_glu<S>(gate, up, n, out, [](typename S::V g) { return S::sub(S::zero(), g); });
}

// GELU in its tanh form: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), which does not cancel where the gate is negative.
template <class S>
void gelu_tanh_glu(const float* gate, const float* up, std::int32_t n, float* out) {
  constexpr double kRoot = 0.79788456080286535588;  // sqrt(2 / pi)
  const auto linear = S::set(static_cast<float>(-2.0 * kRoot));
  const auto cubic = S::set(static_cast<float>(-2.0 * kRoot * 0.044715));
  sigmoid_glu<S>(gate, up, n, out, [&](typename S::V g) {
    return S::mul(g, S::fma(S::mul(g, g), cubic, linear));
  });
}

// (u + 1) g / (1 + exp(-alpha g)), both held within the limit, g from above only (the gated unit of gpt-oss).
template <class S>
void clamped_glu(const float* gate, const float* up, std::int32_t n, float alpha, float limit, float* out) {
  const auto one = S::set(1.0f), high = S::set(limit), low = S::set(-limit), slope = S::set(-alpha);
  simd::for_lanes(n, [&](int i, int lanes) {
    const auto g = S::min(high, simd::load<S>(gate + i, lanes));
    const auto u = S::min(high, S::max(low, simd::load<S>(up + i, lanes)));
    const auto gated = S::div(g, S::add(one, simd::exp<S>(S::mul(g, slope))));
    simd::store<S>(out + i, S::mul(gated, S::add(u, one)), lanes);
  });
}

}  // namespace tidemill
