// How the NEON kernels read packed block weights: the codes of a quad of k and the scales of four columns (linear.h has the
// layouts). `b` is the block of four columns, 0 to 3, of a tile.
//
// For linear_neon_impl.h alone: everything is in an anonymous namespace, and compiled once per instruction set.
#pragma once
#include <arm_neon.h>

#include "kernels/layout.h"
#include "kernels/linear_impl.h"

namespace tidemill {
namespace {

constexpr int kColumnBlocks = kTileColumns / 4;

inline float32x4_t load_halves(const std::uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

// Bits of quad `quad` of one plane, at bits [to, to + Bits) of every byte. All but `plane` are constants once unrolled.
template <int Bits>
inline uint8x16_t plane_codes(const std::uint8_t* plane, int b, int quad, int to) {
  constexpr int kPerByte = 8 / Bits;
  const uint8x16_t bytes = vld1q_u8(plane + 32 * (Bits * (b / 2) + quad / kPerByte) + 16 * (b % 2));
  const int from = quad % kPerByte * Bits;
  const uint8x16_t shifted = from <= to ? bytes << (to - from) : bytes >> (from - to);
  return from > to && from == 8 - Bits && to == 0 ? shifted
                                                  : shifted & static_cast<std::uint8_t>(((1 << Bits) - 1) << to);
}

// The codes of one quad of k of four columns; `group` is where the group's header is. All are below 128 in magnitude.
template <Layout L>
inline int8x16_t codes_at(const std::uint8_t* group, int b, int quad) {
  constexpr LayoutShape shape = kShape<L>;
  constexpr int kBase = shape.base_bits();
  constexpr int kExtra = shape.bits - kBase;
  const std::uint8_t* planes = group + shape.group_header();
  if constexpr (L == Layout::kQ8) {
    return vreinterpretq_s8_u8(vld1q_u8(planes + 64 * quad + 16 * b));
  } else {
    uint8x16_t codes = plane_codes<kBase>(planes, b, quad, 0);
    if constexpr (kExtra > 0) codes |= plane_codes<kExtra>(planes + shape.extra_plane(), b, quad, kBase);
    if constexpr (L == Layout::kQ4Table) return vqtbl1q_s8(vld1q_s8(kQ4Codes), codes);
    if constexpr (L == Layout::kFloat4Table) return vqtbl1q_s8(vld1q_s8(kFloat4Codes), codes);
    return vreinterpretq_s8_u8(codes);
  }
}

inline int32x4_t widen_bytes(const std::uint8_t* p) {
  std::uint32_t bytes;
  __builtin_memcpy(&bytes, p, 4);
  const uint16x8_t words = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bytes)));
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words)));
}

inline float32x4_t load_exponents(const std::uint8_t* p) {  // 2^(e - 128); those below the normal floats are e = 0 and 1
  const int32x4_t e = widen_bytes(p);
  const int32x4_t one = vdupq_n_s32(1);
  const int32x4_t normal = vshlq_n_s32(vsubq_s32(e, one), 23);
  const int32x4_t tiny = vshlq_s32(vdupq_n_s32(0x00200000), vminq_s32(e, one));
  return vreinterpretq_f32_s32(vbslq_s32(vcgtq_s32(e, one), normal, tiny));
}

// The header of 256 k as floats, so that its groups need not widen it: 16 D, 16 M.
struct BlockScales {
  float values[2 * kTileColumns];

  float32x4_t d(int b) const { return vld1q_f32(values + 4 * b); }
  float32x4_t m(int b) const { return vld1q_f32(values + kTileColumns + 4 * b); }
};

template <Layout L>
inline void load_block(const std::uint8_t* header, BlockScales& block) {
  for (int i = 0; i < kShape<L>.block_header() / 8; ++i) vst1q_f32(block.values + 4 * i, load_halves(header + 8 * i));
}

// Of four columns: what codes, or sums of their products, are multiplied with, and what is added to them, or times sums of
// activations. The minimums of blocks of 256 are subtracted.
struct ColumnScales {
  float32x4_t d, m;
};

template <Layout L>
inline ColumnScales load_scales(const BlockScales& block, const std::uint8_t* group, int b) {
  constexpr LayoutShape shape = kShape<L>;
  if constexpr (shape.halves()) {
    return {block.d(b), shape.has_minimum() ? block.m(b) : block.d(b)};
  } else if constexpr (shape.scales == Scales::kSuper) {
    return {vmulq_f32(vcvtq_f32_s32(widen_bytes(group + 4 * b)), block.d(b)),
            vmulq_f32(vcvtq_f32_s32(widen_bytes(group + 16 + 4 * b)), block.m(b))};
  } else {
    const float32x4_t d = shape.scales == Scales::kExponent ? load_exponents(group + 4 * b) : load_halves(group + 8 * b);
    if constexpr (shape.scales == Scales::kHalfZero) {
      return {d, vnegq_f32(vmulq_f32(d, vcvtq_f32_s32(widen_bytes(group + 32 + 4 * b))))};
    }
    if constexpr (shape.has_minimum()) return {d, load_halves(group + 32 + 8 * b)};
    return {d, vdupq_n_f32(0.0f)};
  }
}

// The integers that scale the half groups of four columns: [half].
struct HalfScales {
  int32x4_t scale[2], minimum[2];
};

inline void split_pairs(int16x8_t pairs, int32x4_t (&half)[2]) {
  const int32x4_t both = vreinterpretq_s32_s16(pairs);
  half[0] = vshrq_n_s32(vshlq_n_s32(both, 16), 16);
  half[1] = vshrq_n_s32(both, 16);
}

template <Layout L>
inline HalfScales load_half_scales(const std::uint8_t* group, int b) {
  const uint8x8_t bytes = vld1_u8(group + 8 * b);
  HalfScales scales;
  if constexpr (kShape<L>.has_minimum()) {
    split_pairs(vreinterpretq_s16_u16(vmovl_u8(vand_u8(bytes, vdup_n_u8(15)))), scales.scale);
    split_pairs(vreinterpretq_s16_u16(vmovl_u8(vshr_n_u8(bytes, 4))), scales.minimum);
  } else {
    split_pairs(vmovl_s8(vreinterpret_s8_u8(bytes)), scales.scale);
    for (int h = 0; h < 2; ++h) scales.minimum[h] = vmulq_n_s32(scales.scale[h], kShape<L>.offset);
  }
  return scales;
}

// Scale and minimum (to add) of the values of four columns and one half group.
template <Layout L>
inline ColumnScales value_scales(const BlockScales& block, const std::uint8_t* group, int b, int half) {
  const ColumnScales scales = load_scales<L>(block, group, b);
  if constexpr (kShape<L>.scales == Scales::kSuper) return {scales.d, vnegq_f32(scales.m)};
  if constexpr (!kShape<L>.halves()) return scales;
  const HalfScales integers = load_half_scales<L>(group, b);
  return {vmulq_f32(scales.d, vcvtq_f32_s32(integers.scale[half])),
          vnegq_f32(vmulq_f32(scales.m, vcvtq_f32_s32(integers.minimum[half])))};
}

}  // namespace
}  // namespace tidemill
