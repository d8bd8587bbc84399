// Where the time of a step goes: per instruction, working and waiting apart. Kept only for steps that ask for it.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pool.h"

namespace tidemill {

// Nanoseconds of one stage of a step. `idle` is the time of threads without work, averaged over all of them, so that
// wall - idle is the stage's time on a machine whose threads all end at once.
struct StageTime {
  std::int64_t wall = 0;
  std::int64_t idle = 0;
};

// Stages of a program of n instructions:  0 .. n - 1 the instructions,  n .. 2n - 1 the rope and KV write of those that
// are attention (not in the former),  2n what is made ready before the first,  2n + 1 the draws.
class StepProfile {
 public:
  explicit StepProfile(ThreadPool& pool) : pool_(pool) {}

  bool on() const { return on_; }
  // Forgets what there was, and takes time from now on.
  void start(std::size_t instructions);
  void stop();
  // Books the time since the last mark (or the start) to a stage.
  void mark(std::size_t stage);
  const std::vector<StageTime>& stages() const { return stages_; }

 private:
  using Clock = std::chrono::steady_clock;

  ThreadPool& pool_;
  bool on_ = false;
  std::vector<StageTime> stages_;
  Clock::time_point last_;
  WorkTime work_;
};

}  // namespace tidemill
