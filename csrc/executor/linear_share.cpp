#include "linear_share.h"

#include <algorithm>

#include "pool.h"

namespace tidemill {

namespace {

// Few rows are done as fast as their weights can be read: chunks are as small as pays (half a microsecond's reading), and
// the threads end together. A middling number is gone through, and laid out for tiles, again in each chunk: few are best.
constexpr std::int64_t kChunkBytes = 16 << 10;
constexpr std::int64_t kFewRows = 32;  // most chunks for each thread
constexpr std::int64_t kMiddlingRows = 3;

// Many rows are enough to expand the weights for, in each thread.
constexpr std::int32_t kManyRows = 128;  // for each thread
constexpr std::int32_t kRowUnit = 16;    // chunks of rows begin at multiples: whole tiles of products
constexpr std::int32_t kChunkUnits = 2;
constexpr std::int64_t kPassWeights = std::int64_t{1} << 20;  // 1.1 to 1.4 MB of a second-level cache, once expanded

}  // namespace

LinearShare::LinearShare(const LinearOp& op, const Weights& weights, std::int32_t rows, int threads)
    : op_(op), weights_(weights), rows_(rows), threads_(threads) {
  std::int64_t bytes = 0;
  for (const LinearPart& part : op.parts) {
    const PackedMatrix& matrix = weights.matrix(part.matrix);
    tiles_ += matrix.tiles();
    bytes += static_cast<std::int64_t>(matrix.bytes());
  }
  if (rows >= std::int64_t{kManyRows} * threads) {
    const std::int64_t weights_of_tile = std::int64_t{op.in_width} * kTileColumns;
    const std::int64_t wanted = (tiles_ * weights_of_tile + kPassWeights - 1) / kPassWeights;
    passes_ = static_cast<int>(std::min<std::int64_t>({wanted, tiles_, ThreadPool::kMaxChunks / threads}));
    // As many for each thread: lanes are then whole passes over neighbouring rows.
    const std::int32_t most = ThreadPool::kMaxChunks / (passes_ * threads);
    row_chunks_ = threads * std::clamp(rows / (kRowUnit * kChunkUnits * threads), 1, most);
    chunks_ = passes_ * row_chunks_;
    return;
  }
  const bool few = rows <= kPanelRows;
  const std::int64_t wanted =
      std::min((few ? kFewRows : kMiddlingRows) * threads, few ? bytes / kChunkBytes : std::int64_t{tiles_});
  const std::int64_t most = std::min(tiles_, std::int32_t{ThreadPool::kMaxChunks});
  chunks_ = static_cast<int>(std::clamp<std::int64_t>(wanted, 1, most));
}

LinearChunk LinearShare::chunk(int index) const {
  if (!by_rows()) return {0, rows_, tile_begin(index, chunks_), tile_begin(index + 1, chunks_), 0};
  const int of_thread = row_chunks_ / threads_;
  const int lane = index / (passes_ * of_thread);
  const int pass = index / of_thread % passes_;
  const int rows = lane * of_thread + index % of_thread;
  const std::int32_t units = (rows_ + kRowUnit - 1) / kRowUnit;
  const auto row_begin = [&](int chunk) {
    return std::min(rows_, static_cast<std::int32_t>(std::int64_t{units} * chunk / row_chunks_) * kRowUnit);
  };
  return {row_begin(rows), row_begin(rows + 1), tile_begin(pass, passes_), tile_begin(pass + 1, passes_), pass};
}

std::vector<ByteSpan> LinearShare::lane(int thread) const {
  std::vector<ByteSpan> spans;
  const std::int32_t first = tile_begin(ThreadPool::lane_begin(chunks_, thread, threads_), chunks_);
  const std::int32_t last = tile_begin(ThreadPool::lane_begin(chunks_, thread + 1, threads_), chunks_);
  for_parts(first, last, [&](const LinearPart& part, std::int32_t from, std::int32_t to) {
    const PackedMatrix& matrix = weights_.matrix(part.matrix);
    spans.push_back({matrix.data + matrix.tile_bytes * static_cast<std::size_t>(from),
                     matrix.tile_bytes * static_cast<std::size_t>(to - from)});
  });
  return spans;
}

}  // namespace tidemill
