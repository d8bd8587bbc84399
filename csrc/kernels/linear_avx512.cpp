// Linear kernels for AVX-512 with F, BW, DQ, VL and VNNI: a vector holds all 16 columns of a tile.
//
// Keep to intrinsics and the templates of linear_impl.h here: an inline function of a shared header that the compiler
// does not inline would be exported with AVX-512 code in it (the test isa_leak looks for that).
#include <immintrin.h>

#include "kernels/linear_avx512_store.h"
#include "kernels/linear_avx512_weights.h"
#include "kernels/linear_impl.h"
#include "kernels/stream.h"

namespace tidemill {
namespace {

constexpr int kPrefetchGroups = 4;  // how far ahead of itself a tile's first call fetches into the nearest cache

inline __m512i broadcast_word(const void* p) {
  int word;
  __builtin_memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}

// Pins a value to a register. Without it the compiler hoists the row broadcasts of a whole group and spills them.
inline void pin(__m512i& value) { __asm__ volatile("" : "+v"(value)); }

// Activations and scales of R rows: whole panels of S rows, or the first R of one.
template <int S>
struct Rows {
  const std::int8_t* x;
  const float* scales;
  std::size_t groups;

  // The words of row r: its quad of activations, its scale, its scale_sum, its half sums.
  const std::int8_t* quad(int r, int q) const { return x + panel(r) * (kGroup * S) + 4 * (q * S + r % S); }
  const float* scale(int r) const { return scales + panel(r) * (kGroupScales * S) + r % S; }
  const float* scale_sum(int r) const { return scale(r) + S; }
  const float* half_sums(int r) const { return scale(r) + 2 * S; }

  void advance() {
    x += kGroup * S;
    scales += kGroupScales * S;
  }

 private:
  std::size_t panel(int r) const { return static_cast<std::size_t>(r / S) * groups; }
};

// sum[r] += codes . activations over quads [Begin, End). Products of four unsigned codes and four activations go to
// 32 bits at once, so no layout can overflow.
template <Layout L, int Begin, int End, int R, int S>
inline void add_quads(const std::uint8_t* w, const Rows<S>& rows, __m512i (&sum)[R]) {
  TIDEMILL_UNROLL
  for (int quad = Begin; quad < End; ++quad) {
    const __m512i codes = codes_at<L>(w, quad);
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) {
      sum[r] = _mm512_dpbusd_epi32(sum[r], codes, broadcast_word(rows.quad(r, quad)));
      pin(sum[r]);
    }
  }
}

// What the codes of each column are read as too much, negative, in pairs of int16 that the sums of the activations of both
// half groups are multiplied with (Halves 3), of the first (1) or of the second (2).
template <Layout L, int Halves>
inline __m512i minus_offsets(const std::uint8_t* group) {
  if constexpr (kShape<L>.scales == Scales::kHalfZero) {
    return _mm512_sub_epi16(_mm512_setzero_si512(), load_zero_pairs(group));
  } else {
    constexpr int kOffset = kSignedCodes<L> ? 128 : kShape<L>.offset;
    constexpr int kFirst = Halves & 1 ? -kOffset & 0xffff : 0;
    constexpr unsigned kSecond = Halves & 2 ? static_cast<unsigned>(-kOffset) << 16 : 0u;
    return _mm512_set1_epi32(static_cast<int>(kSecond | kFirst));
  }
}

template <Layout L, int Halves, int R, int S>
inline void begin_sums(const std::uint8_t* w, const Rows<S>& rows, __m512i (&sum)[R]) {
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    if constexpr (kSignedCodes<L> || kShape<L>.subtracts()) {
      sum[r] = _mm512_madd_epi16(minus_offsets<L, Halves>(w), broadcast_word(rows.half_sums(r)));
    } else {
      sum[r] = _mm512_setzero_si512();
    }
  }
}

