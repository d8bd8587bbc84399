// From the rows of a file to tiles of 16 outputs, and one row back again. Values never change.
#include <cassert>
#include <cstring>

#include "kernels/half.h"
#include "kernels/linear.h"

namespace tidemill {
namespace {

constexpr std::uint32_t kLowNibbles = 0x0f0f0f0f;
constexpr std::uint32_t kHighNibbles = 0xf0f0f0f0;
constexpr std::size_t kScaleBytes = kTileColumns * 2;  // one f16 per column

std::size_t group_bytes(Layout layout) {
  switch (layout) {
    case Layout::kQ4Symmetric: return kScaleBytes + kTileColumns * 16;
    case Layout::kQ4Affine: return 2 * kScaleBytes + kTileColumns * 16;
    case Layout::kQ8: return kScaleBytes + kTileColumns * 32;
    default: return 0;
  }
}

std::size_t file_row_bytes(FileFormat format, std::size_t k) {
  switch (format) {
    case FileFormat::kF32: return k * 4;
    case FileFormat::kF16:
    case FileFormat::kBF16: return k * 2;
    case FileFormat::kQ4_0: return k / kGroup * 18;
    case FileFormat::kQ4_1: return k / kGroup * 20;
    case FileFormat::kQ8_0: return k / kGroup * 34;
  }
  return 0;
}

std::uint32_t load_word(const std::uint8_t* bytes) {
  std::uint32_t word;
  std::memcpy(&word, bytes, 4);
  return word;
}

void store_word(std::uint8_t* bytes, std::uint32_t word) { std::memcpy(bytes, &word, 4); }

// A file block holds k in its low nibbles and k + 16 in its high ones; a tile vector holds quads 2v and 2v + 1.
void pack_nibbles(const std::uint8_t* file, std::uint8_t* column) {
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t a = load_word(file + 8 * half);
    const std::uint32_t b = load_word(file + 8 * half + 4);
    store_word(column + 32 * half, (a & kLowNibbles) | (b & kLowNibbles) << 4);
    store_word(column + 32 * (half + 2), (a >> 4 & kLowNibbles) | (b & kHighNibbles));
  }
}

void pack_q4_column(const std::uint8_t* row, std::size_t groups, int column, bool affine, std::uint8_t* tile) {
  const std::size_t block = affine ? 20 : 18;
  const std::size_t header = affine ? 2 * kScaleBytes : kScaleBytes;
  for (std::size_t g = 0; g < groups; ++g, row += block, tile += header + kTileColumns * 16) {
    std::memcpy(tile + 2 * column, row, 2);
    if (affine) std::memcpy(tile + kScaleBytes + 2 * column, row + 2, 2);
    pack_nibbles(row + block - 16, tile + header + 128 * (column / 8) + 4 * (column % 8));
  }
}

void pack_q8_column(const std::uint8_t* row, std::size_t groups, int column, std::uint8_t* tile) {
  for (std::size_t g = 0; g < groups; ++g, row += 34, tile += kScaleBytes + kTileColumns * 32) {
    std::memcpy(tile + 2 * column, row, 2);
    for (int quad = 0; quad < 8; ++quad) {
      std::memcpy(tile + kScaleBytes + 64 * quad + 4 * column, row + 2 + 4 * quad, 4);
    }
  }
}

void pack_float_column(FileFormat format, const std::uint8_t* row, std::size_t k, int column, std::uint8_t* tile) {
  const std::size_t c = static_cast<std::size_t>(column);
  for (std::size_t i = 0; i < k; ++i) {
    switch (format) {
      case FileFormat::kF32: std::memcpy(tile + 4 * (i * kTileColumns + c), row + 4 * i, 4); break;
      case FileFormat::kF16: std::memcpy(tile + 2 * (i * kTileColumns + c), row + 2 * i, 2); break;
      default: std::memcpy(tile + 4 * (i / 2 * kTileColumns + c) + i % 2 * 2, row + 2 * i, 2); break;  // bf16 pairs
    }
  }
}

void pack_column(FileFormat format, const std::uint8_t* row, std::size_t k, int column, std::uint8_t* tile) {
  switch (format) {
    case FileFormat::kQ4_0: return pack_q4_column(row, k / kGroup, column, false, tile);
    case FileFormat::kQ4_1: return pack_q4_column(row, k / kGroup, column, true, tile);
    case FileFormat::kQ8_0: return pack_q8_column(row, k / kGroup, column, tile);
    default: return pack_float_column(format, row, k, column, tile);
  }
}

float nibble_at(const std::uint8_t* codes, int column, int k) {
  const std::uint8_t byte = codes[128 * (column / 8) + 32 * (k / 8) + 4 * (column % 8) + k % 4];
  return static_cast<float>(k % 8 < 4 ? byte & 15 : byte >> 4);
}

float value_at(Layout layout, const std::uint8_t* tile, int column, int k) {
  const std::uint8_t* group = tile + group_bytes(layout) * static_cast<std::size_t>(k / kGroup);
  const int j = k % kGroup;
  const std::size_t element = static_cast<std::size_t>(k) * kTileColumns + static_cast<std::size_t>(column);
  switch (layout) {
    case Layout::kQ4Symmetric:
      return (nibble_at(group + kScaleBytes, column, j) - 8.0f) * load_half(group + 2 * column);
    case Layout::kQ4Affine: {
      // The product is exact (15 bits), so this rounds once, like the fused form in the kernels.
      const float product = nibble_at(group + 2 * kScaleBytes, column, j) * load_half(group + 2 * column);
      return product + load_half(group + kScaleBytes + 2 * column);
    }
    case Layout::kQ8: {
      const auto code = static_cast<std::int8_t>(group[kScaleBytes + 64 * (j / 4) + 4 * column + j % 4]);
      return static_cast<float>(code) * load_half(group + 2 * column);
    }
    case Layout::kF16: return load_half(tile + 2 * element);
    case Layout::kBF16: {
      const std::uint8_t* pair = tile + 4 * static_cast<std::size_t>(k / 2 * kTileColumns + column);
      std::uint16_t bits;
      std::memcpy(&bits, pair + 2 * (k % 2), 2);
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
    case Layout::kF32: return std::bit_cast<float>(load_word(tile + 4 * element));
  }
  return 0.0f;
}

}  // namespace

Layout layout_of(FileFormat format) {
  switch (format) {
    case FileFormat::kF32: return Layout::kF32;
    case FileFormat::kF16: return Layout::kF16;
    case FileFormat::kBF16: return Layout::kBF16;
    case FileFormat::kQ4_0: return Layout::kQ4Symmetric;
    case FileFormat::kQ4_1: return Layout::kQ4Affine;
    case FileFormat::kQ8_0: return Layout::kQ8;
  }
  return Layout::kF32;
}

std::size_t packed_tile_bytes(Layout layout, std::int32_t k) {
  const auto values = static_cast<std::size_t>(k);
  switch (layout) {
    case Layout::kF16: return values * kTileColumns * 2;
    case Layout::kBF16: return (values + 1) / 2 * kTileColumns * 4;
    case Layout::kF32: return values * kTileColumns * 4;
    default: return values / kGroup * group_bytes(layout);
  }
}

void pack_tiles(FileFormat format, const std::uint8_t* file_rows, std::int32_t n, std::int32_t k, std::uint8_t* out,
                std::int32_t tile_begin, std::int32_t tile_end) {
  const Layout layout = layout_of(format);
  assert(layout > Layout::kQ8 || k % kGroup == 0);
  const std::size_t tile_bytes = packed_tile_bytes(layout, k);
  const std::size_t row_bytes = file_row_bytes(format, static_cast<std::size_t>(k));
  for (std::int32_t t = tile_begin; t < tile_end; ++t) {
    std::uint8_t* tile = out + tile_bytes * static_cast<std::size_t>(t);
    const std::int32_t first = t * kTileColumns;
    // Columns past n and bf16's odd last k are zero; nothing else is written twice.
    if (first + kTileColumns > n || k % 2 != 0) std::memset(tile, 0, tile_bytes);
    for (int c = 0; c < kTileColumns && first + c < n; ++c) {
      pack_column(format, file_rows + row_bytes * static_cast<std::size_t>(first + c), static_cast<std::size_t>(k), c,
                  tile);
    }
  }
}

void dequantize_row(const PackedMatrix& weight, std::int32_t row, float* out) {
  assert(row >= 0 && row < weight.n);
  const std::uint8_t* tile = weight.data + weight.tile_bytes * static_cast<std::size_t>(row / kTileColumns);
  for (std::int32_t i = 0; i < weight.k; ++i) out[i] = value_at(weight.layout, tile, row % kTileColumns, i);
}

std::size_t quantized_value_bytes(std::int32_t rows, std::int32_t k) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(k);
}

std::size_t quantized_scale_bytes(std::int32_t rows, std::int32_t k) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(k / kGroup) * 2 * sizeof(float);
}

}  // namespace tidemill
