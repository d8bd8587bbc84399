#include "embed.h"

#include <cstring>

#include "blocks.h"
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

}  // namespace

std::size_t file_row_bytes(FileFormat format, std::int32_t columns) {
  const BlockSize size = block_size(format);
  return static_cast<std::size_t>(columns) / size.values * size.bytes;
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
    default: {
      const BlockSize size = block_size(format);
      const auto values = static_cast<std::int32_t>(size.values);
      for (std::int32_t i = 0; i < columns; i += values, row += size.bytes) dequantize_block(format, row, out + i);
    }
  }
}

}  // namespace tidemill
