// IEEE half precision by integer arithmetic, for the portable kernels and for whatever reads a few values at a time.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

#include "inline.h"

namespace tidemill {

// Exact; NaN stays NaN. No branches, so that loops over it become vector code. Reads subnormal floats on the way: the
// floating-point mode must keep them, as that of the compute threads does.
TIDEMILL_INLINE float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fffu) << 13;
  const float moved = std::bit_cast<float>(magnitude) * 0x1p112f;  // the exponent's bias; subnormal halves become normal
  const std::uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;  // infinity and NaN keep their exponent
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(moved) | special | sign);
}

TIDEMILL_INLINE float load_half(const std::uint8_t* bytes) {
  std::uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  return half_to_float(half);
}

// Rounded to nearest, ties to even; NaN stays NaN.
TIDEMILL_INLINE std::uint16_t float_to_half(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (bits >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (bits < 0x38800000u) {  // below the smallest normal half: adding 0.5 leaves the rounded mantissa in the low bits
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, 4);
    return static_cast<std::uint16_t>(sign | (bits - 0x3f000000u));
  }
  const std::uint32_t odd = (bits >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((bits - 0x38000000u + 0xfffu + odd) >> 13));
}

}  // namespace tidemill