// total[r] += the product of one group
template <Layout L, int R, int S>
inline void add_group(const BlockScales& block, const std::uint8_t* w, const Rows<S>& rows, __m512 (&total)[R]) {
  __m512i sum[R];
  begin_sums<L, 3>(w, rows, sum);
  add_quads<L, 0, 8>(w, rows, sum);
  const ColumnScales column = load_scales<L>(block, w);
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    const __m512 s = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r]), column.d);
    total[r] = _mm512_fmadd_ps(s, _mm512_set1_ps(*rows.scale(r)), total[r]);
    if constexpr (kShape<L>.super()) {
      total[r] = _mm512_fnmadd_ps(column.m, _mm512_set1_ps(*rows.scale_sum(r)), total[r]);
    } else if constexpr (kShape<L>.adds_minimum()) {
      total[r] = _mm512_fmadd_ps(column.m, _mm512_set1_ps(*rows.scale_sum(r)), total[r]);
    }
  }
}

// total[r] += the product of one group whose halves have scales of their own. The products of scales and sums are below
// 2^24, and so are their sums: as floats they are exact, and quicker than as integers.
template <Layout L, int R, int S>
inline void add_half_groups(const BlockScales& block, const std::uint8_t* w, const Rows<S>& rows, __m512 (&total)[R]) {
  const HalfScales half = load_half_scales<L>(w);
  __m512i sum[R];
  __m512 scaled[R];
  begin_sums<L, 1>(w, rows, sum);
  add_quads<L, 0, 4>(w, rows, sum);
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) scaled[r] = _mm512_mul_ps(half.first, _mm512_cvtepi32_ps(sum[r]));
  begin_sums<L, 2>(w, rows, sum);
  add_quads<L, 4, 8>(w, rows, sum);
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    const __m512 s = _mm512_fmadd_ps(half.second, _mm512_cvtepi32_ps(sum[r]), scaled[r]);
    const __m512 scale = _mm512_set1_ps(*rows.scale(r));
    total[r] = _mm512_fmadd_ps(_mm512_mul_ps(s, block.d), scale, total[r]);
    if constexpr (kShape<L>.has_minimum()) {
      const __m512i minimum = _mm512_madd_epi16(half.minimums, broadcast_word(rows.half_sums(r)));
      total[r] = _mm512_fnmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(minimum), block.m), scale, total[r]);
    }
  }
}

// R rows of panels of S rows x 16 outputs. Sums and accumulators of 8 rows fit 32 registers.
template <Layout L, int R, int S, bool Stream>
void multiply_tile(const std::uint8_t* w, const std::int8_t* x, const float* scales, std::int32_t groups, float* acc) {
  constexpr LayoutShape shape = kShape<L>;
  constexpr int kBytes = shape.group_bytes();
  Rows<S> rows{x, scales, static_cast<std::size_t>(groups)};
  BlockScales block{_mm512_setzero_ps(), _mm512_setzero_ps()};
  __m512 total[R];
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
  for (std::int32_t g = 0; g < groups; ++g, w += kBytes, rows.advance()) {
    if constexpr (shape.super()) {
      if (g % 8 == 0) {
        block = load_block<L>(w);
        w += shape.block_header();
      }
    }
    if constexpr (Stream) fetch_ahead<kBytes, kPrefetchGroups * kBytes>(w);
    if constexpr (shape.halves()) {
      add_half_groups<L>(block, w, rows, total);
    } else {
      add_group<L>(block, w, rows, total);
    }
  }
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) _mm512_store_ps(acc + kTileColumns * r, total[r]);
}

