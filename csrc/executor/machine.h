// A loaded model, and its steps.
//
// Built in this order: weights, ropes, groups, slots and instructions; then allocate_kv; then steps, one at a time. A step
// is computed by whoever collects it, at the head of the pool: a thread of its own would have to be woken for each, and to
// wake the collector at the end, which takes as long as many regions. Both compute in the same floating-point mode.
#pragma once
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "step.h"

namespace tidemill {

struct MachineSettings {
  std::string isa = "auto";
  int threads = 1;
  StepSettings step;
};

class Machine {
 public:
  explicit Machine(const MachineSettings& settings);  // throws std::invalid_argument
  ~Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // See Weights::add_matrices.
  std::int32_t add_matrices(FileFormat format, std::int32_t count, std::int32_t n, std::int32_t k,
                            const std::uint8_t* rows, bool mapped);
  std::int32_t add_rope(std::vector<double> inv_freq, double factor);
  std::int32_t add_group(KvShape shape);
  Weights& weights() { return weights_; }
  Program& program() { return program_; }

  // Takes an adapter under a number that no row of a plan has for another; throws std::invalid_argument.
  void add_adapter(std::int64_t number, std::span<const LoraWeights> weights);
  // Lets it go; no plan may name it any more.
  void drop_adapter(std::int64_t number);

  void allocate_kv(std::int32_t group, std::int32_t num_blocks, std::int32_t block_size, KvFormat format);
  KvPool& kv(std::int32_t group);  // throws std::invalid_argument for an unknown or unallocated group

  // Checks the plan, throws std::invalid_argument, or keeps it. `sample` false: logits or vectors only.
  void submit(StepPlan plan, bool sample, bool profile = false);  // `profile`: take the times of its stages
  // Computes the step in flight; what it throws ends it.
  void collect();
  bool in_flight() const { return in_flight_; }
  double seconds() const { return seconds_; }
  std::uint64_t progress() const { return runner_ ? runner_->progress() : 0; }  // see StepRunner::progress
  const StepPlan& plan() const { return plan_; }
  const StepRunner& result() const { return *runner_; }

  const char* isa() const { return kernels_.isa(); }
  int threads() const { return pool_.threads(); }
  // Bytes of arena for a step of this many rows.
  std::size_t workspace_bytes(std::int32_t tokens, std::int32_t outputs) const {
    return arena_bytes(program_.slots, tokens, outputs);
  }
  // Drops the step in flight, or waits if another thread computes it; gives back weights and KV.
  void close();

 private:
  void require_open() const;
  void start_runner();

  Kernels kernels_;
  StepSettings settings_;
  ThreadPool pool_;
  Weights weights_;
  std::vector<RopeTable> ropes_;
  Program program_;
  std::vector<KvPool> kv_;
  Adapters adapters_;
  std::optional<PlanCheck> check_;
  std::optional<StepRunner> runner_;
  StepPlan plan_;
  bool sample_ = false;  // as the two below, of the step in flight
  bool profile_ = false;
  bool in_flight_ = false;
  bool closed_ = false;
  double seconds_ = 0.0;
  std::mutex computing_;  // held by collect
};

}  // namespace tidemill
