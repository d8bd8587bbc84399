// Row-wise kernels of one instruction set S (see simd.h): RMS norm, layer norm, softmax, add, scale, soft cap.
#pragma once
#include "simd.h"

namespace tidemill {

template <class S>
void rms_norm(const float* x, const float* weight, float eps, std::int32_t n, float* out) {
  typename S::V squares = S::zero();
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    const auto v = simd::load<S>(x + i, lanes);
    squares = S::fma(v, v, squares);
  });
  const auto factor = S::set(1.0f / __builtin_sqrtf(S::sum(squares) / static_cast<float>(n) + eps));
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    const auto scaled = S::mul(simd::load<S>(x + i, lanes), factor);
    simd::store<S>(out + i, S::mul(scaled, simd::load<S>(weight + i, lanes)), lanes);
  });
}

// The centred row is kept in out, whose masked tail reads as zeros: x less the mean would not.
template <class S>
void layer_norm(const float* x, const float* weight, const float* bias, float eps, std::int32_t n, float* out) {
  typename S::V total = S::zero();
  simd::for_lanes<S>(n, [&](int i, int lanes) { total = S::add(total, simd::load<S>(x + i, lanes)); });
  const auto mean = S::set(S::sum(total) / static_cast<float>(n));
  typename S::V squares = S::zero();
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    simd::store<S>(out + i, S::sub(simd::load<S>(x + i, lanes), mean), lanes);
    const auto centred = simd::load<S>(out + i, lanes);
    squares = S::fma(centred, centred, squares);
  });
  const auto factor = S::set(1.0f / __builtin_sqrtf(S::sum(squares) / static_cast<float>(n) + eps));
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    const auto scaled = S::mul(simd::load<S>(out + i, lanes), factor);
    simd::store<S>(out + i, S::fma(scaled, simd::load<S>(weight + i, lanes), simd::load<S>(bias + i, lanes)), lanes);
  });
}

template <class S>
void softmax_row(const float* x, std::int32_t n, float* out) {
  float peak = x[0];
  for (std::int32_t i = 1; i < n; ++i) peak = x[i] > peak ? x[i] : peak;
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    simd::store<S>(out + i, simd::exp<S>(S::sub(simd::load<S>(x + i, lanes), S::set(peak))), lanes);
  });
  typename S::V total = S::zero();
  simd::for_lanes<S>(n, [&](int i, int lanes) { total = S::add(total, simd::load<S>(out + i, lanes)); });
  const auto sum = S::set(S::sum(total));
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    simd::store<S>(out + i, S::div(simd::load<S>(out + i, lanes), sum), lanes);
  });
}

template <class S>
void add_rows(const float* a, const float* b, std::int32_t n, float* out) {
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    simd::store<S>(out + i, S::add(simd::load<S>(a + i, lanes), simd::load<S>(b + i, lanes)), lanes);
  });
}

template <class S>
void scale_row(const float* x, float factor, std::int32_t n, float* out) {
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    simd::store<S>(out + i, S::mul(simd::load<S>(x + i, lanes), S::set(factor)), lanes);
  });
}

template <class S>
void soft_cap(const float* x, float cap, std::int32_t n, float* out) {
  const auto limit = S::set(cap);
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    const auto capped = S::mul(limit, simd::tanh<S>(S::div(simd::load<S>(x + i, lanes), limit)));
    simd::store<S>(out + i, capped, lanes);
  });
}

}  // namespace tidemill
