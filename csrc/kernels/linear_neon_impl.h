// Linear kernels for 64-bit ARM, shared by linear_neon.cpp and linear_neon_dot.cpp, which differ in how they multiply
// integers. 32 vector registers hold the activations of a group of four rows (8), the sums of four columns (4 or 8) and
// the codes, so a tile is worked on as four blocks of four columns.
//
// Products, a type of the including file's anonymous namespace, gives
//   add<L, R, Quads>(group, b, begin, x, sum)   sum[r] of four columns += codes * activations of `Quads` quads from begin
#pragma once
#include <utility>

#include "kernels/linear_neon_weights.h"
#include "kernels/stream.h"

namespace tidemill {
namespace {

constexpr int kPrefetchGroups = 4;  // how far ahead of itself a tile's first panel fetches into the nearest cache
constexpr int kQuads = kGroup / 4;

// Calls body with the constants 0 .. Count - 1: lanes of a vector must be constants.
template <int Count, class Body>
inline __attribute__((always_inline)) void repeat(Body body) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, Count>{});
}

// A group of activations of R rows of a panel of S: the words (four int8) of quad q and row r at q * R + r.
template <int R>
struct Activations {
  int32x4_t words[kQuads * R / 4];

  template <int S>
  static Activations load(const std::int8_t* x) {
    Activations a;
    if constexpr (R == S) {
      for (int i = 0; i < 2 * R; ++i) a.words[i] = vreinterpretq_s32_s8(vld1q_s8(x + 16 * i));
    } else {
      std::int32_t rows[kQuads * R];
      for (int q = 0; q < kQuads; ++q) __builtin_memcpy(rows + q * R, x + 4 * q * S, 4 * R);
      for (int i = 0; i < 2 * R; ++i) a.words[i] = vld1q_s32(rows + 4 * i);
    }
    return a;
  }
};

// The sums of the activations of one row's half groups.
struct HalfSums {
  std::int16_t first, second;

  explicit HalfSums(const float* word) { __builtin_memcpy(this, word, 4); }
};

// What the sums of four columns of one row begin with: minus what their codes are read as too much.
template <Layout L, int S>
inline int32x4_t begin_sum(const std::uint8_t* group, int b, const float* x) {
  if constexpr (!kShape<L>.subtracts() || kShape<L>.halves()) return vdupq_n_s32(0);
  const HalfSums half_sums(x + 2 * S);
  const int total = half_sums.first + half_sums.second;
  if constexpr (kShape<L>.scales == Scales::kHalfZero) return vmulq_n_s32(widen_bytes(group + 32 + 4 * b), -total);
  return vdupq_n_s32(-kShape<L>.offset * total);
}

// acc of four columns of one row += sum * d * scale + m * scale_sum
template <Layout L, int S>
inline void add_group(int32x4_t sum, const ColumnScales& w, const float* x, float* acc) {
  float32x4_t value = vfmaq_f32(vld1q_f32(acc), vmulq_f32(vcvtq_f32_s32(sum), w.d), vdupq_n_f32(x[0]));
  if constexpr (kShape<L>.super()) {
    value = vfmsq_f32(value, w.m, vdupq_n_f32(x[S]));
  } else if constexpr (kShape<L>.adds_minimum()) {
    value = vfmaq_f32(value, w.m, vdupq_n_f32(x[S]));
  }
  vst1q_f32(acc, value);
}

// acc of four columns of one row += the product of both half groups
template <Layout L, int S>
inline void add_half_groups(int32x4_t first, int32x4_t second, const HalfScales& half, const ColumnScales& w,
                            const float* x, float* acc) {
  const HalfSums sums(x + 2 * S);
  const int32x4_t sum = vmlaq_s32(vmulq_s32(half.scale[0], first), half.scale[1], second);
  const int32x4_t minimum = vmlaq_n_s32(vmulq_n_s32(half.minimum[0], sums.first), half.minimum[1], sums.second);
  const float32x4_t scale = vdupq_n_f32(x[0]);
  float32x4_t value = vld1q_f32(acc);
  if constexpr (kShape<L>.has_minimum()) {
    value = vfmaq_f32(value, vmulq_f32(vcvtq_f32_s32(sum), w.d), scale);
    value = vfmsq_f32(value, vmulq_f32(vcvtq_f32_s32(minimum), w.m), scale);
  } else {
    value = vfmaq_f32(value, vmulq_f32(vcvtq_f32_s32(vsubq_s32(sum, minimum)), w.d), scale);
  }
  vst1q_f32(acc, value);
}

