#include "plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace tidemill {

namespace {

constexpr std::int64_t kMaxPosition = std::numeric_limits<std::int32_t>::max() - 64;

[[noreturn]] void fail(std::size_t row, const std::string& what) {
  throw std::invalid_argument("plan row " + std::to_string(row) + ": " + what);
}

std::string outside(const std::string& field, std::int64_t value, std::int64_t limit) {
  return field + " = " + std::to_string(value) + " is not in [0, " + std::to_string(limit) + ")";
}

void check_ids(std::size_t row, const char* field, std::int32_t id, std::int32_t vocab) {
  if (id < 0 || id >= vocab) fail(row, outside(field, id, vocab));
}

void check_number(std::size_t row, const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high)) fail(row, std::string(field) + " = " + std::to_string(value) + " is out of range");
}

void check_masks(std::size_t row, const std::vector<std::vector<std::uint32_t>>& masks, std::int32_t outputs,
                 std::int32_t vocab) {
  if (masks.empty()) return;
  if (masks.size() != static_cast<std::size_t>(outputs)) {
    fail(row, "masks are " + std::to_string(masks.size()) + " for " + std::to_string(outputs) + " outputs");
  }
  const auto words = static_cast<std::size_t>((vocab + 31) / 32);
  for (const auto& mask : masks) {
    if (!mask.empty() && mask.size() != words) {
      fail(row, "a mask has " + std::to_string(4 * mask.size()) + " bytes, not " + std::to_string(4 * words));
    }
  }
}

void check_targets(std::size_t row, const SamplingParameters& sampling, std::int32_t outputs, std::int32_t vocab) {
  if (sampling.targets.size() > static_cast<std::size_t>(outputs)) {
    fail(row, "targets are " + std::to_string(sampling.targets.size()) + " for " + std::to_string(outputs) + " outputs");
  }
  if (!sampling.targets.empty() && sampling.logprobs < 0) fail(row, "targets are present, and logprobs are not asked for");
  for (const std::int32_t target : sampling.targets) check_ids(row, "targets", target, vocab);
}

void check_sampling(std::size_t row, const SamplingParameters& sampling, std::int32_t vocab) {
  constexpr double kHuge = std::numeric_limits<float>::max();
  check_number(row, "temperature", static_cast<double>(sampling.temperature), 0.0, kHuge);
  check_number(row, "top_p", sampling.top_p, std::numeric_limits<double>::min(), 1.0);
  check_number(row, "min_p", sampling.min_p, 0.0, 1.0);
  check_number(row, "repetition_penalty", static_cast<double>(sampling.repetition_penalty),
               static_cast<double>(std::numeric_limits<float>::min()), kHuge);
  check_number(row, "presence_penalty", static_cast<double>(sampling.presence_penalty), -kHuge, kHuge);
  check_number(row, "frequency_penalty", static_cast<double>(sampling.frequency_penalty), -kHuge, kHuge);
  if (sampling.logprobs > vocab) fail(row, "logprobs = " + std::to_string(sampling.logprobs) + " is over the vocabulary");
  for (const TokenBias& bias : sampling.bias) {
    check_ids(row, "logit_bias token", bias.id, vocab);
    check_number(row, "logit_bias", static_cast<double>(bias.value), -kHuge, kHuge);
  }
  std::int32_t before = -1;
  for (const TokenCount& count : sampling.counts) {
    check_ids(row, "penalties.ids", count.id, vocab);
    if (count.id <= before) fail(row, "penalties.ids are not ascending");
    if (count.output_count < 0) fail(row, "penalties.output_counts has a negative count");
    before = count.id;
  }
}

}  // namespace

std::int32_t StepPlan::tokens() const {
  std::int32_t total = 0;
  for (const StepRow& row : rows) total += row.size();
  return total;
}

std::int32_t StepPlan::outputs() const {
  std::int32_t total = 0;
  for (const StepRow& row : rows) total += row.outputs;
  return total;
}

PlanCheck::PlanCheck(const Program& program, const std::vector<KvPool>& pools, const Adapters& adapters)
    : program_(program), pools_(pools), adapters_(adapters) {
  for (const KvPool& pool : pools) written_.emplace_back(static_cast<std::size_t>(pool.num_blocks()));
}

