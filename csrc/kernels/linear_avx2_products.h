// Products of the AVX2 kernels: rows of a panel times 16 outputs, from weights as they are packed or as they were expanded.
//
// For linear_avx2.cpp alone: everything is in an anonymous namespace, and compiled for AVX2. `Groups` walks along the groups
// of one tile (PackedGroups, ExpandedGroups); both give the same integers and scales, so products have the same bits.
#pragma once
#include <immintrin.h>

#include "kernels/linear_avx2_weights.h"
#include "kernels/linear_impl.h"

namespace tidemill {
namespace {

// Pins a value to a register. Without it the compiler hoists the row broadcasts of a whole group and spills them.
inline void pin(__m256i& value) { __asm__ volatile("" : "+x"(value)); }

inline __m256i broadcast_quad(const std::int8_t* p) {
  int quad;
  __builtin_memcpy(&quad, p, 4);
  return _mm256_set1_epi32(quad);
}

template <int R>
inline void clear(float* acc) {
  TIDEMILL_UNROLL
  for (int i = 0; i < 2 * R; ++i) _mm256_store_ps(acc + 8 * i, _mm256_setzero_ps());
}

inline __m256i broadcast_half_sums(const float* p) { return _mm256_castps_si256(_mm256_broadcast_ss(p)); }

// acc of eight columns of one row += (sum - offsets * activations) * d * scale + m * scale_sum
template <Layout L, int S>
inline void add_group(__m256i sum, __m256i offsets, const ColumnScales& w, const float* x, float* acc) {
  if constexpr (kShape<L>.subtracts()) {
    sum = _mm256_sub_epi32(sum, _mm256_madd_epi16(offsets, broadcast_half_sums(x + 2 * S)));
  }
  __m256 value = _mm256_load_ps(acc);
  value = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), w.d), _mm256_broadcast_ss(x), value);
  if constexpr (kShape<L>.super()) {
    value = _mm256_fnmadd_ps(w.m, _mm256_broadcast_ss(x + S), value);
  } else if constexpr (kShape<L>.adds_minimum()) {
    value = _mm256_fmadd_ps(w.m, _mm256_broadcast_ss(x + S), value);
  }
  _mm256_store_ps(acc, value);
}

// 4-bit weights. Per vector of 8 columns: two quads of k, each one multiply of unsigned nibbles by signed activations;
// 16 products of at most 15 * 127 fit the int16 sums. The float accumulators live in memory (first-level cache):
// 16 registers do not hold them beside the integer sums.
template <Layout L, int R, int S, class Groups>
inline void add_nibbles(Groups w, const std::int8_t* x, const float* scales, std::int32_t groups, float* acc) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (std::int32_t g = 0; g < groups; ++g, x += kGroup * S, scales += kGroupScales * S) {
    w.enter(g);
    __m256i sum[R][2];
    TIDEMILL_UNROLL
    for (int quad = 0; quad < 8; quad += 2) {
      __m256i low[2], high[2];
      TIDEMILL_UNROLL
      for (int c = 0; c < 2; ++c) {
        low[c] = w.codes(c, quad);
        high[c] = w.codes(c, quad + 1);
      }
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256i first = broadcast_quad(x + 4 * (quad * S + r));
        TIDEMILL_UNROLL
        for (int c = 0; c < 2; ++c) {
          const __m256i product = _mm256_maddubs_epi16(low[c], first);
          sum[r][c] = quad == 0 ? product : _mm256_add_epi16(sum[r][c], product);
        }
        const __m256i second = broadcast_quad(x + 4 * ((quad + 1) * S + r));
        TIDEMILL_UNROLL
        for (int c = 0; c < 2; ++c) {
          sum[r][c] = _mm256_add_epi16(sum[r][c], _mm256_maddubs_epi16(high[c], second));
          pin(sum[r][c]);
        }
      }
    }
    TIDEMILL_UNROLL
    for (int c = 0; c < 2; ++c) {
      const ColumnScales column = w.scales(c);
      const __m256i offsets = w.offsets(c);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        add_group<L, S>(_mm256_madd_epi16(sum[r][c], ones), offsets, column, scales + r, acc + 16 * r + 8 * c);
      }
    }
    w.leave();
  }
}

