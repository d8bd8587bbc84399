#include "pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tidemill {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSpin = std::chrono::microseconds(20);

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// claim word: generation | count | next index
constexpr std::uint64_t claim_word(std::uint32_t generation, int count) {
  return std::uint64_t{generation} << 32 | static_cast<std::uint64_t>(count) << 16;
}

}  // namespace

void set_float_mode() {
#if defined(__x86_64__)
  _mm_setcsr(0x1f80);
#elif defined(__aarch64__)
  const std::uint64_t mode = 0;
  asm volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

// Spins until `ready`, for a short while; false if it never was.
template <class Ready>
bool ThreadPool::spin(Ready ready) const {
  if (!spinning_.load(std::memory_order_relaxed)) return ready();
  const auto deadline = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (Clock::now() < deadline);
  return ready();
}

ThreadPool::ThreadPool(int threads) : worked_(static_cast<std::size_t>(threads)) {
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { serve(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::share(int chunks, Function function, void* argument) {
  const auto begin = Clock::now();
  // Nobody reads these now: every chunk of the last region has ended, and a late worker finds that region's count used
  // up in the same word as its index.
  function_ = function;
  argument_ = argument;
  done_.store(0, std::memory_order_relaxed);
  const std::uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  claim_.store(claim_word(generation, chunks), std::memory_order_release);
  generation_.store(generation);
  generation_.notify_all();
  work(generation, 0);
  const auto worked = Clock::now();
  const auto finished = [&] { return done_.load(std::memory_order_acquire) == chunks; };
  if (!spin(finished)) {
    for (std::int32_t done = done_.load(std::memory_order_acquire); done != chunks;
         done = done_.load(std::memory_order_acquire)) {
      done_.wait(done, std::memory_order_acquire);
    }
  }
  const auto waited = Clock::now() - worked;
  if (metered_) waited_ += std::chrono::nanoseconds(waited).count();
  patience_.record(worked - begin, waited);
  spinning_.store(patience_.sharing() == Sharing::kSpin, std::memory_order_relaxed);
}

void ThreadPool::work(std::uint32_t generation, int thread) {
  std::uint64_t word = claim_.load(std::memory_order_acquire);
  while (static_cast<std::uint32_t>(word >> 32) == generation) {
    const int count = static_cast<int>(word >> 16 & 0xffff);
    const int index = static_cast<int>(word & 0xffff);
    if (index >= count) return;
    if (!claim_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    run_chunk(index, thread);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) done_.notify_one();
    word = claim_.load(std::memory_order_acquire);
  }
}

void ThreadPool::run_chunk(int chunk, int thread) {
  if (!metered_) {
    function_(argument_, chunk, thread);
    return;
  }
  const auto begin = Clock::now();
  function_(argument_, chunk, thread);
  worked_[static_cast<std::size_t>(thread)].time += std::chrono::nanoseconds(Clock::now() - begin).count();
}

WorkTime ThreadPool::work_time() const {
  WorkTime sum{waited_, 0};
  for (std::size_t thread = 1; thread < worked_.size(); ++thread) sum.worked += worked_[thread].time;
  return sum;
}

void ThreadPool::serve(int thread) {
  set_float_mode();
  std::uint32_t seen = 0;
  for (;;) {
    const auto changed = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    if (!spin(changed)) generation_.wait(seen, std::memory_order_acquire);
    const std::uint32_t generation = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    if (generation == seen) continue;
    seen = generation;
    work(generation, thread);
  }
}

}  // namespace tidemill
