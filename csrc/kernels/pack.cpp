// From the rows of a file to tiles of 16 outputs, and one row back again. Values never change.
#include <cassert>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/half.h"
#include "kernels/layout.h"

namespace tidemill {
namespace {

std::uint32_t load_word(const std::uint8_t* bytes) {
  std::uint32_t word;
  std::memcpy(&word, bytes, 4);
  return word;
}

void store_word(std::uint8_t* bytes, std::uint32_t word) { std::memcpy(bytes, &word, 4); }

// Byte j of word q is the code of k = 4q + j. Packs the bits from `from` on of every code into the plane of one width;
// `plane` is where its first word of this column is, the next one of the column follows 32 bytes later.
void pack_plane(const std::uint32_t (&quads)[8], int from, int bits, std::uint8_t* plane) {
  const std::uint32_t field = 0x01010101u * ((1u << bits) - 1);
  for (int q = 0; q < 8; plane += 32) {
    std::uint32_t word = 0;
    for (int at = 0; at < 8; at += bits, ++q) word |= (quads[q] >> from & field) << at;
    store_word(plane, word);
  }
}

void pack_codes(const LayoutShape& shape, const std::uint8_t* codes, int column, std::uint8_t* planes) {
  std::uint32_t quads[8];
  for (int q = 0; q < 8; ++q) quads[q] = load_word(codes + 4 * q);
  if (shape.scales == Scales::kFloat) {
    for (int j = 0; j < kGroup; ++j) planes[kTileColumns * j + column] = codes[j];
    return;
  }
  if (shape.bits == 8) {
    for (int q = 0; q < 8; ++q) store_word(planes + 64 * q + 4 * column, quads[q]);
    return;
  }
  const auto place = [column](int bits) { return 32 * bits * (column / 8) + 4 * (column % 8); };
  const int base = shape.base_bits();
  const int extra = shape.bits - base;
  pack_plane(quads, 0, base, planes + place(base));
  if (extra > 0) pack_plane(quads, base, extra, planes + shape.extra_plane() + place(extra));
}

// The header of group `g` of a block, for one column.
void pack_group_header(const LayoutShape& shape, const FileBlock& block, int g, int column, std::uint8_t* header) {
  switch (shape.scales) {
    case Scales::kHalfPair: std::memcpy(header + 32 + 2 * column, &block.m, 2); [[fallthrough]];
    case Scales::kHalf: std::memcpy(header + 2 * column, &block.d, 2); break;
    case Scales::kHalfZero:
      std::memcpy(header + 2 * column, &block.d, 2);
      header[32 + column] = block.z;
      break;
    case Scales::kFloat: std::memcpy(header + 4 * column, &block.wide, 4); break;
    case Scales::kExponent: header[column] = static_cast<std::uint8_t>(block.d); break;
    case Scales::kSuper:
      header[column] = block.scales[g];
      header[kTileColumns + column] = block.minimums[g];
      break;
    case Scales::kHalves: std::memcpy(header + 2 * column, block.scales + 2 * g, 2); break;
    case Scales::kHalvesPair:
      for (int h = 0; h < 2; ++h) {
        header[2 * column + h] = static_cast<std::uint8_t>(block.scales[2 * g + h] | block.minimums[2 * g + h] << 4);
      }
      break;
    case Scales::kNone: break;
  }
}

void pack_block(const LayoutShape& shape, const FileBlock& block, int column, std::uint8_t* out) {
  if (shape.super()) std::memcpy(out + 2 * column, &block.d, 2);
  if (shape.block_header() == 64) std::memcpy(out + 32 + 2 * column, &block.m, 2);
  out += shape.block_header();
  for (int g = 0; g < shape.block() / kGroup; ++g, out += shape.group_bytes()) {
    pack_group_header(shape, block, g, column, out);
    pack_codes(shape, block.codes + kGroup * g, column, out + shape.group_header());
  }
}

void pack_block_column(FileFormat format, const std::uint8_t* row, std::size_t k, int column, std::uint8_t* tile) {
  const LayoutShape shape = shape_of(layout_of(format));
  const BlockSize size = block_size(format);
  for (std::size_t i = 0; i < k; i += size.values, row += size.bytes, tile += shape.block_bytes()) {
    FileBlock block;
    read_block(format, row, block);
    pack_block(shape, block, column, tile);
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

// The parts of one column's group back as a file block of one group (scales and minimums in places 0 and 1).
void read_group(const LayoutShape& shape, const std::uint8_t* block, const std::uint8_t* group, int column,
                FileBlock& out) {
  if (shape.scales == Scales::kFloat) {
    std::memcpy(&out.wide, group + 4 * column, 4);
    return;
  }
  const std::uint8_t* halves = shape.super() ? block : group;
  std::memcpy(&out.d, halves + 2 * column, 2);
  if (shape.has_minimum()) std::memcpy(&out.m, halves + 32 + 2 * column, 2);
  for (int h = 0; h < 2; ++h) {
    out.scales[h] = group[shape.halves() ? 2 * column + h : column];
    out.minimums[h] = shape.has_minimum() ? group[shape.halves() ? 2 * column + h : kTileColumns + column] : 0;
    if (shape.scales == Scales::kHalvesPair) {
      out.scales[h] &= 15;
      out.minimums[h] = static_cast<std::uint8_t>(out.minimums[h] >> 4);
    }
  }
  if (shape.scales == Scales::kHalfZero) out.z = group[32 + column];
  if (shape.scales == Scales::kExponent) out.d = group[column];
}

int plane_code(const std::uint8_t* plane, int bits, int column, int j) {
  const int per_byte = 8 / bits, quad = j / 4;
  const std::uint8_t byte = plane[32 * bits * (column / 8) + 32 * (quad / per_byte) + 4 * (column % 8) + j % 4];
  return byte >> quad % per_byte * bits & ((1 << bits) - 1);
}

std::uint8_t code_at(const LayoutShape& shape, const std::uint8_t* planes, int column, int j) {
  if (shape.scales == Scales::kFloat) return planes[kTileColumns * j + column];
  if (shape.bits == 8) return planes[64 * (j / 4) + 4 * column + j % 4];
  const int base = shape.base_bits();
  const int extra = shape.bits - base;
  int code = plane_code(planes, base, column, j);
  if (extra > 0) code |= plane_code(planes + shape.extra_plane(), extra, column, j) << base;
  return static_cast<std::uint8_t>(code);
}

void dequantize_column(Layout layout, const std::uint8_t* tile, int column, std::int32_t k, float* out) {
  const LayoutShape shape = shape_of(layout);
  for (std::int32_t begin = 0; begin < k; begin += shape.block(), tile += shape.block_bytes()) {
    const std::uint8_t* group = tile + shape.block_header();
    for (int g = 0; g < shape.block() / kGroup; ++g, group += shape.group_bytes(), out += kGroup) {
      FileBlock parts;
      read_group(shape, tile, group, column, parts);
      for (int j = 0; j < kGroup; ++j) parts.codes[j] = code_at(shape, group + shape.group_header(), column, j);
      block_values(layout, parts, kGroup, out);
    }
  }
}

float float_at(Layout layout, const std::uint8_t* tile, int column, int k) {
  const std::size_t element = static_cast<std::size_t>(k) * kTileColumns + static_cast<std::size_t>(column);
  if (layout == Layout::kF32) return std::bit_cast<float>(load_word(tile + 4 * element));
  if (layout == Layout::kF16) return load_half(tile + 2 * element);
  std::uint16_t bits;
  std::memcpy(&bits, tile + 4 * static_cast<std::size_t>(k / 2 * kTileColumns + column) + 2 * (k % 2), 2);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
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
    case FileFormat::kQ4_K: return Layout::kQ4Super;
    case FileFormat::kQ6_K: return Layout::kQ6Halves;
    case FileFormat::kQ5_K: return Layout::kQ5Super;
    case FileFormat::kQ5_0: return Layout::kQ5Symmetric;
    case FileFormat::kQ5_1: return Layout::kQ5Affine;
    case FileFormat::kQ3_K: return Layout::kQ3Halves;
    case FileFormat::kQ2_K: return Layout::kQ2Halves;
    case FileFormat::kIQ4_NL: return Layout::kQ4Table;
    case FileFormat::kMXFP4: return Layout::kFloat4Table;
    case FileFormat::kQ4_Z: return Layout::kQ4Zero;
    case FileFormat::kF8_E4M3: return Layout::kFloat8;
  }
  return Layout::kF32;
}

std::size_t packed_tile_bytes(Layout layout, std::int32_t k) {
  const auto values = static_cast<std::size_t>(k);
  switch (layout) {
    case Layout::kF16: return values * kTileColumns * 2;
    case Layout::kBF16: return (values + 1) / 2 * kTileColumns * 4;
    case Layout::kF32: return values * kTileColumns * 4;
    default: break;
  }
  const LayoutShape shape = shape_of(layout);
  return values / static_cast<std::size_t>(shape.block()) * static_cast<std::size_t>(shape.block_bytes());
}

void pack_tiles(FileFormat format, const std::uint8_t* file_rows, std::int32_t n, std::int32_t k, std::uint8_t* out,
                std::int32_t tile_begin, std::int32_t tile_end) {
  const Layout layout = layout_of(format);
  const BlockSize size = block_size(format);
  const auto values = static_cast<std::size_t>(k);
  assert(values % size.values == 0);
  const std::size_t tile_bytes = packed_tile_bytes(layout, k);
  const std::size_t row_bytes = values / size.values * size.bytes;
  for (std::int32_t t = tile_begin; t < tile_end; ++t) {
    std::uint8_t* tile = out + tile_bytes * static_cast<std::size_t>(t);
    const std::int32_t first = t * kTileColumns;
    // Columns past n and bf16's odd last k are zero; nothing else is written twice.
    if (first + kTileColumns > n || k % 2 != 0) std::memset(tile, 0, tile_bytes);
    for (int c = 0; c < kTileColumns && first + c < n; ++c) {
      const std::uint8_t* row = file_rows + row_bytes * static_cast<std::size_t>(first + c);
      (size.values > 1 ? pack_block_column : pack_float_column)(format, row, values, c, tile);
    }
  }
}

void dequantize_row(const PackedMatrix& weight, std::int32_t row, float* out) {
  assert(row >= 0 && row < weight.n);
  const std::uint8_t* tile = weight.data + weight.tile_bytes * static_cast<std::size_t>(row / kTileColumns);
  const int column = row % kTileColumns;
  if (weight.blocks()) return dequantize_column(weight.layout, tile, column, weight.k, out);
  for (std::int32_t i = 0; i < weight.k; ++i) out[i] = float_at(weight.layout, tile, column, i);
}

std::size_t quantized_value_bytes(std::int32_t rows, std::int32_t k) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(k);
}

std::size_t quantized_scale_bytes(std::int32_t rows, std::int32_t k) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(k / kGroup) * kGroupScales * sizeof(float);
}

}  // namespace tidemill
