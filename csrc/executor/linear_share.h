// How the tiles of a linear layer are shared out: cut into chunks, which are dealt to the threads in runs of neighbours
// (pool.h), so that each thread reads one stretch of every weight.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ahead.h"
#include "program.h"
#include "weights.h"

namespace tidemill {

class LinearShare {
 public:
  LinearShare(const LinearOp& op, const Weights& weights, std::int32_t rows, int threads);

  int chunks() const { return chunks_; }
  // First tile of a chunk, counted over all parts.
  std::int32_t begin(int chunk) const { return static_cast<std::int32_t>(std::int64_t{tiles_} * chunk / chunks_); }

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

  // What a thread reads of the weights, if nobody takes from its lane.
  std::vector<ByteSpan> lane(int thread) const;

 private:
  const LinearOp& op_;
  const Weights& weights_;
  int threads_;
  std::int32_t tiles_ = 0;
  int chunks_ = 1;
};

}  // namespace tidemill