void PlanCheck::check(const StepPlan& plan) {
  if (plan.rows.empty()) throw std::invalid_argument("the plan has no rows");
  ++round_;
  for (std::size_t i = 0; i < plan.rows.size(); ++i) check_row(i, plan.rows[i]);
}

void PlanCheck::check_row(std::size_t index, const StepRow& row) {
  if (row.tokens.empty()) fail(index, "tokens is empty");
  for (std::size_t t = 0; t < row.tokens.size(); ++t) {
    if (row.tokens[t] < 0 || row.tokens[t] >= program_.vocab) {
      fail(index, outside("tokens[" + std::to_string(t) + "]", row.tokens[t], program_.vocab));
    }
  }
  if (row.start < 0 || row.start > kMaxPosition - row.size()) fail(index, outside("start", row.start, kMaxPosition));
  if (row.outputs < 0 || row.outputs > row.size()) fail(index, outside("num_outputs", row.outputs, row.size() + 1));
  if (row.tables.size() != pools_.size()) {
    fail(index, "block_tables has " + std::to_string(row.tables.size()) + " tables, the graph has " +
                    std::to_string(pools_.size()) + " KV groups");
  }
  for (std::size_t group = 0; group < pools_.size(); ++group) check_table(index, row, group);
  if (row.adapter != 0 && adapters_.find(row.adapter) == nullptr) {
    fail(index, "adapter " + std::to_string(row.adapter) + " is not loaded");
  }
  check_kind(index, row);
}

// What depends on whether tokens are drawn or vectors asked for.
void PlanCheck::check_kind(std::size_t index, const StepRow& row) {
  const std::int64_t last = row.start + row.size() - 1;
  if (program_.positions > 0 && last >= program_.positions) fail(index, outside("position", last, program_.positions));
  if (program_.vector_width == 0) {
    if (row.draws != (row.outputs > 0)) fail(index, "options must be present exactly if num_outputs > 0");
    if (!row.draws) return;
    check_sampling(index, row.sampling, program_.vocab);
    check_targets(index, row.sampling, row.outputs, program_.vocab);
    check_masks(index, row.sampling.masks, row.outputs, program_.vocab);
    return;
  }
  if (row.draws) fail(index, "options are present, and no token is drawn");
  if (row.outputs > 1) fail(index, outside("num_outputs", row.outputs, 2));
  if (program_.whole && row.start > 0) fail(index, "start is not 0, but the sequence has to be whole");
}

void PlanCheck::check_table(std::size_t index, const StepRow& row, std::size_t group) {
  const std::vector<std::int32_t>& table = row.tables[group];
  const KvPool& pool = pools_[group];
  const std::string name = "block_tables[" + std::to_string(group) + "]";
  const auto needed = static_cast<std::size_t>((row.start + row.size() + pool.block_size() - 1) / pool.block_size());
  if (table.size() < needed) {
    fail(index, name + " has " + std::to_string(table.size()) + " blocks, position " +
                    std::to_string(row.start + row.size() - 1) + " needs " + std::to_string(needed));
  }
  // Blocks that the window has passed may have been given back.
  const std::int64_t first_read = pool.window() == 0 ? 0 : std::max<std::int64_t>(row.start - pool.window() + 1, 0);
  const auto passed = static_cast<std::size_t>(first_read / pool.block_size());
  for (std::size_t b = 0; b < table.size(); ++b) {
    if (b < passed && table[b] == kNoBlock) continue;
    if (table[b] < 0 || table[b] >= pool.num_blocks()) {
      fail(index, outside(name + "[" + std::to_string(b) + "]", table[b], pool.num_blocks()));
    }
  }
  for (auto b = static_cast<std::size_t>(row.start / pool.block_size()); b < needed; ++b) {
    std::uint64_t& written = written_[group][static_cast<std::size_t>(table[b])];
    if (written == round_) fail(index, name + ": block " + std::to_string(table[b]) + " is written twice in this step");
    written = round_;
  }
}

}  // namespace tidemill
