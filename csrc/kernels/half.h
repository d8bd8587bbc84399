// Half floats in plain C++. Functions are static: each file gets its own copy, compiled for its own instruction set.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

namespace tidemill {

// IEEE binary16 to float, exact. Does not depend on the denormal mode.
static inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  std::uint32_t magnitude;
  if (exponent == 0) {
    magnitude = std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
  } else if (exponent == 31) {
    magnitude = 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u);  // NaNs become quiet
  } else {
    magnitude = (exponent + 112) << 23 | mantissa << 13;
  }
  return std::bit_cast<float>(sign | magnitude);
}

static inline float load_half(const std::uint8_t* bytes) {
  std::uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  return half_to_float(half);
}

}  // namespace tidemill
