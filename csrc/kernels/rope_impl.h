// Rotary position embedding in the half-split form, for one instruction set S (see simd.h).
#pragma once
#include "simd.h"

namespace tidemill {

template <class S>
void rope_head(const float* x, std::int32_t head_dim, const float* cos, const float* sin, std::int32_t half,
               float* out) {
  simd::for_lanes<S>(half, [&](int i, int lanes) {
    const auto a = simd::load<S>(x + i, lanes);
    const auto b = simd::load<S>(x + half + i, lanes);
    const auto c = simd::load<S>(cos + i, lanes);
    const auto s = simd::load<S>(sin + i, lanes);
    simd::store<S>(out + i, S::fnma(b, s, S::mul(a, c)), lanes);
    simd::store<S>(out + half + i, S::fma(a, s, S::mul(b, c)), lanes);
  });
  for (std::int32_t i = 2 * half; i < head_dim; ++i) out[i] = x[i];
}

}  // namespace tidemill
