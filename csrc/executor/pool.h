// Threads that share the chunks of one region at a time.
//
// A region's chunks are claimed one by one through a single 64-bit word (generation, count, index), and the caller takes
// part: a worker that the system does not run is never waited for, only a chunk that is already claimed is. Idle workers
// spin for about 20 microseconds, then sleep; see patience.h for what happens on a busy machine.
//
// Which thread computes a chunk is open, so a chunk's result must not depend on it.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

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

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Whether to take the time of chunks; for the caller of run, between regions, as is work_time.
  void set_metered(bool metered) { metered_ = metered; }
  WorkTime work_time() const;

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

  template <class Ready>
  bool spin(Ready ready) const;
  void share(int chunks, Function function, void* argument);
  void work(std::uint32_t generation, int thread);
  void serve(int thread);
  void run_chunk(int chunk, int thread);

  // On separate cache lines: the claim word changes for every chunk, the others once per region.
  alignas(128) std::atomic<std::uint64_t> claim_{0};
  alignas(128) std::atomic<std::uint32_t> generation_{0};
  alignas(128) std::atomic<std::int32_t> done_{0};
  alignas(128) Function function_ = nullptr;
  void* argument_ = nullptr;
  bool metered_ = false;  // read for a claimed chunk only, so never while it is set
  std::int64_t waited_ = 0;
  struct alignas(128) Worked {
    std::int64_t time = 0;
  };
  std::vector<Worked> worked_;  // one per thread, each written by its own before it says that a chunk is done
  Patience patience_;  // the caller's
  std::atomic<bool> spinning_{true};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

// The floating-point mode every compute thread runs in: round to nearest, denormals kept, no traps. A thread inherits
// the mode of the one that made it, and a library loaded earlier may have changed that.
void set_float_mode();

}  // namespace tidemill