// Signed 8-bit codes: |w| times the activation with w's sign. A pair of products is at most 2 * 128 * 127 and fits int16
// (activations are never -128), but only one: each multiply is widened at once.
template <Layout L, int R, int S, class Groups>
inline void add_signed(Groups w, const std::int8_t* x, const float* scales, std::int32_t groups, float* acc) {
  const __m256i ones = _mm256_set1_epi16(1);
  for (std::int32_t g = 0; g < groups; ++g, x += kGroup * S, scales += kGroupScales * S) {
    w.enter(g);
    __m256i sum[R][2];
    TIDEMILL_UNROLL
    for (int quad = 0; quad < 8; ++quad) {
      __m256i signs[2], sizes[2];
      TIDEMILL_UNROLL
      for (int c = 0; c < 2; ++c) {
        signs[c] = w.codes(c, quad);
        sizes[c] = _mm256_abs_epi8(signs[c]);
      }
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256i values = broadcast_quad(x + 4 * (quad * S + r));
        TIDEMILL_UNROLL
        for (int c = 0; c < 2; ++c) {
          const __m256i pairs = _mm256_maddubs_epi16(sizes[c], _mm256_sign_epi8(values, signs[c]));
          const __m256i product = _mm256_madd_epi16(pairs, ones);
          sum[r][c] = quad == 0 ? product : _mm256_add_epi32(sum[r][c], product);
          pin(sum[r][c]);
        }
      }
    }
    TIDEMILL_UNROLL
    for (int c = 0; c < 2; ++c) {
      const ColumnScales column = w.scales(c);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        add_group<L, S>(sum[r][c], w.offsets(c), column, scales + r, acc + 16 * r + 8 * c);
      }
    }
    w.leave();
  }
}

// acc of eight columns of one row += the product of both half groups
template <Layout L, int S>
inline void add_half_groups(__m256i sum, const HalfScales& half, const ColumnScales& w, const float* x, float* acc) {
  const __m256i minimum = _mm256_madd_epi16(half.minimums, broadcast_half_sums(x + 2 * S));
  const __m256 scale = _mm256_broadcast_ss(x);
  __m256 value = _mm256_load_ps(acc);
  if constexpr (kShape<L>.has_minimum()) {
    value = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), w.d), scale, value);
    value = _mm256_fnmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(minimum), w.m), scale, value);
  } else {
    const __m256 s = _mm256_cvtepi32_ps(_mm256_sub_epi32(sum, minimum));
    value = _mm256_fmadd_ps(_mm256_mul_ps(s, w.d), scale, value);
  }
  _mm256_store_ps(acc, value);
}

// Hides from the compiler where a pointer leads: broadcasts that it had in registers for other columns it would spill, and
// read back instead of reading the activations again.
inline const std::int8_t* afresh(const std::int8_t* p) {
  __asm__ volatile("" : "+r"(p));
  return p;
}

