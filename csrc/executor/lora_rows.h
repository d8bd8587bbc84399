// The rows of a step that have an adapter, in blocks that share one, and what there is to do for a linear layer.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "../kernels/lora.h"
#include "adapters.h"

namespace tidemill {

struct LoraBlock {
  const Adapter* adapter;
  std::int32_t rows[kLoraRows];
  int count;
};

class LoraRows {
 public:
  void clear() {
    spans_.clear();
    blocks_.clear();
  }
  void add(const Adapter* adapter, std::int32_t first, std::int32_t count) {
    spans_.push_back({adapter, first, count});
  }
  // To be called when all are added: rows of one adapter come together, so that its matrices are read once for many.
  void group() {
    const auto by_adapter = [](const Span& one, const Span& other) { return one.adapter < other.adapter; };
    std::stable_sort(spans_.begin(), spans_.end(), by_adapter);
    for (const Span& span : spans_) {
      for (std::int32_t row = span.first; row < span.first + span.count; ++row) {
        if (blocks_.empty() || blocks_.back().adapter != span.adapter || blocks_.back().count == kLoraRows) {
          blocks_.push_back({span.adapter, {}, 0});
        }
        LoraBlock& block = blocks_.back();
        block.rows[block.count++] = row;
      }
    }
  }
  std::span<const LoraBlock> blocks() const { return blocks_; }

 private:
  struct Span {
    const Adapter* adapter;
    std::int32_t first, count;
  };
  std::vector<Span> spans_;
  std::vector<LoraBlock> blocks_;
};

// One weight of a linear layer for a block of rows.
struct LoraTask {
  const LoraBlock* block;
  const LowRank* weights;
  std::int32_t column;  // where the weight's outputs begin
  std::size_t hidden;   // where the block's inner values are
};

}  // namespace tidemill
