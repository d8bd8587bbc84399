// The thread pool: every chunk once, whatever the number of chunks, threads and sleeps between regions.
#include "executor/pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/check.h"

using namespace tidemill;

namespace {

// Plain counters, one per chunk: a chunk that ran twice, or whose effect the caller does not see, shows here and in the
// thread sanitizer.
void every_chunk_runs_once(int threads, int regions) {
  ThreadPool pool(threads);
  CHECK_CASE(pool.threads() == threads, "%d threads", threads);
  std::vector<int> ran;
  std::vector<int> by_thread(static_cast<std::size_t>(threads) * 64);
  std::uint32_t random = 12345;
  for (int region = 0; region < regions; ++region) {
    random = random * 1664525u + 1013904223u;
    const int chunks = static_cast<int>(random >> 24) % 40;
    ran.assign(static_cast<std::size_t>(chunks), 0);
    pool.run(chunks, [&](int chunk, int thread) {
      ++ran[static_cast<std::size_t>(chunk)];
      ++by_thread[static_cast<std::size_t>(thread) * 64];  // a thread number belongs to one thread at a time
    });
    for (int chunk = 0; chunk < chunks; ++chunk) {
      CHECK_CASE(ran[static_cast<std::size_t>(chunk)] == 1, "%d threads region %d chunk %d ran %d times", threads,
                 region, chunk, ran[static_cast<std::size_t>(chunk)]);
    }
    // Sometimes long enough that the workers have gone to sleep.
    if (random % 97 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// A region with the most chunks the claim word can count.
void the_largest_region() {
  ThreadPool pool(2);
  std::vector<std::uint8_t> ran(ThreadPool::kMaxChunks);
  pool.run(ThreadPool::kMaxChunks, [&](int chunk, int) { ++ran[static_cast<std::size_t>(chunk)]; });
  int wrong = 0;
  for (const std::uint8_t count : ran) wrong += count != 1;
  CHECK_CASE(wrong == 0, "%d of %d chunks", wrong, ThreadPool::kMaxChunks);
}

// Two chunks that wait for each other need two threads: the meter has seen the other one work, and the caller wait for a
// chunk that takes longer than its own.
void the_meter_sees_the_other_thread() {
  ThreadPool pool(2);
  const auto meet = [&](int longer) {
    std::atomic<int> there{0};
    pool.run(2, [&](int, int thread) {
      ++there;
      while (there.load() < 2) std::this_thread::yield();
      if (thread == longer) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
  };
  meet(1);
  CHECK_CASE(pool.work_time().worked == 0 && pool.work_time().waited == 0, "%s", "time was taken unasked");
  pool.set_metered(true);
  meet(1);
  const WorkTime other = pool.work_time();
  CHECK_CASE(other.worked >= 5000000, "the other worked for %lld ns", static_cast<long long>(other.worked));
  CHECK_CASE(other.waited >= 1000000, "the caller waited for %lld ns", static_cast<long long>(other.waited));
  pool.set_metered(false);
  meet(1);
  CHECK_CASE(pool.work_time().worked == other.worked, "%s", "time was taken after the end");
}

void pools_come_and_go() {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(3);
    int sum = 0;
    std::vector<int> parts(8);
    if (i % 2 == 0) pool.run(8, [&](int chunk, int) { parts[static_cast<std::size_t>(chunk)] = chunk; });
    for (const int part : parts) sum += part;
    CHECK_CASE(sum == (i % 2 == 0 ? 28 : 0), "pool %d gave %d", i, sum);
  }
}

}  // namespace

int main() {
  every_chunk_runs_once(1, 200);
  every_chunk_runs_once(2, 20000);
  every_chunk_runs_once(4, 300);
  the_largest_region();
  pools_come_and_go();
  the_meter_sees_the_other_thread();
  return tidemill::test::finish("pool");
}
