#include "weights.h"

#include <algorithm>

#include "../kernels/embed.h"
#include "pages.h"

namespace tidemill {

namespace {

// Source bytes between two calls that let pages go: few calls, and little that stays.
constexpr std::size_t kStretch = std::size_t{1} << 20;

constexpr std::size_t kMemory = std::size_t{32} << 20;  // taken at once; what nothing is written to costs nothing

PackedMatrix unplaced(FileFormat format, std::int32_t n, std::int32_t k) {
  const Layout layout = layout_of(format);
  return {layout, n, k, packed_tile_bytes(layout, k), nullptr};
}

}  // namespace

std::size_t Weights::packed_bytes(FileFormat format, std::int32_t count, std::int32_t n, std::int32_t k) {
  return align_up(unplaced(format, n, k).bytes()) * static_cast<std::size_t>(count);
}

std::int32_t Weights::append(PackedMatrix first, std::int32_t count) {
  packed_bytes_ += first.bytes() * static_cast<std::size_t>(count);
  for (std::int32_t i = 0; i < count; ++i, first.data += align_up(first.bytes())) matrices_.push_back(first);
  return static_cast<std::int32_t>(matrices_.size()) - count;
}

// Zeroed memory for matrices.
std::uint8_t* Weights::room(std::size_t bytes) {
  if (memory_.empty() || memory_.back().size() - used_ < bytes) {
    memory_.emplace_back(std::max(bytes, kMemory));
    used_ = 0;
  }
  used_ += bytes;
  return memory_.back().data() + used_ - bytes;
}

std::int32_t Weights::use_matrices(FileFormat format, std::int32_t count, std::int32_t n, std::int32_t k,
                                   const std::uint8_t* packed) {
  PackedMatrix matrix = unplaced(format, n, k);
  matrix.data = packed;
  return append(matrix, count);
}

std::int32_t Weights::add_matrices(FileFormat format, std::int32_t count, std::int32_t n, std::int32_t k,
                                   const std::uint8_t* rows, bool mapped, ThreadPool& pool) {
  PackedMatrix matrix = unplaced(format, n, k);
  const std::size_t row_bytes = file_row_bytes(format, k);
  const std::size_t matrix_bytes = align_up(matrix.bytes());
  std::uint8_t* memory = room(packed_bytes(format, count, n, k));
  const auto tile_rows = row_bytes * kTileColumns;
  const auto stretch = static_cast<std::int32_t>(std::max<std::size_t>(1, kStretch / tile_rows));  // tiles
  const std::int32_t stretches = (matrix.tiles() + stretch - 1) / stretch;  // of one matrix
  const std::int32_t total = stretches * count;
  const int chunks = std::min(total, ThreadPool::kMaxChunks);
  const auto pack = [&](std::int32_t index) {
    const std::int32_t which = index / stretches;
    const std::int32_t begin = index % stretches * stretch, end = std::min(begin + stretch, matrix.tiles());
    const std::uint8_t* source = rows + row_bytes * static_cast<std::size_t>(n) * static_cast<std::size_t>(which);
    const std::uint8_t* first = source + tile_rows * static_cast<std::size_t>(begin);
    const std::size_t bytes = row_bytes * static_cast<std::size_t>(std::min(end * kTileColumns, n)) -
                              tile_rows * static_cast<std::size_t>(begin);
    if (mapped) populate(first, bytes);
    pack_tiles(format, source, n, k, memory + static_cast<std::size_t>(which) * matrix_bytes, begin, end);
    if (mapped) let_go(first, bytes);
  };
  pool.run(chunks, [&](int chunk, int) {
    const auto end = static_cast<std::int32_t>(std::int64_t{total} * (chunk + 1) / chunks);
    for (auto i = static_cast<std::int32_t>(std::int64_t{total} * chunk / chunks); i < end; ++i) pack(i);
  });
  matrix.data = memory;
  return append(matrix, count);
}

std::int32_t Weights::add_vector(const float* values, std::size_t count) {
  vectors_.emplace_back(values, values + count);
  return static_cast<std::int32_t>(vectors_.size()) - 1;
}

std::int32_t Weights::add_table(FileFormat format, std::int32_t rows, std::int32_t columns,
                                const std::uint8_t* data) {
  tables_.push_back({format, rows, columns, data, file_row_bytes(format, columns)});
  return static_cast<std::int32_t>(tables_.size()) - 1;
}

}  // namespace tidemill
