// The compute layouts of block formats as numbers, for packing and kernels alike (linear.h draws them).
//
// Everything is static or a constant: files compiled for different instruction sets share no code through this header.
#pragma once
#include "kernels/linear.h"

namespace tidemill {

// How a layout scales its codes.
enum class Scales : std::uint8_t {
  kNone,         // float layouts
  kHalf,         // per group: f16 d
  kHalfPair,     // per group: f16 d, m
  kExponent,     // per group: power of two
  kHalfZero,     // per group: f16 d, u8 z; m = -(d * z)
  kFloat,        // per group: f32 d
  kSuper,        // per 256 k: f16 D, M; per group: u8 sc, mn
  kHalves,       // per 256 k: f16 D; per half group: int8 sc
  kHalvesPair,   // per 256 k: f16 D, M; per half group: 4-bit sc, mn
};

struct LayoutShape {
  int bits;  // per code
  Scales scales;
  int offset;  // value = (code - offset) * d

  constexpr bool super() const { return scales >= Scales::kSuper; }
  constexpr bool halves() const { return scales >= Scales::kHalves; }
  constexpr bool has_minimum() const {
    return scales == Scales::kHalfPair || scales == Scales::kHalfZero || scales == Scales::kSuper ||
           scales == Scales::kHalvesPair;
  }
  // What a product with 8-bit activations does with the constants beside the codes: subtracts them within its integer
  // sums, or adds them, times the sum of the activations, as floats.
  constexpr bool subtracts() const { return offset > 0 || scales == Scales::kHalfZero; }
  constexpr bool adds_minimum() const { return has_minimum() && scales != Scales::kHalfZero; }
  constexpr int block() const { return super() ? 256 : kGroup; }  // values along k
  constexpr int block_header() const { return !super() ? 0 : scales == Scales::kHalves ? 32 : 64; }
  constexpr int group_header() const {
    switch (scales) {
      case Scales::kExponent: return 16;
      case Scales::kHalfZero: return 48;
      case Scales::kHalfPair:
      case Scales::kFloat: return 64;
      default: return 32;
    }
  }
  constexpr int group_bytes() const { return group_header() + kTileColumns * kGroup / 8 * bits; }
  constexpr int block_bytes() const { return block_header() + block() / kGroup * group_bytes(); }
  constexpr int base_bits() const { return bits >= 4 ? 4 : 2; }                       // of the first plane of codes
  constexpr int extra_plane() const { return kTileColumns * kGroup / 8 * base_bits(); }  // where the second begins
};

static constexpr LayoutShape shape_of(Layout layout) {
  switch (layout) {
    case Layout::kQ4Symmetric: return {4, Scales::kHalf, 8};
    case Layout::kQ4Affine: return {4, Scales::kHalfPair, 0};
    case Layout::kQ8: return {8, Scales::kHalf, 0};
    case Layout::kQ4Super: return {4, Scales::kSuper, 0};
    case Layout::kQ5Super: return {5, Scales::kSuper, 0};
    case Layout::kQ6Halves: return {6, Scales::kHalves, 32};
    case Layout::kQ5Symmetric: return {5, Scales::kHalf, 16};
    case Layout::kQ5Affine: return {5, Scales::kHalfPair, 0};
    case Layout::kQ3Halves: return {3, Scales::kHalves, 4};
    case Layout::kQ2Halves: return {2, Scales::kHalvesPair, 0};
    case Layout::kQ4Table: return {4, Scales::kHalf, 0};
    case Layout::kFloat4Table: return {4, Scales::kExponent, 12};
    case Layout::kQ4Zero: return {4, Scales::kHalfZero, 0};
    case Layout::kFloat8: return {8, Scales::kFloat, 0};
    default: return {0, Scales::kNone, 0};
  }
}

template <Layout L>
inline constexpr LayoutShape kShape = shape_of(L);

// What 4-bit codes stand for: kQ4Table (iq4_nl), and kFloat4Table: 12 + twice the values of a 4-bit float with 2 bits
// of exponent and 1 of mantissa (Open Compute Project, microscaling formats 1.0).
static constexpr std::int8_t kQ4Codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static constexpr std::int8_t kFloat4Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

}  // namespace tidemill
