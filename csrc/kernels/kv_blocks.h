// Keys and values as whole numbers with a scale per token, head and group of 32 dimensions: q8_0 and q4_0 of GGUF, in an
// arrangement of their own (attention.h: a block is [kv_head][K | V], and each half codes, then f16 scales).
//
//            codes                                       scales
//     q8 K   [dim][token], int8                          [group][token]
//     q4 K   [dim pair][token]: low nibble, high nibble  [group][token]
//     q8 V   [token][dim], int8                          [token][group]
//     q4 V   [token][group][16]: low dim, high dim + 16  [token][group]
//
// A byte belongs to one token, so that threads can write different ones.
#pragma once
#include <bit>
#include <cstdint>

#include "attention.h"
#include "half.h"

namespace tidemill {

// A group's codes, one a byte (q4: as they are stored, 8 more than they mean), and its scale.
struct KvGroupCodes {
  std::uint16_t scale;
  std::uint8_t codes[kKvGroup];
};

// The largest magnitude, as bits: NaN is larger than all numbers and not lost.
TIDEMILL_INLINE std::uint32_t largest_magnitude(const float* x) {
  std::uint32_t largest = 0;
  for (int i = 0; i < kKvGroup; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// Within [low, high], and low for NaN: what can be converted to an integer.
TIDEMILL_INLINE float bounded(float x, float low, float high) {
  const float y = x >= low ? x : low;
  return y > high ? high : y;
}

// d = largest magnitude / 127; code = x / d to the nearest whole number, halves away from zero.
TIDEMILL_INLINE KvGroupCodes encode_q8(const float* x) {
  const float d = std::bit_cast<float>(largest_magnitude(x)) / 127.0f;
  const float inverse = d == 0.0f ? 0.0f : 1.0f / d;
  KvGroupCodes group;
  group.scale = float_to_half(d);
  for (int i = 0; i < kKvGroup; ++i) {
    const float y = bounded(x[i] * inverse, -127.0f, 127.0f);
    const auto whole = static_cast<std::int32_t>(y);  // towards zero; the rest is exact
    const float rest = y - static_cast<float>(whole);
    const std::int32_t code = whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
    group.codes[i] = static_cast<std::uint8_t>(code);
  }
  return group;
}

// d = the number of the largest magnitude / -8; code = x / d + 8 to the nearest whole number, halves up, at most 15.
TIDEMILL_INLINE KvGroupCodes encode_q4(const float* x) {
  const std::uint32_t largest = largest_magnitude(x);
  int at = 0;
  while ((std::bit_cast<std::uint32_t>(x[at]) & 0x7fffffffu) != largest) ++at;
  const float d = x[at] / -8.0f;
  const float inverse = d == 0.0f ? 0.0f : 1.0f / d;
  KvGroupCodes group;
  group.scale = float_to_half(d);
  for (int i = 0; i < kKvGroup; ++i) {
    const float y = bounded(x[i] * inverse + 8.5f, 0.0f, 15.0f);
    group.codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(y));
  }
  return group;
}

// How the two formats arrange codes. Offsets are in bytes.
struct Q8Codes {
  static constexpr KvFormat kFormat = KvFormat::kQ8;
  static TIDEMILL_INLINE KvGroupCodes encode(const float* x) { return encode_q8(x); }
  static TIDEMILL_INLINE void store_keys(const KvGroupCodes& group, std::uint8_t* codes, std::int32_t block_size) {
    for (int i = 0; i < kKvGroup; ++i) codes[i * block_size] = group.codes[i];
  }
  static TIDEMILL_INLINE void store_values(const KvGroupCodes& group, std::uint8_t* codes) {
    for (int i = 0; i < kKvGroup; ++i) codes[i] = group.codes[i];
  }
};

struct Q4Codes {
  static constexpr KvFormat kFormat = KvFormat::kQ4;
  static TIDEMILL_INLINE KvGroupCodes encode(const float* x) { return encode_q4(x); }
  static TIDEMILL_INLINE void store_keys(const KvGroupCodes& group, std::uint8_t* codes, std::int32_t block_size) {
    for (int i = 0; i < kKvGroup; i += 2) {
      codes[i / 2 * block_size] = static_cast<std::uint8_t>(group.codes[i] | group.codes[i + 1] << 4);
    }
  }
  static TIDEMILL_INLINE void store_values(const KvGroupCodes& group, std::uint8_t* codes) {
    constexpr int kHalf = kKvGroup / 2;
    for (int i = 0; i < kHalf; ++i) codes[i] = static_cast<std::uint8_t>(group.codes[i] | group.codes[i + kHalf] << 4);
  }
};

}  // namespace tidemill
