// How the rows of an operation are shared out among threads.
#pragma once
#include <algorithm>

#include "step.h"

namespace tidemill {

inline constexpr int kRegionChunks = 16;
inline constexpr std::int64_t kChunkWork = 8192;  // values worth handing to another thread

inline int chunks_for(std::int64_t work, std::int64_t parts) {
  const std::int64_t wanted = std::clamp<std::int64_t>(work / kChunkWork, 1, kRegionChunks);
  return static_cast<int>(std::min(wanted, parts));
}

inline std::int32_t part_begin(std::int32_t parts, int chunk, int chunks) {
  return static_cast<std::int32_t>(std::int64_t{parts} * chunk / chunks);
}

// body(row, thread) for each row, shared out where there is enough work.
template <class Body>
void StepRunner::for_rows(std::int32_t rows, std::int32_t width, Body body) {
  const int chunks = chunks_for(std::int64_t{rows} * width, rows);
  pool_.run(chunks, [&](int chunk, int thread) {
    const std::int32_t end = part_begin(rows, chunk + 1, chunks);
    for (std::int32_t row = part_begin(rows, chunk, chunks); row < end; ++row) body(row, thread);
  });
}

}  // namespace tidemill
