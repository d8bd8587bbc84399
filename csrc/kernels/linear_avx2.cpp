// Linear kernels for AVX2 with FMA and F16C (x86-64-v3).
//
// Keep to intrinsics and the templates of linear_impl.h here: an inline function of a shared header that the compiler
// does not inline would be exported with AVX2 code in it (the test isa_leak looks for that).
#include <immintrin.h>

#include "kernels/linear_avx2_expanded.h"
#include "kernels/linear_avx2_products.h"
#include "kernels/linear_avx2_weights.h"
#include "kernels/linear_impl.h"

namespace tidemill {
namespace {

inline int largest(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

inline int total(__m128i v) {
  const __m128i s = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// 16 outputs of one group as floats [k][16].
template <Layout L>
void expand_codes(const std::uint8_t* header, const std::uint8_t* w, float* buffer) {
  constexpr LayoutShape shape = kShape<L>;
  BlockScales block{};
  load_block<L>(header, block);
  constexpr bool kSigned = L == Layout::kQ8 || L == Layout::kQ4Table;
  const __m256 offset = _mm256_set1_ps(static_cast<float>(shape.offset));
  for (int c = 0; c < 2; ++c) {
    TIDEMILL_UNROLL
    for (int half = 0; half < 2; ++half) {
      const ColumnScales scales = value_scales<L>(block, w, c, half);
      TIDEMILL_UNROLL
      for (int quad = 4 * half; quad < 4 * half + 4; ++quad) {
        const __m256i codes = codes_at<L>(w, c, quad);
        TIDEMILL_UNROLL
        for (int j = 0; j < 4; ++j) {
          const __m256i top = _mm256_slli_epi32(codes, 24 - 8 * j);
          const __m256 code = _mm256_cvtepi32_ps(kSigned ? _mm256_srai_epi32(top, 24) : _mm256_srli_epi32(top, 24));
          const __m256 value = shape.has_minimum() ? _mm256_fmadd_ps(code, scales.d, scales.m)
                                                   : _mm256_mul_ps(_mm256_sub_ps(code, offset), scales.d);
          _mm256_store_ps(buffer + 16 * (4 * quad + j) + 8 * c, value);
        }
      }
    }
  }
}

void expand_f16(const std::uint8_t* w, int count, float* buffer) {
  for (int i = 0; i < 2 * count; ++i) _mm256_store_ps(buffer + 8 * i, load_halves(w + 16 * i));
}

// Read as f16 an 8-bit float is 2^8 too small; 256 * d makes up for it, and the product rounds once.
void expand_float8(const std::uint8_t* w, float* buffer) {
  const __m256 up = _mm256_set1_ps(256.0f);
  const float* d = reinterpret_cast<const float*>(w);
  const __m256 left = _mm256_mul_ps(_mm256_loadu_ps(d), up), right = _mm256_mul_ps(_mm256_loadu_ps(d + 8), up);
  const __m256i magnitude = _mm256_set1_epi16(0x3f80), sign = _mm256_set1_epi16(static_cast<short>(0x8000));
  const std::uint8_t* codes = w + kShape<Layout::kFloat8>.group_header();
  for (int k = 0; k < kGroup; ++k, buffer += kTileColumns) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + kTileColumns * k));
    const __m256i wide = _mm256_cvtepu8_epi16(bytes);
    const __m256i halves = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(wide, 7), magnitude),
                                           _mm256_and_si256(_mm256_slli_epi16(wide, 8), sign));
    _mm256_store_ps(buffer, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), left));
    _mm256_store_ps(buffer + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)), right));
  }
}

// The even (low) or odd (high) k of eight bf16 pairs.
template <bool Odd>
inline __m256 half_of_pair(__m256i pairs) {
  const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm256_castsi256_ps(Odd ? _mm256_and_si256(pairs, odd) : _mm256_slli_epi32(pairs, 16));
}

void expand_bf16(const std::uint8_t* w, int count, float* buffer) {
  for (int k = 0; k < count; k += 2) {  // an odd count writes one row more: the buffer always has 32
    for (int c = 0; c < 2; ++c) {
      const __m256i pairs = load(w + 32 * (k + c));
      _mm256_store_ps(buffer + 16 * k + 8 * c, half_of_pair<false>(pairs));
      _mm256_store_ps(buffer + 16 * (k + 1) + 8 * c, half_of_pair<true>(pairs));
    }
  }
}

struct Columns {
  __m256 left, right;
};

// The 16 weights of one k in a float layout.
template <Layout L, bool Odd>
inline Columns weights_at(const std::uint8_t* w, int k) {
  if constexpr (L == Layout::kF32) {
    const float* row = reinterpret_cast<const float*>(w) + kTileColumns * k;
    return {_mm256_loadu_ps(row), _mm256_loadu_ps(row + 8)};
  } else if constexpr (L == Layout::kF16) {
    return {load_halves(w + 32 * k), load_halves(w + 32 * k + 16)};
  } else {
    const std::uint8_t* pairs = w + 64 * (k / 2);
    return {half_of_pair<Odd>(load(pairs)), half_of_pair<Odd>(load(pairs + 32))};
  }
}

template <int R>
inline void add_k(Columns w, const float* x, std::size_t stride, __m256 (&part)[R][2]) {
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    const __m256 value = _mm256_broadcast_ss(x + static_cast<std::size_t>(r) * stride);
    part[r][0] = _mm256_fmadd_ps(w.left, value, part[r][0]);
    part[r][1] = _mm256_fmadd_ps(w.right, value, part[r][1]);
  }
}

inline __m256i column_mask(int columns) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(columns), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

