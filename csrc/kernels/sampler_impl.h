// Sampler kernels of one instruction set S (see simd.h).
#pragma once
#include "sampler.h"
#include "simd.h"

namespace tidemill {

inline constexpr float kLargestFinite = 3.4028234663852886e38f;
inline constexpr float kLargestNoise = 23.0f;  // above -ln(-ln(1 - 2^-33)) = 22.87

template <class S>
TIDEMILL_INLINE typename S::V finite_lanes(typename S::V x) {
  const auto low = S::set(-kLargestFinite);
  return S::min(S::max(x, low), S::set(kLargestFinite));  // max gives `low` for NaN
}

template <class S>
float finite_row(const float* x, std::int32_t n, float* out) {
  auto best = S::set(-kLargestFinite);
  const auto low = S::set(-kLargestFinite);
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    auto v = finite_lanes<S>(simd::load<S>(x + i, lanes));
    simd::store<S>(out + i, v, lanes);
    if (lanes < S::kLanes) {  // the zeros of a masked load must not win
      float tail[S::kLanes];
      S::store(tail, low);
      S::store_first(tail, v, lanes);
      v = S::load(tail);
    }
    best = S::max(best, v);
  });
  return S::max_lane(best);
}

template <class S>
std::int32_t argmax_row(const float* x, std::int32_t n) {
  auto best = S::set(-__builtin_inff());
  std::int32_t found = 0;
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    unsigned better = S::bits(S::greater(simd::load<S>(x + i, lanes), best));
    better &= (1u << lanes) - 1u;
    if (better == 0) return;
    float highest = S::max_lane(best);
    for (int lane = 0; lane < lanes; ++lane) {
      if (x[i + lane] > highest) {
        highest = x[i + lane];
        found = i + lane;
      }
    }
    best = S::set(highest);
  });
  return found;
}

template <class S>
void temper_row(const float* x, std::int32_t n, float largest, float temperature, float* y) {
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    const auto shifted = S::sub(simd::load<S>(x + i, lanes), S::set(largest));
    simd::store<S>(y + i, S::div(shifted, S::set(temperature)), lanes);
  });
}

// Lanes i and i + n / 2 first, then as half as many.
template <int kLanes>
TIDEMILL_INLINE double sum_lanes(double (&sums)[kLanes]) {
  for (int n = kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) sums[i] += sums[i + n];
  }
  return sums[0];
}

template <class S>
double sum_exp_row(const float* x, std::int32_t n, float largest) {
  double sums[S::kLanes] = {};
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    float terms[S::kLanes];
    S::store(terms, simd::exp<S>(S::sub(simd::load<S>(x + i, lanes), S::set(largest))));
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += static_cast<double>(terms[lane]);
  });
  return sum_lanes(sums);
}

template <class S>
std::int32_t at_least_row(const float* x, std::int32_t n, float threshold, std::int32_t* ids) {
  std::int32_t count = 0;
  const auto limit = S::set(threshold);
  simd::for_lanes<S>(n, [&](int i, int lanes) {
    unsigned keep = S::bits(S::not_less(simd::load<S>(x + i, lanes), limit));
    keep &= (1u << lanes) - 1u;
    for (; keep != 0; keep &= keep - 1) ids[count++] = i + __builtin_ctz(keep);
  });
  return count;
}

// Ten rounds for as many counters as there are lanes; words[w][lane].
template <class S>
struct PhiloxBlock {
  std::uint32_t words[4][S::kLanes];
};

