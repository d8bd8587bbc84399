#include "weights.h"

#include <algorithm>

#include "../kernels/embed.h"

namespace tidemill {

std::int32_t Weights::add_matrix(FileFormat format, std::int32_t n, std::int32_t k, const std::uint8_t* rows,
                                 ThreadPool& pool) {
  const Layout layout = layout_of(format);
  PackedMatrix matrix{layout, n, k, packed_tile_bytes(layout, k), nullptr};
  PagedMemory memory(matrix.bytes());
  const std::int32_t tiles = matrix.tiles();
  const int chunks = std::min(tiles, 4 * pool.threads());
  pool.run(chunks, [&](int chunk, int) {
    const auto begin = static_cast<std::int32_t>(std::int64_t{tiles} * chunk / chunks);
    const auto end = static_cast<std::int32_t>(std::int64_t{tiles} * (chunk + 1) / chunks);
    pack_tiles(format, rows, n, k, memory.data(), begin, end);
  });
  matrix.data = memory.data();
  packed_bytes_ += matrix.bytes();
  memory_.push_back(std::move(memory));
  matrices_.push_back(matrix);
  return static_cast<std::int32_t>(matrices_.size()) - 1;
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
