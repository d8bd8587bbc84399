#include "machine.h"

#include <chrono>
#include <stdexcept>
#include <utility>

namespace tidemill {

namespace {

int checked_threads(int threads) {
  if (threads < 1 || threads > 1024) {
    throw std::invalid_argument("threads must be between 1 and 1024, not " + std::to_string(threads));
  }
  return threads;
}

}  // namespace

Machine::Machine(const MachineSettings& settings)
    : kernels_(select_kernels(settings.isa)), settings_(settings.step), pool_(checked_threads(settings.threads)) {
  if (settings.step.row_variant < 0 || settings.step.row_variant > kPanelRows) {
    throw std::invalid_argument("force_row_variant must be between 0 and 4, not " +
                                std::to_string(settings.step.row_variant));
  }
}

void Machine::close() {
  const std::lock_guard lock(computing_);
  closed_ = true;
  in_flight_ = false;
  runner_.reset();
  check_.reset();
  kv_.clear();
  adapters_ = Adapters();
  weights_ = Weights();
}

void Machine::require_open() const {
  if (closed_) throw std::runtime_error("the executor is closed");
}

std::int32_t Machine::add_matrices(FileFormat format, std::int32_t count, std::int32_t n, std::int32_t k,
                                   const std::uint8_t* rows, bool mapped) {
  require_open();
  const FloatMode mode;
  return weights_.add_matrices(format, count, n, k, rows, mapped, pool_);
}

std::int32_t Machine::add_rope(std::vector<double> inv_freq, double factor) {
  ropes_.emplace_back(std::move(inv_freq), factor);
  return static_cast<std::int32_t>(ropes_.size()) - 1;
}

std::int32_t Machine::add_group(KvShape shape) {
  if (shape.head_dim < 1 || shape.head_dim > kMaxHeadDim) {
    throw std::invalid_argument("head_dim must be between 1 and " + std::to_string(kMaxHeadDim) + ", not " +
                                std::to_string(shape.head_dim));
  }
  if (shape.window < 0) throw std::invalid_argument("window must not be negative, and is " + std::to_string(shape.window));
  program_.groups.push_back(shape);
  kv_.emplace_back();
  return static_cast<std::int32_t>(program_.groups.size()) - 1;
}

void Machine::add_adapter(std::int64_t number, std::span<const LoraWeights> weights) {
  if (in_flight_) throw std::invalid_argument("a step is in flight");
  require_open();
  adapters_.add(number, program_.targets, weights);
}

void Machine::drop_adapter(std::int64_t number) {
  if (in_flight_) throw std::invalid_argument("a step is in flight");
  adapters_.drop(number);
}

void Machine::allocate_kv(std::int32_t group, std::int32_t num_blocks, std::int32_t block_size, KvFormat format) {
  if (in_flight_) throw std::invalid_argument("a step is in flight");
  const auto index = static_cast<std::size_t>(group);
  kv_.at(index) = KvPool(program_.groups.at(index), num_blocks, block_size, format);
  check_.reset();
}

KvPool& Machine::kv(std::int32_t group) {
  if (in_flight_) throw std::invalid_argument("a step is in flight");
  KvPool& pool = kv_.at(static_cast<std::size_t>(group));
  if (pool.num_blocks() == 0) throw std::invalid_argument("allocate_kv has not been called for this group");
  return pool;
}

void Machine::start_runner() {
  for (const KvPool& pool : kv_) {
    if (pool.num_blocks() == 0) throw std::invalid_argument("allocate_kv has not been called for every group");
  }
  if (!check_) check_.emplace(program_, kv_, adapters_);
  if (!runner_) runner_.emplace(kernels_, pool_, settings_, program_, weights_, ropes_, kv_, adapters_);
}

void Machine::submit(StepPlan plan, bool sample, bool profile) {
  if (in_flight_) throw std::invalid_argument("a step is in flight");
  require_open();
  start_runner();
  check_->check(plan);
  plan_ = std::move(plan);
  sample_ = sample;
  profile_ = profile;
  in_flight_ = true;
}

void Machine::collect() {
  const std::lock_guard lock(computing_);
  if (!in_flight_) throw std::invalid_argument("no step is in flight");
  in_flight_ = false;
  const FloatMode mode;
  const auto begin = std::chrono::steady_clock::now();
  runner_->run(plan_, sample_, profile_);
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace tidemill
