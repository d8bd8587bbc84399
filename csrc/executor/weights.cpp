#include "weights.h"

#include <algorithm>

#include "../kernels/embed.h"

namespace tidemill {

std::int32_t Weights::add_matrix(FileFormat format, std::int32_t n, std::int32_t k, const std::uint8_t* rows,
                                 ThreadPool& pool) {
  return add_experts(format, 1, n, k, rows, pool);
}

std::int32_t Weights::add_experts(FileFormat format, std::int32_t count, std::int32_t n, std::int32_t k,
                                  const std::uint8_t* rows, ThreadPool& pool) {
  const Layout layout = layout_of(format);
  const std::size_t expert_bytes = file_row_bytes(format, k) * static_cast<std::size_t>(n);
  PackedMatrix matrix{layout, n, k, packed_tile_bytes(layout, k), nullptr};
  const std::size_t matrix_bytes = align_up(matrix.bytes());
  PagedMemory memory(matrix_bytes * static_cast<std::size_t>(count));
  const std::int32_t tiles = matrix.tiles() * count;
  const int chunks = std::min(tiles, 4 * pool.threads());
  pool.run(chunks, [&](int chunk, int) {
    const auto begin = static_cast<std::int32_t>(std::int64_t{tiles} * chunk / chunks);
    const auto end = static_cast<std::int32_t>(std::int64_t{tiles} * (chunk + 1) / chunks);
    for (std::int32_t tile = begin; tile < end;) {
      const std::int32_t expert = tile / matrix.tiles();
      const std::int32_t first = expert * matrix.tiles();
      const std::int32_t last = std::min(end, first + matrix.tiles());
      pack_tiles(format, rows + static_cast<std::size_t>(expert) * expert_bytes, n, k,
                 memory.data() + static_cast<std::size_t>(expert) * matrix_bytes, tile - first, last - first);
      tile = last;
    }
  });
  matrix.data = memory.data();
  packed_bytes_ += matrix.bytes() * static_cast<std::size_t>(count);
  memory_.push_back(std::move(memory));
  for (std::int32_t expert = 0; expert < count; ++expert, matrix.data += matrix_bytes) matrices_.push_back(matrix);
  return static_cast<std::int32_t>(matrices_.size()) - count;
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
