// How the AVX2 kernels read packed block weights: the codes of a quad of k and the scales of eight columns (linear.h has
// the layouts).
//
// For linear_avx2.cpp alone: everything is in an anonymous namespace, and compiled for AVX2.
#pragma once
#include <immintrin.h>

#include "kernels/layout.h"
#include "kernels/linear_impl.h"
#include "kernels/stream.h"

namespace tidemill {
namespace {

inline __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

inline __m256 load_halves(const std::uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Bits [from, from + Bits) of every byte, at bits [to, to + Bits). From and to are constants once loops are unrolled.
template <int Bits>
inline __m256i move_field(__m256i bytes, int from, int to) {
  const __m256i shifted = from <= to ? _mm256_slli_epi16(bytes, to - from) : _mm256_srli_epi16(bytes, from - to);
  return _mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>(((1 << Bits) - 1) << to)));
}

template <int Bits>
inline __m256i plane_codes(const std::uint8_t* plane, int c, int quad, int to) {
  constexpr int kPerByte = 8 / Bits;
  return move_field<Bits>(load(plane + 32 * (Bits * c + quad / kPerByte)), quad % kPerByte * Bits, to);
}

inline __m256i look_up(const std::int8_t (&table)[16], __m256i codes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), codes);
}

// The codes of one quad of k of eight columns; `group` is where the group's header is. Signed for kQ8 and kQ4Table.
template <Layout L>
inline __m256i codes_at(const std::uint8_t* group, int c, int quad) {
  constexpr LayoutShape shape = kShape<L>;
  constexpr int kBase = shape.base_bits();
  constexpr int kExtra = shape.bits - kBase;
  const std::uint8_t* planes = group + shape.group_header();
  if constexpr (L == Layout::kQ8) return load(planes + 64 * quad + 32 * c);
  __m256i codes = plane_codes<kBase>(planes, c, quad, 0);
  if constexpr (kExtra == 1 || kExtra == 2) {
    codes = _mm256_or_si256(codes, plane_codes<kExtra>(planes + shape.extra_plane(), c, quad, kBase));
  }
  if constexpr (L == Layout::kQ4Table) codes = look_up(kQ4Codes, codes);
  if constexpr (L == Layout::kFloat4Table) codes = look_up(kFloat4Codes, codes);
  return codes;
}

inline __m256 widen_bytes(const std::uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

inline __m256 negate(__m256 v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f)); }

inline __m256 load_exponents(const std::uint8_t* p) {  // 2^(e - 128); those below the normal floats are e = 0 and 1
  const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
  const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(tiny, normal, _mm256_cmpgt_epi32(e, one)));
}

// The header of 256 k as floats, so that its groups need not widen it: 16 D, 16 M.
struct alignas(32) BlockScales {
  float values[2 * kTileColumns];

  __m256 d(int c) const { return _mm256_load_ps(values + 8 * c); }
  __m256 m(int c) const { return _mm256_load_ps(values + kTileColumns + 8 * c); }
};

template <Layout L>
inline void load_block(const std::uint8_t* header, BlockScales& block) {
  for (int i = 0; i < kShape<L>.block_header() / 16; ++i) {
    _mm256_store_ps(block.values + 8 * i, load_halves(header + 16 * i));
  }
}

// Of eight columns: what codes, or sums of their products, are multiplied with, and what is added to them, or times sums of
// activations. The minimums of blocks of 256 are subtracted.
struct ColumnScales {
  __m256 d, m;
};

template <Layout L>
inline ColumnScales load_scales(const BlockScales& block, const std::uint8_t* group, int c) {
  constexpr LayoutShape shape = kShape<L>;
  if constexpr (shape.halves()) {
    return {block.d(c), shape.has_minimum() ? block.m(c) : block.d(c)};
  } else if constexpr (shape.scales == Scales::kSuper) {
    return {_mm256_mul_ps(widen_bytes(group + 8 * c), block.d(c)),
            _mm256_mul_ps(widen_bytes(group + 16 + 8 * c), block.m(c))};
  } else {
    const __m256 d = shape.scales == Scales::kExponent ? load_exponents(group + 8 * c) : load_halves(group + 16 * c);
    if constexpr (shape.scales == Scales::kHalfZero) return {d, negate(_mm256_mul_ps(d, widen_bytes(group + 32 + 8 * c)))};
    if constexpr (shape.has_minimum()) return {d, load_halves(group + 32 + 16 * c)};
    return {d, _mm256_setzero_ps()};
  }
}

