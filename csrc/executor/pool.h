// Threads that share the chunks of one region at a time.
//
//     chunks  0                                                        n
//             | thread 0  -->        . | thread 1  -->        . | ... |      --> takes its own from the front
//                              <-- others, when they are done                <-- others take from the back
//
// Each thread has a lane: a run of neighbouring chunks that it takes from the front, so that it reads one stretch of
// memory and shares no cache line with anybody while it does. Who has none left takes from the backs of the others'
// lanes. A lane is claimed through one 64-bit word (generation, end, begin), and the caller takes part: a worker that the
// system does not run is never waited for, only a chunk that is already claimed is. Idle workers spin for about 20
// microseconds, then sleep; see patience.h for what happens on a busy machine. Threads that spin fetch what they will
// read next.
//
// Which thread computes a chunk is open, so a chunk's result must not depend on it.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "ahead.h"
#include "patience.h"

namespace tidemill {

// Nanoseconds since the pool was made, of regions run while it was metered.
struct WorkTime {
  std::int64_t waited = 0;  // the caller's, for chunks that others had claimed
  std::int64_t worked = 0;  // the other threads', in chunks, added up
};

class ThreadPool {
 public:
  // `threads` counts the caller, so threads - 1 are started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  static constexpr int kMaxChunks = 0xffff;

  int threads() const { return static_cast<int>(lanes_.size()); }

  // First chunk of a thread's lane, of so many chunks. The caller, who begins first, has the most.
  static int lane_begin(int chunks, int thread, int threads) {
    return static_cast<int>((std::int64_t{chunks} * thread + threads - 1) / threads);
  }

  // Whether to take the time of chunks; for the caller of run, between regions, as is work_time.
  void set_metered(bool metered) { metered_ = metered; }
  WorkTime work_time() const;

  // Keeps what the threads may fetch while they wait, as long as the pool lives.
  const Ahead* keep(Ahead ahead) { return &kept_.emplace_back(std::move(ahead)); }
  // What they may fetch from now on: something kept, or null.
  void set_ahead(const Ahead* ahead) { ahead_.store(ahead, std::memory_order_release); }

  // Calls body(chunk, thread) once for each chunk in [0, chunks), at most kMaxChunks, and returns when all have ended.
  // One caller at a time. The body must not throw.
  template <class Body>
  void run(int chunks, Body&& body) {
    if (chunks <= 1 || workers_.empty() || patience_.sharing() == Sharing::kAlone) {
      const auto begin = std::chrono::steady_clock::now();
      for (int chunk = 0; chunk < chunks; ++chunk) body(chunk, 0);
      if (chunks > 1) patience_.record(std::chrono::steady_clock::now() - begin, {});
      return;
    }
    using Target = std::remove_reference_t<Body>;
    const Function call = [](void* target, int chunk, int thread) { (*static_cast<Target*>(target))(chunk, thread); };
    share(chunks, call, const_cast<void*>(static_cast<const void*>(std::addressof(body))));
  }

 private:
  using Function = void (*)(void*, int chunk, int thread);

  // Everything a thread needs to begin, on lines of its own; the caller writes them once per region.
  struct alignas(128) Lane {
    std::atomic<std::uint64_t> claim{0};
    Function function = nullptr;  // read for a claimed chunk only, so never while they are set
    void* argument = nullptr;
    std::int64_t worked = 0;  // written by its own thread before it says that chunks are done
  };

  template <class Ready>
  bool spin(int thread, Ready ready) const;
  void share(int chunks, Function function, void* argument);
  int work(std::uint32_t generation, int thread);
  int take(std::uint32_t generation, int thread);
  void run_chunk(int chunk, int thread);
  void serve(int thread);

  std::vector<Lane> lanes_;  // the caller's first
  alignas(128) std::atomic<std::uint32_t> generation_{0};  // what sleeping workers wait on
  alignas(128) std::atomic<std::int32_t> done_{0};
  alignas(128) std::atomic<const Ahead*> ahead_{nullptr};
  bool metered_ = false;  // as a lane's function
  std::int64_t waited_ = 0;
  Patience patience_;  // the caller's
  std::deque<Ahead> kept_;
  std::atomic<bool> spinning_{true};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// The floating-point mode every compute thread runs in: round to nearest, denormals kept, no traps. A thread inherits
// the mode of the one that made it, and a library loaded earlier may have changed that.
void set_float_mode();

// That mode while it lives, in a thread that is not ours.
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  std::uint64_t before_;
};

}  // namespace tidemill
