// How the AVX-512 kernels read packed block weights: the codes of a quad of k and the scales of all 16 columns of a tile
// (linear.h has the layouts).
//
// For linear_avx512.cpp and linear_amx.cpp: everything is in an anonymous namespace, and compiled for AVX-512.
#pragma once
#include <immintrin.h>

#include "kernels/layout.h"
#include "kernels/linear_impl.h"

namespace tidemill {
namespace {

inline __m256i load_half_vector(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

inline __m512 load_halves(const std::uint8_t* p) { return _mm512_cvtph_ps(load_half_vector(p)); }

inline __m128i load_bytes(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// Bits [from, from + Bits) of every byte, at bits [to, to + Bits). From and to are constants once loops are unrolled.
template <int Bits>
inline __m512i move_field(__m512i bytes, int from, int to) {
  const auto shift = static_cast<unsigned>(from <= to ? to - from : from - to);
  const __m512i shifted = from <= to ? _mm512_slli_epi16(bytes, shift) : _mm512_srli_epi16(bytes, shift);
  return _mm512_and_si512(shifted, _mm512_set1_epi8(static_cast<char>(((1 << Bits) - 1) << to)));
}

// A plane has the vectors of columns 0-7, then those of columns 8-15.
template <int Bits>
inline __m512i plane_codes(const std::uint8_t* plane, int quad, int to) {
  constexpr int kPerByte = 8 / Bits;
  const std::uint8_t* left = plane + 32 * (quad / kPerByte);
  const __m512i bytes = _mm512_inserti64x4(_mm512_castsi256_si512(load_half_vector(left)),
                                           load_half_vector(left + 32 * Bits), 1);
  return move_field<Bits>(bytes, quad % kPerByte * Bits, to);
}

template <Layout L>
inline constexpr bool kSignedCodes = L == Layout::kQ8 || L == Layout::kQ4Table;

inline __m512i flip_signs(__m512i bytes) { return _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(0x80))); }

inline __m512i look_up(__m128i table, __m512i codes) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
}

// The codes of one quad of k as unsigned bytes; `group` is where the group's header is. Signed ones have 128 added.
template <Layout L>
inline __m512i codes_at(const std::uint8_t* group, int quad) {
  constexpr LayoutShape shape = kShape<L>;
  constexpr int kBase = shape.base_bits();
  constexpr int kExtra = shape.bits - kBase;
  const std::uint8_t* planes = group + shape.group_header();
  if constexpr (L == Layout::kQ8) return flip_signs(_mm512_loadu_si512(planes + 64 * quad));
  __m512i codes = plane_codes<kBase>(planes, quad, 0);
  if constexpr (kExtra == 1 || kExtra == 2) {
    codes = _mm512_or_si512(codes, plane_codes<kExtra>(planes + shape.extra_plane(), quad, kBase));
  }
  if constexpr (L == Layout::kQ4Table) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kQ4Codes));
    codes = look_up(_mm_xor_si128(table, _mm_set1_epi8(static_cast<char>(0x80))), codes);
  }
  if constexpr (L == Layout::kFloat4Table) {
    codes = look_up(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kFloat4Codes)), codes);
  }
  return codes;
}

inline __m512 widen_bytes(const std::uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_bytes(p))); }

// The integer zeros of kQ4Zero, twice each.
inline __m512i load_zero_pairs(const std::uint8_t* group) {
  const __m512i zeros = _mm512_cvtepu8_epi32(load_bytes(group + 32));
  return _mm512_or_si512(zeros, _mm512_slli_epi32(zeros, 16));
}

inline __m512 negate(__m512 v) { return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f)); }

inline __m512 load_exponents(const std::uint8_t* p) {  // 2^(e - 128); those below the normal floats are e = 0 and 1
  const __m512i e = _mm512_cvtepu8_epi32(load_bytes(p));
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
  const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(tiny, _mm512_cmpgt_epi32_mask(e, one), normal));
}

// The header of 256 k as floats.
struct BlockScales {
  __m512 d, m;
};

template <Layout L>
inline BlockScales load_block(const std::uint8_t* header) {
  if constexpr (!kShape<L>.super()) return {_mm512_setzero_ps(), _mm512_setzero_ps()};
  const __m512 d = load_halves(header);
  return {d, kShape<L>.has_minimum() ? load_halves(header + 32) : d};
}

// What codes, or sums of their products, are multiplied with, and what is added to them, or times sums of activations. The
// minimums of blocks of 256 are subtracted.
struct ColumnScales {
  __m512 d, m;
};

template <Layout L>
inline ColumnScales load_scales(const BlockScales& block, const std::uint8_t* group) {
  constexpr LayoutShape shape = kShape<L>;
  if constexpr (shape.halves()) {
    return {block.d, block.m};
  } else if constexpr (shape.scales == Scales::kSuper) {
    return {_mm512_mul_ps(widen_bytes(group), block.d), _mm512_mul_ps(widen_bytes(group + 16), block.m)};
  } else {
    const __m512 d = shape.scales == Scales::kExponent ? load_exponents(group) : load_halves(group);
    if constexpr (shape.scales == Scales::kHalfZero) return {d, negate(_mm512_mul_ps(d, widen_bytes(group + 32)))};
    if constexpr (shape.has_minimum()) return {d, load_halves(group + 32)};
    return {d, _mm512_setzero_ps()};
  }
}

// The integers of the half groups: as floats, and those of the minimums as pairs of int16.
struct HalfScales {
  __m512 first, second;
  __m512i minimums;
};

// The low (0) or high (1) int16 of each pair as a float.
template <int Half>
inline __m512 half_as_floats(__m512i pairs) {
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(Half == 0 ? _mm512_slli_epi32(pairs, 16) : pairs, 16));
}

template <Layout L>
inline HalfScales load_half_scales(const std::uint8_t* group) {
  const __m256i bytes = load_half_vector(group);
  __m512i pairs, minimums;
  if constexpr (kShape<L>.has_minimum()) {
    const __m512i both = _mm512_cvtepu8_epi16(bytes);
    pairs = _mm512_and_si512(both, _mm512_set1_epi16(15));
    minimums = _mm512_srli_epi16(both, 4);
  } else {
    pairs = _mm512_cvtepi8_epi16(bytes);
    minimums = _mm512_slli_epi16(pairs, __builtin_ctz(static_cast<unsigned>(kShape<L>.offset)));
  }
  return {half_as_floats<0>(pairs), half_as_floats<1>(pairs), minimums};
}

// Scale and minimum (to add) of the values of one half group.
template <Layout L, int Half>
inline ColumnScales value_scales(const BlockScales& block, const std::uint8_t* group) {
  const ColumnScales scales = load_scales<L>(block, group);
  if constexpr (kShape<L>.scales == Scales::kSuper) return {scales.d, negate(scales.m)};
  if constexpr (!kShape<L>.halves()) return scales;
  const HalfScales integers = load_half_scales<L>(group);
  return {_mm512_mul_ps(scales.d, Half == 0 ? integers.first : integers.second),
          negate(_mm512_mul_ps(scales.m, half_as_floats<Half>(integers.minimums)))};
}

}  // namespace
}  // namespace tidemill