// What each of eight columns subtracts from its codes, twice, as int16.
template <Layout L>
inline __m256i load_offsets(const std::uint8_t* group, int c) {
  if constexpr (kShape<L>.scales != Scales::kHalfZero) return _mm256_set1_epi16(kShape<L>.offset);
  const __m256i zeros = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(group + 32 + 8 * c)));
  return _mm256_or_si256(zeros, _mm256_slli_epi32(zeros, 16));
}

// The integers that scale the half groups of eight columns, as int16: first of all columns' pairs, then each alone.
struct HalfScales {
  __m256i pair, first, second, minimums;
};

template <Layout L>
inline HalfScales load_half_scales(const std::uint8_t* group, int c) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(group + 16 * c));
  __m256i pair, minimums;
  if constexpr (kShape<L>.has_minimum()) {
    const __m256i both = _mm256_cvtepu8_epi16(bytes);
    pair = _mm256_and_si256(both, _mm256_set1_epi16(15));
    minimums = _mm256_srli_epi16(both, 4);
  } else {
    pair = _mm256_cvtepi8_epi16(bytes);
    minimums = _mm256_slli_epi16(pair, __builtin_ctz(static_cast<unsigned>(kShape<L>.offset)));
  }
  return {pair, _mm256_blend_epi16(pair, _mm256_slli_epi32(pair, 16), 0xaa),
          _mm256_blend_epi16(_mm256_srli_epi32(pair, 16), pair, 0xaa), minimums};
}

// Scale and minimum (to add) of the values of eight columns and one half group.
template <Layout L>
inline ColumnScales value_scales(const BlockScales& block, const std::uint8_t* group, int c, int half) {
  const ColumnScales scales = load_scales<L>(block, group, c);
  if constexpr (kShape<L>.scales == Scales::kSuper) return {scales.d, negate(scales.m)};
  if constexpr (!kShape<L>.halves()) return scales;
  const HalfScales integers = load_half_scales<L>(group, c);
  const auto of_half = [half](__m256i pair) {
    const __m256i low = _mm256_slli_epi32(pair, 16);
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(half == 0 ? low : pair, 16));
  };
  return {_mm256_mul_ps(scales.d, of_half(integers.pair)),
          negate(_mm256_mul_ps(scales.m, of_half(integers.minimums)))};
}

// The groups of a packed tile, one after another. Where `Stream`, it asks for those ahead, into the nearest cache
// kPrefetchGroups of them.
inline constexpr int kPrefetchGroups = 4;

template <Layout L, bool Stream>
class PackedGroups {
 public:
  explicit PackedGroups(const std::uint8_t* tile) : w_(tile) {}

  // Group g begins, g ascending from a multiple of 8.
  void enter(std::int32_t g) {
    if constexpr (kShape<L>.super()) {
      if (g % 8 == 0) {
        load_block<L>(w_, block_);
        w_ += kShape<L>.block_header();
      }
    }
    if constexpr (Stream) fetch_ahead<kBytes, kPrefetchGroups * kBytes>(w_);
  }
  void leave() { w_ += kBytes; }

  __m256i codes(int c, int quad) const { return codes_at<L>(w_, c, quad); }
  ColumnScales scales(int c) const { return load_scales<L>(block_, w_, c); }
  __m256i offsets(int c) const { return load_offsets<L>(w_, c); }
  HalfScales half_scales(int c) const { return load_half_scales<L>(w_, c); }

 private:
  static constexpr int kBytes = kShape<L>.group_bytes();

  const std::uint8_t* w_;
  BlockScales block_{};
};

}  // namespace
}  // namespace tidemill
