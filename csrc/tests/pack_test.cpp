// Packing changes no value, keeps to its size, and can be split over threads.
#include "kernels/embed.h"
#include "tests/check.h"
#include "tests/linear_fixtures.h"

using namespace tidemill;
using namespace tidemill::test;

namespace {

void tiles_have_the_promised_sizes() {
  CHECK(packed_tile_bytes(Layout::kQ4Symmetric, 576) == 18 * 288);
  CHECK(packed_tile_bytes(Layout::kQ4Affine, 576) == 18 * 320);
  CHECK(packed_tile_bytes(Layout::kQ8, 576) == 18 * 544);
  CHECK(packed_tile_bytes(Layout::kF16, 576) == 576 * 32);
  CHECK(packed_tile_bytes(Layout::kBF16, 576) == 576 * 32);
  CHECK(packed_tile_bytes(Layout::kBF16, 35) == 36 * 32);
  CHECK(packed_tile_bytes(Layout::kF32, 35) == 35 * 64);
}

// Most formats take what they take in the file; three have their scales of 6 or 4 bits in bytes.
void packed_weights_are_hardly_larger_than_the_file() {
  for (const FileFormat format : kFormats) {
    for (const int n : {192, 576, 960, 1536, 49152}) {
      const PackedMatrix matrix{layout_of(format), n, 768, packed_tile_bytes(layout_of(format), 768), nullptr};
      const std::size_t blocks = static_cast<std::size_t>(n) * 768 / static_cast<std::size_t>(block_values(format));
      const std::size_t more = format == FileFormat::kQ4_K || format == FileFormat::kQ5_K || format == FileFormat::kQ3_K ? 4 : 0;
      CHECK_CASE(matrix.bytes() == blocks * (block_bytes(format) + more), "%s n %d", name_of(format), n);
      CHECK_CASE(static_cast<double>(matrix.bytes()) <= 1.04 * static_cast<double>(blocks * block_bytes(format)), "%s", name_of(format));
    }
  }
}

void every_value_survives() {
  for (const FileFormat format : kFormats) {
    for (const int n : {1, 7, 16, 17, 33}) {
      for (const int k : {1, 31, 32, 35, 256, 768}) {
        if (k % block_values(format) != 0) continue;
        const FileWeight w = random_weight(format, n, k, 7);
        const Packed packed = pack(w);
        for (int row = 0; row < n; ++row) {
          std::vector<float> values(static_cast<std::size_t>(k));
          dequantize_row(packed.matrix, row, values.data());
          CHECK_CASE(same_bits(values.data(), &w.values[w.at(row, 0)], values.size()), "%s n %d k %d row %d",
                     name_of(format), n, k, row);
        }
      }
    }
  }
}

// Embeddings read rows straight from the file.
void rows_of_tables_are_read_alike() {
  for (const FileFormat format : kFormats) {
    const FileWeight w = random_weight(format, 5, 768, 8);
    for (int row = 0; row < 5; ++row) {
      std::vector<float> values(768);
      const std::size_t row_bytes = file_row_bytes(format, 768);
      dequantize_row(format, &w.bytes[row_bytes * static_cast<std::size_t>(row)], 768, values.data());
      CHECK_CASE(same_bits(values.data(), &w.values[w.at(row, 0)], 768), "%s row %d", name_of(format), row);
    }
  }
}

void every_half_is_read_right() {  // all 65536, subnormal, infinite and NaN included
  FileWeight w{FileFormat::kF16, 256, 256, std::vector<std::uint8_t>(131072), {}, {}};
  for (std::uint32_t i = 0; i < 65536; ++i) {
    w.bytes[2 * i] = static_cast<std::uint8_t>(i);
    w.bytes[2 * i + 1] = static_cast<std::uint8_t>(i >> 8);
  }
  const Packed packed = pack(w);
  std::vector<float> values(256);
  for (int row = 0; row < 256; ++row) {
    dequantize_row(packed.matrix, row, values.data());
    for (int i = 0; i < 256; ++i) {
      const float expected = half_value(static_cast<std::uint16_t>(row * 256 + i));
      const float value = values[static_cast<std::size_t>(i)];
      CHECK(std::isnan(expected) ? std::isnan(value) : same_bits(&value, &expected, 1));
    }
  }
}

void columns_past_n_are_zero() {
  for (const FileFormat format : kFormats) {
    const int k = block_values(format) == 256 ? 256 : 64;
    const FileWeight w = random_weight(format, 17, k, 3);
    const Packed packed = pack(w);
    PackedMatrix wide = packed.matrix;
    wide.n = 32;
    std::vector<float> values(static_cast<std::size_t>(k));
    for (int row = 17; row < 32; ++row) {
      dequantize_row(wide, row, values.data());
      for (const float v : values) CHECK_CASE(v == 0.0f, "%s column %d", name_of(format), row);
    }
  }
}

void tile_ranges_together_are_the_whole() {
  for (const FileFormat format : kFormats) {
    const FileWeight w = random_weight(format, 70, 768, 5);
    const Packed whole = pack(w);
    const AlignedBytes parts(whole.matrix.bytes());
    pack_tiles(format, w.bytes.data(), w.n, w.k, parts.get(), 3, 5);
    pack_tiles(format, w.bytes.data(), w.n, w.k, parts.get(), 0, 3);
    CHECK(std::memcmp(parts.get(), whole.matrix.data, whole.matrix.bytes()) == 0);
  }
}

// Packed weights may be kept on disk under a hash: old memory must not show through.
void every_byte_is_written() {
  for (const FileFormat format : kFormats) {
    const int k = block_values(format) > 1 ? block_values(format) : 35;
    const FileWeight w = random_weight(format, 17, k, 6);
    const Packed first = pack(w);
    const AlignedBytes second(first.matrix.bytes());
    std::memset(second.get(), 0x5a, first.matrix.bytes());
    pack_tiles(format, w.bytes.data(), w.n, w.k, second.get(), 0, first.matrix.tiles());
    CHECK_CASE(std::memcmp(first.matrix.data, second.get(), first.matrix.bytes()) == 0, "%s", name_of(format));
  }
}

}  // namespace

int main() {
  tiles_have_the_promised_sizes();
  packed_weights_are_hardly_larger_than_the_file();
  rows_of_tables_are_read_alike();
  every_value_survives();
  every_half_is_read_right();
  columns_past_n_are_zero();
  tile_ranges_together_are_the_whole();
  every_byte_is_written();
  return finish("pack");
}
