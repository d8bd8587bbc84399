// From the bytes of one file block to its codes and scales, and to its values.
#include "kernels/blocks.h"

#include <cassert>
#include <cmath>
#include <cstring>

#include "kernels/half.h"
#include "kernels/layout.h"

namespace tidemill {
namespace {

constexpr int kSuperValues = 256;

std::uint16_t load_u16(const std::uint8_t* bytes) {
  std::uint16_t value;
  std::memcpy(&value, bytes, 2);
  return value;
}

// Runs of `run` bytes, each holding run values per field of `bits` bits, lowest field first.
void read_fields(const std::uint8_t* bytes, int run, int bits, int count, std::uint8_t* codes) {
  const int mask = (1 << bits) - 1;
  for (int done = 0; done < count; bytes += run) {
    for (int shift = 0; shift < 8; shift += bits, done += run) {
      for (int i = 0; i < run; ++i) codes[done + i] = static_cast<std::uint8_t>(bytes[i] >> shift & mask);
    }
  }
}

// The fifth bits of 32 codes, in one word.
void add_word_bits(const std::uint8_t* bytes, std::uint8_t* codes) {
  for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<std::uint8_t>(codes[i] | (bytes[i / 8] >> i % 8 & 1) << 4);
}

// Fields of `bits` bits in runs of 32 bytes, put above the lower bits of 256 codes.
void add_fields(const std::uint8_t* bytes, int bits, int to, std::uint8_t* codes) {
  std::uint8_t high[kSuperValues];
  read_fields(bytes, 32, bits, kSuperValues, high);
  for (int i = 0; i < kSuperValues; ++i) codes[i] = static_cast<std::uint8_t>(codes[i] | high[i] << to);
}

// Eight 6-bit scales and minimums in 12 bytes: the first four of each in the low bits of bytes 0-7, whose two high bits
// belong to the last four, which have their low bits in bytes 8-11.
void read_super_scales(const std::uint8_t* bytes, FileBlock& block) {
  for (int i = 0; i < 4; ++i) {
    block.scales[i] = bytes[i] & 63;
    block.minimums[i] = bytes[4 + i] & 63;
    block.scales[4 + i] = static_cast<std::uint8_t>((bytes[8 + i] & 15) | bytes[i] >> 6 << 4);
    block.minimums[4 + i] = static_cast<std::uint8_t>(bytes[8 + i] >> 4 | bytes[4 + i] >> 6 << 4);
  }
}

// Sixteen 6-bit scales in 12 bytes, 32 too large: four low bits in bytes 0-7, two high bits in bytes 8-11.
void read_q3_scales(const std::uint8_t* bytes, FileBlock& block) {
  for (int i = 0; i < 16; ++i) {
    const int low = bytes[i % 8] >> i / 8 * 4 & 15;
    const int high = bytes[8 + i % 4] >> i / 4 * 2 & 3;
    block.scales[i] = static_cast<std::uint8_t>((low | high << 4) - 32);
  }
}

void read_q2_k(const std::uint8_t* bytes, FileBlock& block) {
  for (int i = 0; i < 16; ++i) {
    block.scales[i] = bytes[i] & 15;
    block.minimums[i] = bytes[i] >> 4;
  }
  read_fields(bytes + 16, 32, 2, kSuperValues, block.codes);
  block.d = load_u16(bytes + 80);
  block.m = load_u16(bytes + 82);
}

void read_q3_k(const std::uint8_t* bytes, FileBlock& block) {
  read_fields(bytes + 32, 32, 2, kSuperValues, block.codes);
  add_fields(bytes, 1, 2, block.codes);
  read_q3_scales(bytes + 96, block);
  block.d = load_u16(bytes + 108);
}

void read_q4_k(const std::uint8_t* bytes, FileBlock& block, bool fifth) {
  block.d = load_u16(bytes);
  block.m = load_u16(bytes + 2);
  read_super_scales(bytes + 4, block);
  read_fields(bytes + (fifth ? 48 : 16), 32, 4, kSuperValues, block.codes);
  if (fifth) add_fields(bytes + 16, 1, 4, block.codes);
}

void read_q6_k(const std::uint8_t* bytes, FileBlock& block) {
  read_fields(bytes, 64, 4, kSuperValues, block.codes);
  add_fields(bytes + 128, 2, 4, block.codes);
  std::memcpy(block.scales, bytes + 192, 16);
  block.d = load_u16(bytes + 208);
}

float exponent_scale(int exponent) {  // 2^(exponent - 128)
  const std::uint32_t bits = exponent < 2 ? 0x00200000u << exponent : static_cast<std::uint32_t>(exponent - 1) << 23;
  return std::bit_cast<float>(bits);
}

// The scale and the minimum of 16 values.
struct Pair {
  float d, m;
};

Pair scales_of(const LayoutShape& shape, const FileBlock& block, int half) {
  switch (shape.scales) {
    case Scales::kExponent: return {exponent_scale(block.d), 0.0f};
    case Scales::kFloat: return {block.wide, 0.0f};
    case Scales::kHalfPair: return {half_to_float(block.d), half_to_float(block.m)};
    case Scales::kHalfZero: return {half_to_float(block.d), -(half_to_float(block.d) * block.z)};
    case Scales::kSuper:
      return {half_to_float(block.d) * block.scales[half / 2], -(half_to_float(block.m) * block.minimums[half / 2])};
    case Scales::kHalves: return {half_to_float(block.d) * static_cast<std::int8_t>(block.scales[half]), 0.0f};
    case Scales::kHalvesPair:
      return {half_to_float(block.d) * block.scales[half], -(half_to_float(block.m) * block.minimums[half])};
    default: return {half_to_float(block.d), 0.0f};
  }
}

float code_of(Layout layout, std::uint8_t code) {
  switch (layout) {
    case Layout::kFloat8: return float8_value(code);
    case Layout::kQ8: return static_cast<std::int8_t>(code);
    case Layout::kQ4Table: return kQ4Codes[code];
    case Layout::kFloat4Table: return kFloat4Codes[code];
    default: return code;
  }
}

}  // namespace

float float8_value(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

BlockSize block_size(FileFormat format) {
  switch (format) {
    case FileFormat::kF32: return {1, 4};
    case FileFormat::kF16:
    case FileFormat::kBF16: return {1, 2};
    case FileFormat::kQ4_0: return {32, 18};
    case FileFormat::kQ4_1: return {32, 20};
    case FileFormat::kQ8_0: return {32, 34};
    case FileFormat::kQ4_K: return {256, 144};
    case FileFormat::kQ6_K: return {256, 210};
    case FileFormat::kQ5_K: return {256, 176};
    case FileFormat::kQ5_0: return {32, 22};
    case FileFormat::kQ5_1: return {32, 24};
    case FileFormat::kQ3_K: return {256, 110};
    case FileFormat::kQ2_K: return {256, 84};
    case FileFormat::kIQ4_NL: return {32, 18};
    case FileFormat::kMXFP4: return {32, 17};
    case FileFormat::kQ4_Z: return {32, 19};
    case FileFormat::kF8_E4M3: return {32, 36};
  }
  return {1, 0};
}

void read_block(FileFormat format, const std::uint8_t* bytes, FileBlock& block) {
  switch (format) {
    case FileFormat::kQ4_K: return read_q4_k(bytes, block, false);
    case FileFormat::kQ5_K: return read_q4_k(bytes, block, true);
    case FileFormat::kQ6_K: return read_q6_k(bytes, block);
    case FileFormat::kQ3_K: return read_q3_k(bytes, block);
    case FileFormat::kQ2_K: return read_q2_k(bytes, block);
    case FileFormat::kMXFP4:
      block.d = bytes[0];
      return read_fields(bytes + 1, 16, 4, kGroup, block.codes);
    case FileFormat::kF8_E4M3:
      std::memcpy(&block.wide, bytes, 4);
      std::memcpy(block.codes, bytes + 4, kGroup);
      return;
    default: break;
  }
  // Blocks of 32: d, m where there is one, fifth bits where there are, codes.
  assert(block_size(format).values == kGroup);
  block.d = load_u16(bytes);
  const std::uint8_t* next = bytes + 2;
  if (format == FileFormat::kQ8_0) {
    std::memcpy(block.codes, next, kGroup);
    return;
  }
  if (format == FileFormat::kQ4_1 || format == FileFormat::kQ5_1) {
    block.m = load_u16(next);
    next += 2;
  }
  if (format == FileFormat::kQ4_Z) block.z = *next++;
  const bool fifth = format == FileFormat::kQ5_0 || format == FileFormat::kQ5_1;
  read_fields(fifth ? next + 4 : next, 16, 4, kGroup, block.codes);
  if (fifth) add_word_bits(next, block.codes);
}

void block_values(Layout layout, const FileBlock& block, int count, float* out) {
  const LayoutShape shape = shape_of(layout);
  for (int half = 0; half < count / 16; ++half) {
    const Pair scale = scales_of(shape, block, half);
    for (int i = 16 * half; i < 16 * half + 16; ++i) {
      const float value = (code_of(layout, block.codes[i]) - static_cast<float>(shape.offset)) * scale.d;
      out[i] = shape.has_minimum() ? value + scale.m : value;  // value is exact: the sum rounds once
    }
  }
}

void dequantize_block(FileFormat format, const std::uint8_t* bytes, float* out) {
  FileBlock block;
  read_block(format, bytes, block);
  block_values(layout_of(format), block, static_cast<int>(block_size(format).values), out);
}

}  // namespace tidemill
