// Half floats in plain C++. Functions are static: each file gets its own copy, compiled for its own instruction set.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

namespace tidemill {

// IEEE binary16 to float, exact (a signalling NaN stays one until it is used). No branches, so that loops over it
// become vector code; does not depend on the denormal mode.
static inline float half_to_float(std::uint16_t half) {
  constexpr std::uint32_t kBias = (127 - 15) << 23;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fff) << 13;
  const std::uint32_t normal = magnitude + kBias + (magnitude >= 0x1fu << 23 ? kBias : 0u);
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(half & 0x3ff)) * 0x1p-24f;
  const std::uint32_t bits = magnitude < 1u << 23 ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(bits | static_cast<std::uint32_t>(half & 0x8000) << 16);
}

static inline float load_half(const std::uint8_t* bytes) {
  std::uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  return half_to_float(half);
}

}  // namespace tidemill
