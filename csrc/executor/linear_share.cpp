#include "linear_share.h"

#include <algorithm>

#include "pool.h"

namespace tidemill {

namespace {

// Few rows are done as fast as their weights can be read: chunks are as small as pays (half a microsecond's reading), and
// the threads end together. Many rows are gone through, and laid out for tiles, again in each chunk: few are best.
constexpr std::int64_t kChunkBytes = 16 << 10;
constexpr std::int64_t kFewRows = 32;  // most chunks for each thread
constexpr std::int64_t kManyRows = 3;

}  // namespace

LinearShare::LinearShare(const LinearOp& op, const Weights& weights, std::int32_t rows, int threads)
    : op_(op), weights_(weights), threads_(threads) {
  std::int64_t bytes = 0;
  for (const LinearPart& part : op.parts) {
    const PackedMatrix& matrix = weights.matrix(part.matrix);
    tiles_ += matrix.tiles();
    bytes += static_cast<std::int64_t>(matrix.bytes());
  }
  const bool few = rows <= kPanelRows;
  const std::int64_t wanted = std::min((few ? kFewRows : kManyRows) * threads, few ? bytes / kChunkBytes : tiles_);
  const std::int64_t most = std::min(tiles_, std::int32_t{ThreadPool::kMaxChunks});
  chunks_ = static_cast<int>(std::clamp<std::int64_t>(wanted, 1, most));
}

std::vector<ByteSpan> LinearShare::lane(int thread) const {
  std::vector<ByteSpan> spans;
  const std::int32_t first = begin(ThreadPool::lane_begin(chunks_, thread, threads_));
  const std::int32_t last = begin(ThreadPool::lane_begin(chunks_, thread + 1, threads_));
  for_parts(first, last, [&](const LinearPart& part, std::int32_t from, std::int32_t to) {
    const PackedMatrix& matrix = weights_.matrix(part.matrix);
    spans.push_back({matrix.data + matrix.tile_bytes * static_cast<std::size_t>(from),
                     matrix.tile_bytes * static_cast<std::size_t>(to - from)});
  });
  return spans;
}

}  // namespace tidemill