template <class S>
TIDEMILL_INLINE void philox(PhiloxBlock<S>& c, std::uint64_t seed) {
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int lane = 0; lane < S::kLanes; ++lane) {
      const std::uint64_t a = std::uint64_t{0xD2511F53u} * c.words[0][lane];
      const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * c.words[2][lane];
      c.words[0][lane] = static_cast<std::uint32_t>(b >> 32) ^ c.words[1][lane] ^ key0;
      c.words[1][lane] = static_cast<std::uint32_t>(b);
      c.words[2][lane] = static_cast<std::uint32_t>(a >> 32) ^ c.words[3][lane] ^ key1;
      c.words[3][lane] = static_cast<std::uint32_t>(a);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

template <class S>
TIDEMILL_INLINE void set_counters(PhiloxBlock<S>& c, NoiseKey key) {
  for (int lane = 0; lane < S::kLanes; ++lane) {
    c.words[1][lane] = key.choice;
    c.words[2][lane] = key.position;
    c.words[3][lane] = kDrawStream;
  }
}

// Gumbel noise from a vector of random words. -ln(1 - u) keeps its relative precision for small u:
// ln(1 - u) = -u * ln(v) / (v - 1) with v = 1 - u as rounded.
template <class S>
TIDEMILL_INLINE typename S::V gumbel_noise(const std::uint32_t* words) {
  float uniform[S::kLanes];
  for (int lane = 0; lane < S::kLanes; ++lane) {
    uniform[lane] = static_cast<float>((static_cast<double>(words[lane]) + 0.5) * 0x1p-32);
  }
  const auto one = S::set(1.0f);
  const auto u = S::min(S::load(uniform), S::set(1.0f - 0x1p-24f));
  const auto v = S::sub(one, u);
  const auto below_one = S::sub(one, v);
  const auto has_part = S::greater(below_one, S::zero());
  const auto safe = S::select(has_part, below_one, one);
  const auto ratio = S::select(has_part, S::div(S::sub(S::zero(), simd::log<S>(v)), safe), one);
  return S::sub(S::zero(), simd::log<S>(S::mul(u, ratio)));
}

TIDEMILL_INLINE void keep_best(BestToken& best, float value, std::int32_t id) {
  if (value > best.value || (value == best.value && id < best.id)) best = {value, id};
}

template <class S>
TIDEMILL_INLINE void consider(BestToken& best, const float* y, const std::uint32_t* words, const std::int32_t* ids,
                              int lanes) {
  float totals[S::kLanes];
  S::store(totals, S::add(S::load(y), gumbel_noise<S>(words)));
  for (int lane = 0; lane < lanes; ++lane) keep_best(best, totals[lane], ids[lane]);
}

template <class S>
BestToken gumbel_candidates(const float* y, const std::int32_t* ids, std::int32_t count, NoiseKey key) {
  BestToken best{-__builtin_inff(), ids[0]};
  for (std::int32_t i = 0; i < count; i += S::kLanes) {
    const int lanes = count - i < S::kLanes ? count - i : S::kLanes;
    PhiloxBlock<S> block;
    set_counters(block, key);
    std::int32_t tokens[S::kLanes];
    float values[S::kLanes];
    for (int lane = 0; lane < S::kLanes; ++lane) {
      tokens[lane] = ids[i + (lane < lanes ? lane : 0)];
      values[lane] = y[tokens[lane]];
      block.words[0][lane] = static_cast<std::uint32_t>(tokens[lane]) / 4;
    }
    philox(block, key.seed);
    std::uint32_t words[S::kLanes];
    for (int lane = 0; lane < S::kLanes; ++lane) words[lane] = block.words[tokens[lane] % 4][lane];
    consider<S>(best, values, words, tokens, lanes);
  }
  return best;
}

// All tokens, four vectors at a time: one counter gives the words of four consecutive ids. Tokens too unlikely to win with the
// largest possible noise are passed over.
template <class S>
BestToken gumbel_all(const float* y, std::int32_t n, NoiseKey key) {
  const std::int32_t first = argmax_row<S>(y, n);
  BestToken best = gumbel_candidates<S>(y, &first, 1, key);
  for (std::int32_t base = 0; base < n; base += 4 * S::kLanes) {
    const std::int32_t size = n - base < 4 * S::kLanes ? n - base : 4 * S::kLanes;
    const auto bound = S::set(best.value - kLargestNoise);
    unsigned possible = 0;
    simd::for_lanes<S>(size, [&](int i, int lanes) {
      possible |= S::bits(S::not_less(simd::load<S>(y + base + i, lanes), bound)) & ((1u << lanes) - 1u);
    });
    if (possible == 0) continue;
    PhiloxBlock<S> block;
    set_counters(block, key);
    for (int lane = 0; lane < S::kLanes; ++lane) {
      block.words[0][lane] = static_cast<std::uint32_t>(base / 4 + lane);
    }
    philox(block, key.seed);
    simd::for_lanes<S>(size, [&](int i, int lanes) {
      std::uint32_t words[S::kLanes];
      std::int32_t tokens[S::kLanes];
      float values[S::kLanes];
      S::store(values, simd::load<S>(y + base + i, lanes));
      for (int lane = 0; lane < S::kLanes; ++lane) {
        words[lane] = block.words[(i + lane) % 4][(i + lane) / 4];
        tokens[lane] = base + i + lane;
      }
      consider<S>(best, values, words, tokens, lanes);
    });
  }
  return best;
}

template <class S>
BestToken gumbel_best(const float* y, std::int32_t n, const std::int32_t* ids, std::int32_t count, NoiseKey key) {
  return ids != nullptr ? gumbel_candidates<S>(y, ids, count, key) : gumbel_all<S>(y, n, key);
}

template <class S>
constexpr SamplerKernels sampler_kernels() {
  return {finite_row<S>, argmax_row<S>, temper_row<S>, sum_exp_row<S>, at_least_row<S>, gumbel_best<S>};
}

}  // namespace tidemill
