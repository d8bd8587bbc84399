// How a linear layer is shared out: cut into chunks, which are dealt to the threads in runs of neighbours (pool.h).
//
//   few rows    by tiles of outputs: each thread reads one stretch of every weight, and all rows
//   many rows   by rows: each thread reads all weights and stays with its rows, as the operations before and after do, so
//               that they are in its own cache. Tiles come in passes that stay in that cache too:
//
//                   thread 0     pass 0: rows 0, 1, 2, 3    pass 1: rows 0, 1, 2, 3
//                   thread 1     pass 0: rows 4, 5, 6, 7    pass 1: rows 4, 5, 6, 7
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ahead.h"
#include "program.h"
#include "weights.h"

namespace tidemill {

// What one chunk computes: the tiles are counted over all parts.
struct LinearChunk {
  std::int32_t row_begin, row_end;
  std::int32_t tile_begin, tile_end;
  int pass;
};

class LinearShare {
 public:
  LinearShare(const LinearOp& op, const Weights& weights, std::int32_t rows, int threads);

  int chunks() const { return chunks_; }
  int passes() const { return passes_; }
  bool by_rows() const { return row_chunks_ > 1; }
  LinearChunk chunk(int index) const;

  // body(part, begin, end): the tiles [begin, end) over all parts, as tiles of each.
  template <class Body>
  void for_parts(std::int32_t begin, std::int32_t end, Body body) const {
    for (const LinearPart& part : op_.parts) {
      const std::int32_t count = weights_.matrix(part.matrix).tiles();
      if (begin < count && end > 0) body(part, begin < 0 ? 0 : begin, end < count ? end : count);
      begin -= count;
      end -= count;
    }
  }

  // What a thread reads of the weights of few rows, if nobody takes from its lane.
  std::vector<ByteSpan> lane(int thread) const;

 private:
  std::int32_t tile_begin(int part, int parts) const {
    return static_cast<std::int32_t>(std::int64_t{tiles_} * part / parts);
  }

  const LinearOp& op_;
  const Weights& weights_;
  std::int32_t rows_;
  int threads_;
  std::int32_t tiles_ = 0;
  int row_chunks_ = 1;  // of each pass
  int passes_ = 1;
  int chunks_ = 1;
};

}  // namespace tidemill
