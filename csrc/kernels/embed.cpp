#include "embed.h"

#include <cstring>

#include "half.h"

namespace tidemill {

namespace {

std::uint16_t load_u16(const std::uint8_t* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

float load_bfloat(const std::uint8_t* p) {
  const std::uint32_t bits = std::uint32_t{load_u16(p)} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// 16 bytes of nibbles: the low ones are values 0..15, the high ones 16..31; value = (nibble - offset) * d + m.
void nibbles(const std::uint8_t* packed, float offset, float d, float m, float* out) {
  for (int j = 0; j < 16; ++j) {
    out[j] = (static_cast<float>(packed[j] & 15) - offset) * d + m;
    out[j + 16] = (static_cast<float>(packed[j] >> 4) - offset) * d + m;
  }
}

void dequantize_block(FileFormat format, const std::uint8_t* block, float* out) {
  const float d = load_half(block);
  if (format == FileFormat::kQ4_0) {
    nibbles(block + 2, 8.0f, d, 0.0f, out);
  } else if (format == FileFormat::kQ4_1) {
    nibbles(block + 4, 0.0f, d, load_half(block + 2), out);
  } else {
    for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<std::int8_t>(block[2 + j])) * d;
  }
}

std::size_t block_bytes(FileFormat format) {
  return format == FileFormat::kQ4_0 ? 18 : format == FileFormat::kQ4_1 ? 20 : 34;
}

}  // namespace

std::size_t file_row_bytes(FileFormat format, std::int32_t columns) {
  const auto n = static_cast<std::size_t>(columns);
  if (format == FileFormat::kF32) return 4 * n;
  if (format == FileFormat::kF16 || format == FileFormat::kBF16) return 2 * n;
  return n / kGroup * block_bytes(format);
}

void dequantize_row(FileFormat format, const std::uint8_t* row, std::int32_t columns, float* out) {
  switch (format) {
    case FileFormat::kF32:
      std::memcpy(out, row, 4 * static_cast<std::size_t>(columns));
      return;
    case FileFormat::kF16:
      for (std::int32_t i = 0; i < columns; ++i) out[i] = load_half(row + 2 * i);
      return;
    case FileFormat::kBF16:
      for (std::int32_t i = 0; i < columns; ++i) out[i] = load_bfloat(row + 2 * i);
      return;
    default:
      for (std::int32_t i = 0; i < columns; i += kGroup, row += block_bytes(format)) {
        dequantize_block(format, row, out + i);
      }
  }
}

}  // namespace tidemill