struct Avx2 {
  static constexpr int kCallPanels = 1;
  static constexpr int kFloatRows = 6;  // 12 sums, two vectors of weights and an activation: 15 of 16 registers
  static constexpr int kFloatTiles = 1;

  static void quantize_group(const float* x, std::int8_t* values, float* scale, float* scale_sum,
                             std::int16_t* half_sums) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 in[4];
    __m256i peaks = _mm256_setzero_si256();
    TIDEMILL_UNROLL
    for (int i = 0; i < 4; ++i) {
      in[i] = _mm256_loadu_ps(x + 8 * i);
      // Without its sign a float orders like its bits, and infinity and NaN come last.
      peaks = _mm256_max_epi32(peaks, _mm256_and_si256(_mm256_castps_si256(in[i]), magnitude));
    }
    const GroupScale s = group_scale(largest(peaks));
    const __m256 inverse = _mm256_set1_ps(s.inverse);
    const __m256 limit = _mm256_set1_ps(127.0f);
    const __m256 floor = _mm256_set1_ps(-127.0f);
    __m256i codes[4];
    TIDEMILL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m256 value = _mm256_mul_ps(in[i], inverse);
      codes[i] = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(value, limit), floor));
    }
    __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3]));
    packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    if (s.inverse == 0.0f) packed = _mm256_setzero_si256();  // 0 * NaN above
    _mm256_store_si256(reinterpret_cast<__m256i*>(values), packed);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), packed);
    *scale = s.scale;
    const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const int first = total(_mm256_castsi256_si128(quads));
    const int second = total(_mm256_extracti128_si256(quads, 1));
    *scale_sum = s.scale * static_cast<float>(first + second);
    half_sums[0] = static_cast<std::int16_t>(first);
    half_sums[1] = static_cast<std::int16_t>(second);
  }

  template <Layout L, int R, int S, bool Stream>
  static void quantized_tile(const std::uint8_t* w, const std::int8_t* x, const float* scales, std::int32_t groups,
                             float* acc) {
    clear<R>(acc);
    add_product<L, R, S>(PackedGroups<L, Stream>(w), x, scales, groups, acc);
  }

  template <Layout L>
  static void expand(const std::uint8_t* block, const std::uint8_t* w, std::int32_t count, float* buffer) {
    if constexpr (L == Layout::kF16) {
      expand_f16(w, count, buffer);
    } else if constexpr (L == Layout::kBF16) {
      expand_bf16(w, count, buffer);
    } else if constexpr (L == Layout::kFloat8) {
      expand_float8(w, buffer);
    } else {
      expand_codes<L>(block, w, buffer);
    }
  }

  template <Layout L>
  static constexpr bool kDirect = L >= Layout::kF16;

  // Every output adds one k after the other; bf16 stores k in pairs.
  template <Layout L, int R>
  static void add_chunk(const std::uint8_t* w, const float* x, std::size_t stride, std::int32_t count, float* acc) {
    __m256 part[R][2];
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) part[r][0] = part[r][1] = _mm256_setzero_ps();
    std::int32_t k = 0;
    if constexpr (L == Layout::kBF16) {
      for (; k + 1 < count; k += 2) {
        add_k<R>(weights_at<L, false>(w, k), x + k, stride, part);
        add_k<R>(weights_at<L, true>(w, k + 1), x + k + 1, stride, part);
      }
    }
    for (; k < count; ++k) add_k<R>(weights_at<L, false>(w, k), x + k, stride, part);
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      _mm256_store_ps(acc + 16 * r, _mm256_add_ps(_mm256_load_ps(acc + 16 * r), part[r][0]));
      _mm256_store_ps(acc + 16 * r + 8, _mm256_add_ps(_mm256_load_ps(acc + 16 * r + 8), part[r][1]));
    }
  }

  static void store_row(const float* acc, std::int32_t columns, float* out, const float* bias, const float* residual) {
    for (int c = 0; c < 2; ++c) {
      __m256 value = _mm256_load_ps(acc + 8 * c);
      if (columns == kTileColumns) {
        if (bias != nullptr) value = _mm256_add_ps(value, _mm256_loadu_ps(bias + 8 * c));
        if (residual != nullptr) value = _mm256_add_ps(value, _mm256_loadu_ps(residual + 8 * c));
        _mm256_storeu_ps(out + 8 * c, value);
      } else if (columns > 8 * c) {
        const __m256i mask = column_mask(columns - 8 * c);
        if (bias != nullptr) value = _mm256_add_ps(value, _mm256_maskload_ps(bias + 8 * c, mask));
        if (residual != nullptr) value = _mm256_add_ps(value, _mm256_maskload_ps(residual + 8 * c, mask));
        _mm256_maskstore_ps(out + 8 * c, mask, value);
      }
    }
  }
};

// Many rows pay for weights expanded first; tests that force a variant get the products of packed ones.
void linear_quantized_avx2(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t tile_begin,
                           std::int32_t tile_end, const LinearOutput& output, int variant, ExpandedTiles* kept) {
  if (variant > 0 || x.rows < kExpandedRows) {
    linear_quantized<Avx2>(weight, x, tile_begin, tile_end, output, variant, kept);
    return;
  }
  with_quantized_layout(weight.layout, [&]<Layout L>() {
    expanded_tiles<Avx2, L>(weight, x, tile_begin, tile_end, output);
  });
}

}  // namespace

const LinearKernels& linear_kernels_avx2() {
  static constexpr LinearKernels kernels = {"avx2", quantize_groups<Avx2>, linear_quantized_avx2, linear_float<Avx2>};
  return kernels;
}

}  // namespace tidemill
