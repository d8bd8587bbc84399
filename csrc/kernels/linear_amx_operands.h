// What the AMX kernels multiply: weights and activations as signed bytes in the order of tiles, with their scales as
// floats, one record per group of 32 k.
//
//   Rows    16 rows: codes [row][k] | scale | scale_sum                   (each [16], as QuantizedRows has them)
//   Columns 16 outputs: codes [quad][column][4], as layout.h means them | floats by form:
//             kScale    d
//             kPower    d, a power of two of any size
//             kMinimum  d | m
//             kHalves   d | sc of the first half | of the second
//
// kQ2Halves has no form: its minimums take more vector work than tiles save.
//
// For linear_amx.cpp alone: everything is in an anonymous namespace, and compiled for AVX-512.
#pragma once
#include <immintrin.h>

#include "kernels/linear_avx512_weights.h"

namespace tidemill {
namespace {

enum class Form : std::uint8_t { kScale, kPower, kMinimum, kHalves };

constexpr bool has_form(Layout layout) { return layout != Layout::kQ2Halves; }

constexpr Form form_of(Layout layout) {
  const LayoutShape shape = shape_of(layout);
  if (shape.halves()) return Form::kHalves;
  if (shape.scales == Scales::kExponent) return Form::kPower;
  return shape.adds_minimum() ? Form::kMinimum : Form::kScale;
}

inline constexpr std::size_t kCodeBytes = 512;  // of 16 rows or columns
inline constexpr int kRowVectors = 2;
inline constexpr std::size_t kRowRecord = kCodeBytes + kRowVectors * 64;

constexpr std::size_t column_record(Form form) {
  constexpr std::size_t vectors[] = {1, 1, 2, 3};
  return kCodeBytes + 64 * vectors[static_cast<int>(form)];
}

inline const float* floats_of(const std::uint8_t* record, int vector) {
  return reinterpret_cast<const float*>(record + kCodeBytes) + 16 * vector;
}

// ---- columns --------------------------------------------------------------------------------------------------

// The codes that are multiplied with activations.
template <Layout L>
inline __m512i signed_codes(const std::uint8_t* group, int quad) {
  const __m512i codes = codes_at<L>(group, quad);
  if constexpr (kSignedCodes<L>) return flip_signs(codes);
  if constexpr (kShape<L>.scales == Scales::kHalfZero) {
    const __m512i pairs = load_zero_pairs(group);
    return _mm512_sub_epi8(codes, _mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 8)));
  }
  if constexpr (kShape<L>.subtracts()) {
    return _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<char>(kShape<L>.offset)));
  }
  return codes;
}

// False where one is infinite that sums are multiplied with: products would be NaN (see `scaled` in linear_amx.cpp).
template <Layout L>
inline bool expand_scales(const BlockScales& block, const std::uint8_t* group, float* out) {
  if constexpr (kShape<L>.halves()) {
    const HalfScales half = load_half_scales<L>(group);
    _mm512_store_ps(out, block.d);
    _mm512_store_ps(out + 16, half.first);
    _mm512_store_ps(out + 32, half.second);
    return true;
  } else {
    const ColumnScales scales = load_scales<L>(block, group);
    _mm512_store_ps(out, scales.d);
    if constexpr (form_of(L) == Form::kMinimum) {
      _mm512_store_ps(out + 16, kShape<L>.super() ? negate(scales.m) : scales.m);
    }
    constexpr int kInfinities = 0x18;
    return form_of(L) == Form::kPower || _mm512_fpclass_ps_mask(scales.d, kInfinities) == 0;
  }
}

// All groups of one packed tile. False where a scale is infinite.
template <Layout L>
bool expand_columns(const std::uint8_t* w, std::int32_t groups, std::uint8_t* out) {
  BlockScales block{_mm512_setzero_ps(), _mm512_setzero_ps()};
  bool finite = true;
  for (std::int32_t g = 0; g < groups; ++g, w += kShape<L>.group_bytes(), out += column_record(form_of(L))) {
    if constexpr (kShape<L>.super()) {
      if (g % 8 == 0) {
        block = load_block<L>(w);
        w += kShape<L>.block_header();
      }
    }
    TIDEMILL_UNROLL
    for (int quad = 0; quad < kGroup / 4; ++quad) _mm512_store_si512(out + 64 * quad, signed_codes<L>(w, quad));
    finite &= expand_scales<L>(block, w, reinterpret_cast<float*>(out + kCodeBytes));
  }
  return finite;
}

// ---- rows -----------------------------------------------------------------------------------------------------

// A whole panel of one group: [quad][row] words to [row][quad].
inline void turn_panel(const std::int8_t* values, std::uint8_t* codes) {
  const __m512i column = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i quads[2] = {_mm512_loadu_si512(values), _mm512_loadu_si512(values + 64)};
  for (int i = 0; i < 2; ++i) {
    const __m512i places = _mm512_add_epi32(column, _mm512_set1_epi32(2 * i));
    _mm512_store_si512(codes + 64 * i, _mm512_permutex2var_epi32(quads[0], places, quads[1]));
  }
}

// A panel of Count rows, which are rows row .. row + Count - 1 of a block.
template <int Count>
inline void expand_panel(const std::int8_t* values, const float* scales, std::int32_t groups, int row, std::uint8_t* out) {
  for (std::int32_t g = 0; g < groups; ++g, values += kGroup * Count, scales += kGroupScales * Count, out += kRowRecord) {
    std::uint8_t* codes = out + kGroup * row;
    if constexpr (Count == kPanelRows) {
      turn_panel(values, codes);
    } else {
      for (int i = 0; i < kGroup / 4 * Count; ++i) {
        __builtin_memcpy(codes + kGroup * (i % Count) + 4 * (i / Count), values + 4 * i, 4);
      }
    }
    for (int i = 0; i < kRowVectors; ++i) {
      __builtin_memcpy(out + kCodeBytes + 64 * i + 4 * row, scales + Count * i, sizeof(float) * Count);
    }
  }
}

// 16 rows from `first` on, a multiple of kPanelRows. Those missing become zero.
inline void expand_rows(const QuantizedRows& x, std::int32_t first, std::uint8_t* out) {
  const std::int32_t groups = x.k / kGroup;
  const std::int32_t rows = x.rows - first < 16 ? x.rows - first : 16;
  if (rows < 16) __builtin_memset(out, 0, kRowRecord * static_cast<std::size_t>(groups));
  for (std::int32_t row = 0; row < rows; row += kPanelRows) {
    const auto before = static_cast<std::size_t>(first + row) * static_cast<std::size_t>(groups);
    const std::int8_t* values = x.values + before * kGroup;
    const float* scales = x.scales + before * kGroupScales;
    switch (rows - row) {
      case 1: expand_panel<1>(values, scales, groups, row, out); break;
      case 2: expand_panel<2>(values, scales, groups, row, out); break;
      case 3: expand_panel<3>(values, scales, groups, row, out); break;
      default: expand_panel<kPanelRows>(values, scales, groups, row, out); break;
    }
  }
}

}  // namespace
}  // namespace tidemill