// 16 outputs of one half group as floats [k][16].
template <Layout L, int Half>
void expand_half(const BlockScales& block, const std::uint8_t* w, float* buffer) {
  const __m512 offset = _mm512_set1_ps(static_cast<float>(kSignedCodes<L> ? 128 : kShape<L>.offset));
  const ColumnScales scales = value_scales<L, Half>(block, w);
  TIDEMILL_UNROLL
  for (int quad = 4 * Half; quad < 4 * Half + 4; ++quad) {
    const __m512i codes = codes_at<L>(w, quad);
    TIDEMILL_UNROLL
    for (int j = 0; j < 4; ++j) {
      const __m512i top = _mm512_slli_epi32(codes, static_cast<unsigned>(24 - 8 * j));
      const __m512 code = _mm512_cvtepi32_ps(_mm512_srli_epi32(top, 24));
      const __m512 value = kShape<L>.has_minimum() ? _mm512_fmadd_ps(code, scales.d, scales.m)
                                                   : _mm512_mul_ps(_mm512_sub_ps(code, offset), scales.d);
      _mm512_store_ps(buffer + kTileColumns * (4 * quad + j), value);
    }
  }
}

// Read as f16 an 8-bit float is 2^8 too small; 256 * d makes up for it, and the product rounds once.
void expand_float8(const std::uint8_t* w, float* buffer) {
  const __m512 d = _mm512_mul_ps(_mm512_loadu_ps(reinterpret_cast<const float*>(w)), _mm512_set1_ps(256.0f));
  const __m256i magnitude = _mm256_set1_epi16(0x3f80), sign = _mm256_set1_epi16(static_cast<short>(0x8000));
  const std::uint8_t* codes = w + kShape<Layout::kFloat8>.group_header();
  for (int k = 0; k < kGroup; ++k) {
    const __m256i wide = _mm256_cvtepu8_epi16(load_bytes(codes + kTileColumns * k));
    const __m256i halves = _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(wide, 7), magnitude),
                                           _mm256_and_si256(_mm256_slli_epi16(wide, 8), sign));
    _mm512_store_ps(buffer + kTileColumns * k, _mm512_mul_ps(_mm512_cvtph_ps(halves), d));
  }
}

// The even (low) or odd (high) k of 16 bf16 pairs.
template <bool Odd>
inline __m512 half_of_pair(__m512i pairs) {
  const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm512_castsi512_ps(Odd ? _mm512_and_si512(pairs, odd) : _mm512_slli_epi32(pairs, 16));
}

// The 16 weights of one k in a float layout.
template <Layout L, bool Odd>
inline __m512 weights_at(const std::uint8_t* w, int k) {
  if constexpr (L == Layout::kF32) {
    return _mm512_loadu_ps(reinterpret_cast<const float*>(w) + kTileColumns * k);
  } else if constexpr (L == Layout::kF16) {
    return load_halves(w + 2 * kTileColumns * k);
  } else {
    return half_of_pair<Odd>(_mm512_loadu_si512(w + 4 * kTileColumns * (k / 2)));
  }
}

template <int R>
inline void add_k(__m512 w, const float* x, std::size_t stride, __m512 (&part)[R]) {
  TIDEMILL_UNROLL
  for (int r = 0; r < R; ++r) {
    part[r] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[static_cast<std::size_t>(r) * stride]), part[r]);
  }
}

// The larger magnitudes of a and b as bits. Without its sign a float orders like its bits, and infinity and NaN come last.
inline __m512i magnitude_bits(__m512 a, __m512 b) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  return _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                          _mm512_and_si512(_mm512_castps_si512(b), magnitude));
}

// The largest number of each of four vectors.
inline __m128i largest_of_each(const __m512i (&v)[4]) {
  const auto halves = [](__m512i a, __m512i b) {  // each to 8 numbers
    return _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
  };
  const __m512i a = halves(v[0], v[1]), b = halves(v[2], v[3]);
  const __m512i fours = _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  const __m512i twos = _mm512_max_epi32(fours, _mm512_shuffle_epi32(fours, _MM_PERM_BADC));
  const __m512i ones = _mm512_max_epi32(twos, _mm512_shuffle_epi32(twos, _MM_PERM_CDAB));
  const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, ones));
}

struct Avx512 : Avx512Store {
  static constexpr int kCallPanels = 2;  // 8 rows per call
  static constexpr int kFloatRows = 8;   // enough independent sums to hide the latency of an fma
  static constexpr int kFloatTiles = 3;  // 24 sums, their weights and an activation fit 32 registers

