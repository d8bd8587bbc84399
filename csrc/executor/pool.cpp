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

// The register that holds a thread's floating-point mode.
#if defined(__x86_64__)
constexpr std::uint64_t kFloatControl = 0x1f80;
std::uint64_t float_control() { return _mm_getcsr(); }
void set_float_control(std::uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#elif defined(__aarch64__)
constexpr std::uint64_t kFloatControl = 0;
std::uint64_t float_control() {
  std::uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void set_float_control(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
constexpr std::uint64_t kFloatControl = 0;
std::uint64_t float_control() { return 0; }
void set_float_control(std::uint64_t) {}
#endif

// claim word: generation | end | begin, of the chunks that nobody has taken yet
constexpr std::uint64_t claim_word(std::uint32_t generation, int begin, int end) {
  return std::uint64_t{generation} << 32 | static_cast<std::uint64_t>(end) << 16 | static_cast<std::uint64_t>(begin);
}

constexpr std::uint32_t generation_of(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); }
constexpr int begin_of(std::uint64_t word) { return static_cast<int>(word & 0xffff); }
constexpr int end_of(std::uint64_t word) { return static_cast<int>(word >> 16 & 0xffff); }

}  // namespace

void set_float_mode() { set_float_control(kFloatControl); }

FloatMode::FloatMode() : before_(float_control()) { set_float_mode(); }

FloatMode::~FloatMode() { set_float_control(before_); }

// Spins until `ready`, for a short while; false if it never was.
template <class Ready>
bool ThreadPool::spin(int thread, Ready ready) const {
  if (!spinning_.load(std::memory_order_relaxed)) return ready();
  const Ahead* ahead = nullptr;
  Fetcher fetcher({});
  const auto deadline = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      if (const Ahead* now = ahead_.load(std::memory_order_acquire); now != ahead) {
        ahead = now;
        fetcher = Fetcher(now == nullptr ? std::span<const ByteSpan>() : now->of(thread));
      }
      if (!fetcher.some()) pause();
    }
  } while (Clock::now() < deadline);
  return ready();
}

ThreadPool::ThreadPool(int threads) : lanes_(static_cast<std::size_t>(threads)) {
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { serve(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  const std::uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  for (Lane& lane : lanes_) lane.claim.store(claim_word(generation, 0, 0), std::memory_order_release);
  generation_.store(generation);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::share(int chunks, Function function, void* argument) {
  const auto begin = Clock::now();
  // Nobody reads these now: every chunk of the last region has ended, and a late worker finds all lanes of that region
  // used up, or of another generation.
  done_.store(0, std::memory_order_relaxed);
  const std::uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  for (int thread = threads(); thread-- > 0;) {
    Lane& lane = lanes_[static_cast<std::size_t>(thread)];
    lane.function = function;
    lane.argument = argument;
    lane.claim.store(claim_word(generation, lane_begin(chunks, thread, threads()), lane_begin(chunks, thread + 1, threads())),
                     std::memory_order_release);
  }
  generation_.store(generation);
  generation_.notify_all();
  int own = work(generation, 0);
  const auto worked = Clock::now();
  const auto finished = [&] { return done_.load(std::memory_order_acquire) == chunks - own; };
  if (!spin(0, finished)) {
    for (std::int32_t done = done_.load(std::memory_order_acquire); done != chunks - own;
         done = done_.load(std::memory_order_acquire)) {
      done_.wait(done, std::memory_order_acquire);
    }
  }
  const auto waited = Clock::now() - worked;
  if (metered_) waited_ += std::chrono::nanoseconds(waited).count();
  patience_.record(worked - begin, waited);
  spinning_.store(patience_.sharing() == Sharing::kSpin, std::memory_order_relaxed);
}

// Takes and runs chunks while there are any; how many.
int ThreadPool::work(std::uint32_t generation, int thread) {
  int count = 0;
  for (int chunk; (chunk = take(generation, thread)) >= 0; ++count) run_chunk(chunk, thread);
  return count;
}

// A chunk that is this thread's from now on: of its own lane, else of another's; -1 if all are taken.
int ThreadPool::take(std::uint32_t generation, int thread) {
  for (int i = 0; i < threads(); ++i) {
    Lane& lane = lanes_[static_cast<std::size_t>((thread + i) % threads())];
    std::uint64_t word = lane.claim.load(std::memory_order_acquire);
    while (generation_of(word) == generation && begin_of(word) < end_of(word)) {
      const int chunk = i == 0 ? begin_of(word) : end_of(word) - 1;
      const std::uint64_t rest = i == 0 ? claim_word(generation, chunk + 1, end_of(word))
                                        : claim_word(generation, begin_of(word), chunk);
      if (lane.claim.compare_exchange_weak(word, rest, std::memory_order_acq_rel, std::memory_order_acquire)) return chunk;
    }
  }
  return -1;
}

void ThreadPool::run_chunk(int chunk, int thread) {
  Lane& lane = lanes_[static_cast<std::size_t>(thread)];
  if (!metered_) {
    lane.function(lane.argument, chunk, thread);
    return;
  }
  const auto begin = Clock::now();
  lane.function(lane.argument, chunk, thread);
  lane.worked += std::chrono::nanoseconds(Clock::now() - begin).count();
}

WorkTime ThreadPool::work_time() const {
  WorkTime sum{waited_, 0};
  for (std::size_t thread = 1; thread < lanes_.size(); ++thread) sum.worked += lanes_[thread].worked;
  return sum;
}

void ThreadPool::serve(int thread) {
  set_float_mode();
  const std::atomic<std::uint64_t>& claim = lanes_[static_cast<std::size_t>(thread)].claim;
  std::uint32_t seen = 0;
  for (;;) {
    const auto changed = [&] { return generation_of(claim.load(std::memory_order_acquire)) != seen; };
    if (!spin(thread, changed)) generation_.wait(seen, std::memory_order_acquire);
    const std::uint32_t generation = generation_of(claim.load(std::memory_order_acquire));
    if (stop_.load(std::memory_order_acquire)) return;
    if (generation == seen) continue;
    seen = generation;
    const int count = work(generation, thread);
    // At once for all: until then the caller waits, or runs what is left.
    if (count > 0) {
      done_.fetch_add(count, std::memory_order_acq_rel);
      done_.notify_one();
    }
  }
}

}  // namespace tidemill
