// Gated linear unit with SiLU (Shazeer, arXiv:2002.05202) for one instruction set S (see simd.h).
#pragma once
#include "simd.h"

namespace tidemill {

template <class S>
void silu_glu(const float* gate, const float* up, std::int32_t n, float* out) {
  const auto one = S::set(1.0f);
  simd::for_lanes(n, [&](int i, int lanes) {
    const auto g = simd::load<S>(gate + i, lanes);
    const auto activated = S::div(g, S::add(one, simd::exp<S>(S::sub(S::zero(), g))));
    simd::store<S>(out + i, S::mul(activated, simd::load<S>(up + i, lanes)), lanes);
  });
}

}  // namespace tidemill