  static void quantize_group(const float* x, std::int8_t* values, float* scale, float* scale_sum,
                             std::int16_t* half_sums) {
    const __m512 in[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
    const GroupScale s = group_scale(_mm512_reduce_max_epi32(magnitude_bits(in[0], in[1])));
    const __m512 inverse = _mm512_set1_ps(s.inverse);
    const __mmask16 kept = s.inverse == 0.0f ? 0 : 0xffff;  // 0 * NaN would be NaN
    int sums[2];
    TIDEMILL_UNROLL
    for (int h = 0; h < 2; ++h) {
      const __m512 value = _mm512_maskz_mul_ps(kept, in[h], inverse);
      const __m512 clamped = _mm512_max_ps(_mm512_min_ps(value, _mm512_set1_ps(127.0f)), _mm512_set1_ps(-127.0f));
      const __m128i codes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(clamped));
      _mm_store_si128(reinterpret_cast<__m128i*>(values + 16 * h), codes);
      // Sums of eight unsigned bytes each, 128 more than the codes.
      const __m128i raised = _mm_xor_si128(codes, _mm_set1_epi8(static_cast<char>(0x80)));
      const __m128i eights = _mm_sad_epu8(raised, _mm_setzero_si128());
      sums[h] = _mm_cvtsi128_si32(eights) + _mm_extract_epi32(eights, 2) - 16 * 128;
      half_sums[h] = static_cast<std::int16_t>(sums[h]);
    }
    *scale = s.scale;
    *scale_sum = s.scale * static_cast<float>(sums[0] + sums[1]);
  }