// One group of one block of four columns, for R rows.
template <class Products, Layout L, int R, int S>
inline void add_columns(const BlockScales& block, const std::uint8_t* group, int b, const Activations<R>& x,
                        const float* scales, float* acc) {
  const ColumnScales column = load_scales<L>(block, group, b);
  int32x4_t sum[2][R];
  for (int i = 0; i < 2 * R; ++i) sum[i / R][i % R] = begin_sum<L, S>(group, b, scales + i % R);
  if constexpr (kShape<L>.halves()) {
    const HalfScales half = load_half_scales<L>(group, b);
    Products::template add<L, R, 0, kQuads / 2>(group, b, x, sum[0]);
    Products::template add<L, R, kQuads / 2, kQuads>(group, b, x, sum[1]);
    for (int r = 0; r < R; ++r) {
      add_half_groups<L, S>(sum[0][r], sum[1][r], half, column, scales + r, acc + kTileColumns * r);
    }
  } else {
    Products::template add<L, R, 0, kQuads>(group, b, x, sum[0]);
    for (int r = 0; r < R; ++r) add_group<L, S>(sum[0][r], column, scales + r, acc + kTileColumns * r);
  }
}

// 16 outputs of one group as floats [k][16].
template <Layout L>
void expand_codes(const std::uint8_t* header, const std::uint8_t* w, float* buffer) {
  constexpr LayoutShape shape = kShape<L>;
  BlockScales block{};
  load_block<L>(header, block);
  const float32x4_t offset = vdupq_n_f32(static_cast<float>(shape.offset));
  for (int b = 0; b < kColumnBlocks; ++b) {
    TIDEMILL_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const ColumnScales scales = value_scales<L>(block, w, b, quad / (kQuads / 2));
      const int32x4_t codes = vreinterpretq_s32_s8(codes_at<L>(w, b, quad));
      TIDEMILL_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float32x4_t code = vcvtq_f32_s32(codes << (24 - 8 * j) >> 24);
        const float32x4_t value = shape.has_minimum() ? vfmaq_f32(scales.m, code, scales.d)
                                                      : vmulq_f32(vsubq_f32(code, offset), scales.d);
        vst1q_f32(buffer + kTileColumns * (4 * quad + j) + 4 * b, value);
      }
    }
  }
}

// Read as f16 an 8-bit float is 2^8 too small; 256 * d makes up for it, and the product rounds once.
inline void expand_float8(const std::uint8_t* w, float* buffer) {
  const std::uint8_t* codes = w + kShape<Layout::kFloat8>.group_header();
  for (int b = 0; b < kColumnBlocks; b += 2) {
    const float* d = reinterpret_cast<const float*>(w) + 4 * b;
    const float32x4_t left = vmulq_n_f32(vld1q_f32(d), 256.0f), right = vmulq_n_f32(vld1q_f32(d + 4), 256.0f);
    for (int k = 0; k < kGroup; ++k) {
      const uint16x8_t wide = vmovl_u8(vld1_u8(codes + kTileColumns * k + 4 * b));
      const uint16x8_t halves = (wide << 7 & std::uint16_t{0x3f80}) | (wide << 8 & std::uint16_t{0x8000});
      const float16x8_t values = vreinterpretq_f16_u16(halves);
      vst1q_f32(buffer + kTileColumns * k + 4 * b, vmulq_f32(vcvt_f32_f16(vget_low_f16(values)), left));
      vst1q_f32(buffer + kTileColumns * k + 4 * b + 4, vmulq_f32(vcvt_high_f32_f16(values), right));
    }
  }
}

