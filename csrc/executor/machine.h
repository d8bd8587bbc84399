// A loaded model and the thread that steps it.
//
// Built in this order: weights, ropes, groups, slots and instructions; then allocate_kv; then steps, one at a time. A step
// is begun by the driver thread, or by whoever waits for it if that comes first; packing likewise. The one and the pool
// it leads compute in the same floating-point mode.
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
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
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // See Weights::add_matrices.
  std::int32_t add_matrices(FileFormat format, std::int32_t count, std::int32_t n, std::int32_t k,
                            const std::uint8_t* rows, bool mapped);
  std::int32_t add_rope(std::vector<double> inv_freq, double factor);
  std::int32_t add_group(KvShape shape);
  Weights& weights() { return weights_; }
  Program& program() { return program_; }

  void allocate_kv(std::int32_t group, std::int32_t num_blocks, std::int32_t block_size, KvFormat format);
  KvPool& kv(std::int32_t group);  // throws std::invalid_argument for an unknown or unallocated group

  // Checks the plan, throws std::invalid_argument, or starts it. `sample` false: logits or vectors only.
  void submit(StepPlan plan, bool sample, bool profile = false);  // `profile`: take the times of its stages
  // Waits for the step in flight; rethrows what it threw.
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
  void close();

 private:
  void drive();
  void run_job(std::unique_lock<std::mutex>& lock);
  void start(std::function<void()> job);
  void finish();
  void start_runner();

  Kernels kernels_;
  StepSettings settings_;
  ThreadPool pool_;
  Weights weights_;
  std::vector<RopeTable> ropes_;
  Program program_;
  std::vector<KvPool> kv_;
  std::optional<PlanCheck> check_;
  std::optional<StepRunner> runner_;
  StepPlan plan_;
  bool in_flight_ = false;
  bool closed_ = false;
  double seconds_ = 0.0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;  // guarded by mutex_, as the three below
  bool busy_ = false;
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread driver_;
};

}  // namespace tidemill
