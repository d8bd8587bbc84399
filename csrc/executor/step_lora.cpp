// What adapters add to a linear layer: for the rows that have one, and the weights that it changes.
#include "step_rows.h"

namespace tidemill {

namespace {

constexpr std::int32_t kCuts = 16;  // of the outputs, where there are few tasks

std::size_t hidden_stride(const LowRank& weights) { return row_stride(weights.rank); }

}  // namespace

// The layer's own outputs are there, bias and residual included. First the inner values of all tasks, then what they
// make of the outputs: two regions, as each output needs all inner values of its row.
void StepRunner::add_low_rank(const LinearOp& op) {
  const std::span<const LoraBlock> blocks = (op.rows == RowsOf::kTokens ? lora_tokens_ : lora_outputs_).blocks();
  if (blocks.empty()) return;
  lora_tasks_.clear();
  std::size_t hidden = 0;
  std::int64_t work = 0;
  for (const LinearPart& part : op.parts) {
    for (const LoraBlock& block : blocks) {
      const LowRank* weights = part.target == kNone ? nullptr : block.adapter->part(part.target);
      if (weights == nullptr) continue;
      lora_tasks_.push_back({&block, weights, part.column, hidden});
      hidden += kLoraRows * hidden_stride(*weights);
      work += std::int64_t{block.count} * weights->rank * op.in_width;
    }
  }
  if (lora_tasks_.empty()) return;
  if (lora_hidden_.size() < hidden) lora_hidden_.resize(hidden);
  const auto count = static_cast<std::int32_t>(lora_tasks_.size());

  struct Rows {
    float* at[kLoraRows];
  };
  const auto hidden_of = [&](const LoraTask& task) {
    Rows rows{};
    for (int r = 0; r < kLoraRows; ++r) {
      rows.at[r] = lora_hidden_.data() + task.hidden + static_cast<std::size_t>(r) * hidden_stride(*task.weights);
    }
    return rows;
  };
  const auto rows_of_block = [](const LoraBlock& block, float* base, std::size_t stride) {
    Rows rows{};
    for (int r = 0; r < block.count; ++r) rows.at[r] = base + static_cast<std::size_t>(block.rows[r]) * stride;
    return rows;
  };

  const int chunks = chunks_for(work, count);
  pool_.run(chunks, [&](int chunk, int) {
    for (std::int32_t i = part_begin(count, chunk, chunks); i < part_begin(count, chunk + 1, chunks); ++i) {
      const LoraTask& task = lora_tasks_[static_cast<std::size_t>(i)];
      const LowRank& weights = *task.weights;
      const Rows x = rows_of_block(*task.block, arena_.floats(op.x), row_stride(op.in_width));
      const Rows h = hidden_of(task);
      kernels_.vector->lora.down(weights.a, weights.stride, weights.rank, op.in_width, x.at, task.block->count,
                                 weights.scale, h.at);
    }
  });

  const std::int32_t cuts = count < kCuts ? kCuts : 1;
  const std::int32_t pieces = count * cuts;
  const int up_chunks = chunks_for(work, pieces);
  pool_.run(up_chunks, [&](int chunk, int) {
    for (std::int32_t i = part_begin(pieces, chunk, up_chunks); i < part_begin(pieces, chunk + 1, up_chunks); ++i) {
      const LoraTask& task = lora_tasks_[static_cast<std::size_t>(i / cuts)];
      const LowRank& weights = *task.weights;
      const Rows h = hidden_of(task);
      const Rows out = rows_of_block(*task.block, arena_.floats(op.out) + task.column, row_stride(op.out_width));
      kernels_.vector->lora.up(weights.b, weights.rank, weights.outputs, weights.tiles() * (i % cuts) / cuts,
                               weights.tiles() * (i % cuts + 1) / cuts, h.at, task.block->count, out.at);
    }
  });
}

}  // namespace tidemill