// The 16 weights of one k in a float layout.
struct Columns {
  float32x4_t block[kColumnBlocks];
};

template <Layout L>
inline Columns weights_at(const std::uint8_t* w, int k) {
  Columns columns;
  for (int b = 0; b < kColumnBlocks; ++b) {
    if constexpr (L == Layout::kF32) {
      columns.block[b] = vld1q_f32(reinterpret_cast<const float*>(w) + kTileColumns * k + 4 * b);
    } else if constexpr (L == Layout::kF16) {
      columns.block[b] = load_halves(w + 32 * k + 8 * b);
    } else {
      const uint32x4_t pairs = vreinterpretq_u32_u8(vld1q_u8(w + 64 * (k / 2) + 16 * b));
      const uint32x4_t odd = vandq_u32(pairs, vdupq_n_u32(0xffff0000u));
      columns.block[b] = vreinterpretq_f32_u32(k % 2 == 0 ? vshlq_n_u32(pairs, 16) : odd);
    }
  }
  return columns;
}

// One row of the epilogue for `count` columns from `from` on; tails run the same vector code.
inline float32x4_t load_first(const float* p, int count) {
  float lanes[4] = {};
  __builtin_memcpy(lanes, p, sizeof(float) * static_cast<unsigned>(count));
  return vld1q_f32(lanes);
}

template <class Products>
struct NeonKernels {
  static constexpr int kCallPanels = 1;
  static constexpr int kFloatRows = kPanelRows;
  static constexpr int kFloatTiles = 1;