  // Four values of one row and one quad lie in one lane of 128 bits: packing the rows lane by lane gives a panel's order.
  static bool quantize_panel_group(const float* x, std::size_t stride, std::int8_t* values, float* scales) {
    __m512 in[kPanelRows][2];
    __m512i peaks[kPanelRows];
    TIDEMILL_UNROLL
    for (std::size_t r = 0; r < kPanelRows; ++r) {
      in[r][0] = _mm512_loadu_ps(x + r * stride);
      in[r][1] = _mm512_loadu_ps(x + r * stride + 16);
      peaks[r] = magnitude_bits(in[r][0], in[r][1]);
    }
    const __m128i peak = largest_of_each(peaks);
    const __mmask8 odd = _mm_cmplt_epi32_mask(peak, _mm_set1_epi32(kSmallestPeak)) |
                         _mm_cmpge_epi32_mask(peak, _mm_set1_epi32(kInfinitePeak));
    if (odd != 0) return false;
    const __m128 scale = _mm_div_ps(_mm_castsi128_ps(peak), _mm_set1_ps(127.0f));
    const __m512 inverses = _mm512_broadcast_f32x4(_mm_div_ps(_mm_set1_ps(127.0f), _mm_castsi128_ps(peak)));
    const __m512 inverse[kPanelRows] = {_mm512_permute_ps(inverses, 0x00), _mm512_permute_ps(inverses, 0x55),
                                        _mm512_permute_ps(inverses, 0xaa), _mm512_permute_ps(inverses, 0xff)};
    __m128i sums[2];
    TIDEMILL_UNROLL
    for (int h = 0; h < 2; ++h) {
      // No magnitude can exceed 127 by more than two roundings, so there is nothing to clamp.
      const auto rounded = [&](int r) { return _mm512_cvtps_epi32(_mm512_mul_ps(in[r][h], inverse[r])); };
      const __m512i codes = _mm512_packs_epi16(_mm512_packs_epi32(rounded(0), rounded(1)),
                                               _mm512_packs_epi32(rounded(2), rounded(3)));
      _mm512_storeu_si512(values + 64 * h, codes);
      const __m512i quads = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), codes);
      const __m256i pairs = _mm256_add_epi32(_mm512_castsi512_si256(quads), _mm512_extracti64x4_epi64(quads, 1));
      sums[h] = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    }
    _mm_storeu_ps(scales, scale);
    _mm_storeu_ps(scales + 4, _mm_mul_ps(scale, _mm_cvtepi32_ps(_mm_add_epi32(sums[0], sums[1]))));
    _mm_storeu_ps(scales + 8, _mm_castsi128_ps(_mm_mask_blend_epi16(0xaa, sums[0], _mm_slli_epi32(sums[1], 16))));
    return true;
  }

  template <Layout L, int R, int S, bool Stream>
  static void quantized_tile(const std::uint8_t* w, const std::int8_t* x, const float* scales, std::int32_t groups,
                             float* acc) {
    multiply_tile<L, R, S, Stream>(w, x, scales, groups, acc);
  }

  template <Layout L>
  static void expand(const std::uint8_t* header, const std::uint8_t* w, std::int32_t count, float* buffer) {
    if constexpr (L >= Layout::kF16) {
      for (int k = 0; k < count; ++k) {
        const __m512 value = k % 2 == 0 ? weights_at<L, false>(w, k) : weights_at<L, true>(w, k);
        _mm512_store_ps(buffer + kTileColumns * k, value);
      }
    } else if constexpr (L == Layout::kFloat8) {
      expand_float8(w, buffer);
    } else {
      const BlockScales block = load_block<L>(header);
      expand_half<L, 0>(block, w, buffer);
      expand_half<L, 1>(block, w, buffer);
    }
  }

  template <Layout L>
  static constexpr bool kDirect = L >= Layout::kF16;

  // Every output adds one k after the other; bf16 stores k in pairs.
  template <Layout L, int R>
  static void add_chunk(const std::uint8_t* w, const float* x, std::size_t stride, std::int32_t count, float* acc) {
    __m512 part[R];
    TIDEMILL_UNROLL
    for (int r = 0; r < R; ++r) part[r] = _mm512_setzero_ps();
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
      float* row = acc + kTileColumns * r;
      _mm512_store_ps(row, _mm512_add_ps(_mm512_load_ps(row), part[r]));
    }
  }

  // An activation is loaded once for T products: with one, the loads would be what limits.
  template <int T>
  static void add_tiles(const float* const (&w)[T], const float* x, std::size_t stride, std::int32_t count, float* acc) {
    __m512 part[kFloatRows][T];
    TIDEMILL_UNROLL
    for (int r = 0; r < kFloatRows; ++r) {
      TIDEMILL_UNROLL
      for (int t = 0; t < T; ++t) part[r][t] = _mm512_setzero_ps();
    }
    for (std::int32_t k = 0; k < count; ++k) {
      __m512 weights[T];
      TIDEMILL_UNROLL
      for (int t = 0; t < T; ++t) weights[t] = _mm512_loadu_ps(w[t] + kTileColumns * k);
      TIDEMILL_UNROLL
      for (int r = 0; r < kFloatRows; ++r) {
        const __m512 value = _mm512_set1_ps(x[static_cast<std::size_t>(r) * stride + static_cast<std::size_t>(k)]);
        TIDEMILL_UNROLL
        for (int t = 0; t < T; ++t) part[r][t] = _mm512_fmadd_ps(weights[t], value, part[r][t]);
      }
    }
    TIDEMILL_UNROLL
    for (int r = 0; r < kFloatRows; ++r) {
      TIDEMILL_UNROLL
      for (int t = 0; t < T; ++t) {
        float* row = acc + t * kTileSums + r * kTileColumns;
        _mm512_store_ps(row, _mm512_add_ps(_mm512_load_ps(row), part[r][t]));
      }
    }
  }
};

}  // namespace

const LinearKernels& linear_kernels_avx512() {
  static constexpr LinearKernels kernels = {"avx512", quantize_groups<Avx512>, linear_quantized<Avx512>,
                                            linear_float<Avx512>};
  return kernels;
}

}  // namespace tidemill