// Codes too large for one int16 sum of 32 products, and codes scaled by half groups. int16 sums hold 8 products of at
// most 31 * 127; widening multiplies them with the scale of their half group. One vector of columns at a time, because the
// rows' int16 and int32 sums of two do not fit 16 registers.
template <Layout L, int R, int S, class Groups>
inline void add_split(Groups w, const std::int8_t* x, const float* scales, std::int32_t groups, float* acc) {
  constexpr LayoutShape shape = kShape<L>;
  const __m256i ones = _mm256_set1_epi16(1);
  for (std::int32_t g = 0; g < groups; ++g, x += kGroup * S, scales += kGroupScales * S) {
    w.enter(g);
    TIDEMILL_UNROLL
    for (int c = 0; c < 2; ++c) {
      HalfScales half{ones, ones, ones, ones};
      if constexpr (shape.halves()) half = w.half_scales(c);
      const std::int8_t* values = afresh(x);
      __m256i total[R], sum[R];
      TIDEMILL_UNROLL
      for (int quad = 0; quad < 8; ++quad) {
        const __m256i codes = w.codes(c, quad);
        TIDEMILL_UNROLL
        for (int r = 0; r < R; ++r) {
          const __m256i product = _mm256_maddubs_epi16(codes, broadcast_quad(values + 4 * (quad * S + r)));
          sum[r] = quad % 4 == 0 ? product : _mm256_add_epi16(sum[r], product);
          pin(sum[r]);
          if (quad % 4 == 3) {
            const __m256i part = _mm256_madd_epi16(sum[r], quad < 4 ? half.first : half.second);
            total[r] = quad < 4 ? part : _mm256_add_epi32(total[r], part);
          }
        }
      }
      const ColumnScales column = w.scales(c);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        float* out = acc + 16 * r + 8 * c;
        if constexpr (shape.halves()) {
          add_half_groups<L, S>(total[r], half, column, scales + r, out);
        } else {
          add_group<L, S>(total[r], w.offsets(c), column, scales + r, out);
        }
      }
    }
    w.leave();
  }
}

// 6-bit codes: int16 sums hold 4 products of at most 63 * 127, those of two quads. They are widened at once, so both vectors
// of columns share an activation.
template <Layout L, int R, int S, class Groups>
inline void add_six_bits(Groups w, const std::int8_t* x, const float* scales, std::int32_t groups, float* acc) {
  for (std::int32_t g = 0; g < groups; ++g, x += kGroup * S, scales += kGroupScales * S) {
    w.enter(g);
    __m256i total[R][2];
    TIDEMILL_UNROLL
    for (int quad = 0; quad < 8; quad += 2) {
      __m256i low[2], high[2], half[2];
      TIDEMILL_UNROLL
      for (int c = 0; c < 2; ++c) {
        low[c] = w.codes(c, quad);
        high[c] = w.codes(c, quad + 1);
        half[c] = quad < 4 ? w.half_scales(c).first : w.half_scales(c).second;
      }
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256i first = broadcast_quad(x + 4 * (quad * S + r));
        const __m256i second = broadcast_quad(x + 4 * ((quad + 1) * S + r));
        TIDEMILL_UNROLL
        for (int c = 0; c < 2; ++c) {
          const __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(low[c], first), _mm256_maddubs_epi16(high[c], second));
          const __m256i part = _mm256_madd_epi16(sum, half[c]);
          total[r][c] = quad == 0 ? part : _mm256_add_epi32(total[r][c], part);
          pin(total[r][c]);
        }
      }
    }
    TIDEMILL_UNROLL
    for (int c = 0; c < 2; ++c) {
      const ColumnScales column = w.scales(c);
      const HalfScales half = w.half_scales(c);
      TIDEMILL_UNROLL
      for (int r = 0; r < R; ++r) {
        add_half_groups<L, S>(total[r][c], half, column, scales + r, acc + 16 * r + 8 * c);
      }
    }
    w.leave();
  }
}

template <Layout L>
inline constexpr bool kSignedCodes = L == Layout::kQ8 || L == Layout::kQ4Table;

// acc [R][16] += R rows of a panel of S rows times `groups` groups of a tile.
template <Layout L, int R, int S, class Groups>
inline void add_product(Groups w, const std::int8_t* x, const float* scales, std::int32_t groups, float* acc) {
  if constexpr (kSignedCodes<L>) {
    add_signed<L, R, S>(w, x, scales, groups, acc);
  } else if constexpr (kShape<L>.bits == 4 && L != Layout::kFloat4Table) {
    add_nibbles<L, R, S>(w, x, scales, groups, acc);
  } else if constexpr (kShape<L>.bits == 6) {
    add_six_bits<L, R, S>(w, x, scales, groups, acc);
  } else {
    add_split<L, R, S>(w, x, scales, groups, acc);
  }
}

}  // namespace
}  // namespace tidemill