  static void quantize_group(const float* x, std::int8_t* values, float* scale, float* scale_sum,
                             std::int16_t* half_sums) {
    const int32x4_t magnitude = vdupq_n_s32(0x7fffffff);
    float32x4_t in[8];
    int32x4_t peaks = vdupq_n_s32(0);
    TIDEMILL_UNROLL
    for (int i = 0; i < 8; ++i) {
      in[i] = vld1q_f32(x + 4 * i);
      // Without its sign a float orders like its bits, and infinity and NaN come last.
      peaks = vmaxq_s32(peaks, vandq_s32(vreinterpretq_s32_f32(in[i]), magnitude));
    }
    const GroupScale s = group_scale(vmaxvq_s32(peaks));
    const float32x4_t limit = vdupq_n_f32(127.0f);
    int total = 0;
    TIDEMILL_UNROLL
    for (int half = 0; half < 2; ++half) {
      int16x4_t codes[4];
      TIDEMILL_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float32x4_t value = vmulq_n_f32(in[4 * half + i], s.inverse);
        codes[i] = vmovn_s32(vcvtnq_s32_f32(vmaxq_f32(vminq_f32(value, limit), vnegq_f32(limit))));
      }
      int8x16_t packed = vcombine_s8(vmovn_s16(vcombine_s16(codes[0], codes[1])),
                                     vmovn_s16(vcombine_s16(codes[2], codes[3])));
      if (s.inverse == 0.0f) packed = vdupq_n_s8(0);  // infinity above
      vst1q_s8(values + 16 * half, packed);
      half_sums[half] = vaddlvq_s8(packed);
      total += half_sums[half];
    }
    *scale = s.scale;
    *scale_sum = s.scale * static_cast<float>(total);
  }

  template <Layout L, int R, int S, bool Stream>
  static void quantized_tile(const std::uint8_t* w, const std::int8_t* x, const float* scales, std::int32_t groups,
                             float* acc) {
    constexpr int kBytes = kShape<L>.group_bytes();
    BlockScales block{};
    for (int i = 0; i < R * kColumnBlocks; ++i) vst1q_f32(acc + 4 * i, vdupq_n_f32(0.0f));
    for (std::int32_t g = 0; g < groups; ++g, w += kBytes, x += kGroup * S, scales += kGroupScales * S) {
      if (kShape<L>.super() && g % 8 == 0) {
        load_block<L>(w, block);
        w += kShape<L>.block_header();
      }
      if constexpr (Stream) fetch_ahead<kBytes, kPrefetchGroups * kBytes>(w);
      const auto values = Activations<R>::template load<S>(x);
      TIDEMILL_UNROLL
      for (int b = 0; b < kColumnBlocks; ++b) {
        add_columns<Products, L, R, S>(block, w, b, values, scales, acc + 4 * b);
      }
    }
  }

  template <Layout L>
  static void expand(const std::uint8_t* block, const std::uint8_t* w, std::int32_t count, float* buffer) {
    if constexpr (L == Layout::kFloat8) {
      expand_float8(w, buffer);
    } else if constexpr (L < Layout::kF16) {
      expand_codes<L>(block, w, buffer);
    } else {
      for (int k = 0; k < count; ++k) {
        const Columns columns = weights_at<L>(w, k);
        for (int b = 0; b < kColumnBlocks; ++b) vst1q_f32(buffer + kTileColumns * k + 4 * b, columns.block[b]);
      }
    }
  }

  template <Layout L>
  static constexpr bool kDirect = L >= Layout::kF16;

  // Every output adds one k after the other.
  template <Layout L, int R>
  static void add_chunk(const std::uint8_t* w, const float* x, std::size_t stride, std::int32_t count, float* acc) {
    float32x4_t part[R][kColumnBlocks];
    TIDEMILL_UNROLL
    for (int i = 0; i < R * kColumnBlocks; ++i) part[i / kColumnBlocks][i % kColumnBlocks] = vdupq_n_f32(0.0f);
    const auto add_k = [&](const Columns& columns, int r, float32x4_t values, auto lane) __attribute__((always_inline)) {
      TIDEMILL_UNROLL
      for (int b = 0; b < kColumnBlocks; ++b) {
        part[r][b] = vfmaq_laneq_f32(part[r][b], columns.block[b], values, lane);
      }
    };
    std::int32_t k = 0;
    for (; k + 4 <= count; k += 4) {
      float32x4_t values[R];
      for (int r = 0; r < R; ++r) values[r] = vld1q_f32(x + static_cast<std::size_t>(r) * stride + k);
      repeat<4>([&](auto j) __attribute__((always_inline)) {
        const Columns columns = weights_at<L>(w + kBytesPerQuad<L> * (k / 4), j);
        TIDEMILL_UNROLL
        for (int r = 0; r < R; ++r) add_k(columns, r, values[r], j);
      });
    }
    for (; k < count; ++k) {
      const Columns columns = weights_at<L>(w, k);
      for (int r = 0; r < R; ++r) {
        add_k(columns, r, vdupq_n_f32(x[static_cast<std::size_t>(r) * stride + k]), std::integral_constant<int, 0>{});
      }
    }
    TIDEMILL_UNROLL
    for (int i = 0; i < R * kColumnBlocks; ++i) {
      vst1q_f32(acc + 4 * i, vaddq_f32(vld1q_f32(acc + 4 * i), part[i / kColumnBlocks][i % kColumnBlocks]));
    }
  }

  static void store_row(const float* acc, std::int32_t columns, float* out, const float* bias, const float* residual) {
    for (std::int32_t c = 0; c < columns; c += 4) {
      const std::int32_t count = columns - c < 4 ? columns - c : 4;
      float32x4_t value = vld1q_f32(acc + c);
      if (count == 4) {
        if (bias != nullptr) value = vaddq_f32(value, vld1q_f32(bias + c));
        if (residual != nullptr) value = vaddq_f32(value, vld1q_f32(residual + c));
        vst1q_f32(out + c, value);
      } else {
        if (bias != nullptr) value = vaddq_f32(value, load_first(bias + c, count));
        if (residual != nullptr) value = vaddq_f32(value, load_first(residual + c, count));
        float lanes[4];
        vst1q_f32(lanes, value);
        __builtin_memcpy(out + c, lanes, sizeof(float) * static_cast<unsigned>(count));
      }
    }
  }

 private:
  template <Layout L>
  static constexpr int kBytesPerQuad = L == Layout::kF32 ? 256 : 128;
};

}  // namespace
}  // namespace tidemill
