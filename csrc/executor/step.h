// Runs a program for one step: every instruction over all rows, then the draws.
#pragma once
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "adapters.h"
#include "arena.h"
#include "expert_groups.h"
#include "isa.h"
#include "linear_share.h"
#include "lora_rows.h"
#include "plan.h"
#include "pool.h"
#include "profile.h"
#include "program.h"
#include "rope_table.h"
#include "weights.h"

namespace tidemill {

enum class AttentionForm : std::uint8_t { kTiled, kMaterialized };

struct StepSettings {
  AttentionForm attention = AttentionForm::kTiled;
  int row_variant = 0;  // rows per inner call of the linear kernels, 1..4 in tests; 0: chosen by the kernels
};

class StepRunner {
 public:
  StepRunner(Kernels kernels, ThreadPool& pool, StepSettings settings, const Program& program, const Weights& weights,
             std::vector<RopeTable>& ropes, const std::vector<KvPool>& kv, const Adapters& adapters);

  // The plan has been checked. Draws are in the order of rows and their output positions.
  void run(const StepPlan& plan, bool sample, bool profile);

  std::span<const Draw> draws() const { return {draws_.data(), static_cast<std::size_t>(outputs_)}; }
  // Row r of the last step's logits [outputs, vocab], or vectors.
  const float* logits(std::int32_t row) const;
  std::int32_t outputs() const { return outputs_; }
  // Instructions run since the start; to be read from any thread, also while a step runs.
  std::uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }
  // Times of the last step that was run with `profile`; see profile.h for which is which.
  const std::vector<StageTime>& stages() const { return profile_.stages(); }

 private:
  struct TaskList {
    std::int32_t group = kNone;
    std::int32_t heads = 0;
    std::int32_t window = 0;
    std::vector<AttentionRow> rows;
    std::vector<AttentionTask> tasks;   // dealt to the threads; with parts in place of those that are split
    std::vector<AttentionTask> merges;  // those that are split
    std::vector<std::int32_t> parts;    // how many of each
    std::vector<std::atomic<std::int32_t>> parts_left;  // those not yet attended
    std::size_t state_floats = 0;       // of the segments that parts keep
    std::size_t score_floats = 0;
  };

  void plan_ahead();
  void prepare(const StepPlan& plan);
  void execute(const EmbedOp& op);
  void execute(const NormOp& op);
  void execute(const LayerNormOp& op);
  void execute(const GluOp& op);
  void execute(const ActivateOp& op);
  void execute(const QuantizeOp& op);
  void execute(const LinearOp& op);
  void execute(const RopeOp& op);
  void execute(const AttentionOp& op);
  void execute(const MoeOp& op);
  void execute(const AddOp& op);
  void execute(const ScaleOp& op);
  void execute(const SigmoidGateOp& op);
  void execute(const SoftCapOp& op);
  void execute(const SelectOp& op);
  void execute(const PoolOp& op);
  void draw(const StepPlan& plan);
  void draw(const StepPlan& plan, std::int32_t output, int thread);

  std::int32_t rows_of(RowsOf rows) const { return rows == RowsOf::kTokens ? tokens_ : outputs_; }
  template <class Body>
  void for_rows(std::int32_t rows, std::int32_t width, Body body);
  template <class Compute>
  void emit_rows(RowsOf rows, std::int32_t width, std::int32_t out, std::int32_t out_quantized, Compute compute);
  void multiply(const LinearOp& op, const LinearPart& part, const LinearChunk& chunk, ExpandedTiles* kept);
  void add_low_rank(const LinearOp& op);
  void choose_experts(const MoeOp& op);
  void gather_rows(const MoeOp& op);
  void gate_rows(const MoeOp& op);
  void combine_rows(const MoeOp& op);
  void multiply_experts(const ExpertProduct& product);
  void multiply_expert(const ExpertProduct& product, const ExpertTask& task);
  AttentionCall attention_call(const AttentionOp& op) const;
  TaskList& tasks_for(const AttentionOp& op, const AttentionCall& call);
  void build_tasks(TaskList& list, const AttentionCall& call, std::int32_t group) const;
  void split_tasks(TaskList& list, const AttentionCall& call) const;
  void deal_tasks(TaskList& list, const AttentionCall& call) const;
  void write_kv(const AttentionCall& call, const AttentionKernels& kernels, const TaskList& list);
  void attend(const AttentionCall& call, const AttentionKernels& kernels, TaskList& list);
  void attend_stages(const AttentionCall& call, const AttentionKernels& kernels, const TaskList& list);
  float* scratch(int thread) {
    return reinterpret_cast<float*>(scratch_.data()) + static_cast<std::size_t>(thread) * scratch_floats_;
  }

  Kernels kernels_;
  ThreadPool& pool_;
  StepSettings settings_;
  const Program& program_;
  const Weights& weights_;
  std::vector<RopeTable>& ropes_;
  const std::vector<KvPool>& kv_;
  const Adapters& adapters_;

  StepProfile profile_;
  std::size_t instruction_ = 0;  // the one that runs
  std::atomic<std::uint64_t> progress_ = 0;
  std::vector<const Ahead*> ahead_;  // what threads fetch while they wait, by linear instruction
  Arena arena_;
  std::size_t scratch_floats_;
  PagedMemory scratch_;  // one part per thread, in whole lines: stores across lines are slow
  PagedMemory expanded_memory_;  // one part per thread
  std::vector<ExpandedTiles> expanded_;
  std::uint64_t uses_ = 0;  // of expanded_, so far
  std::vector<Sampler> samplers_;
  std::vector<float> scores_;  // materialised attention only
  std::vector<float> states_;  // attention's segments, where tasks are split

  const StepPlan* plan_ = nullptr;
  std::int32_t tokens_ = 0;
  std::int32_t outputs_ = 0;
  std::vector<std::int32_t> token_ids_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> selected_;  // token row of each output
  struct OutputOf {
    std::int32_t row, index;
  };
  std::vector<OutputOf> output_of_;
  LoraRows lora_tokens_, lora_outputs_;  // rows of the step with an adapter
  std::vector<LoraTask> lora_tasks_;
  std::vector<float> lora_hidden_;
  std::vector<TaskList> task_lists_;
  std::vector<Draw> draws_;
  ExpertGroups groups_;
  std::vector<ExpertTask> expert_tasks_;
  std::vector<float> expert_shares_;  // one row of experts per thread
};

}  // namespace tidemill
