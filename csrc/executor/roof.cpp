#include "roof.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../kernels/roof.h"
#include "isa.h"
#include "memory.h"
#include "pool.h"

namespace tidemill {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSlices = 5;
constexpr std::size_t kReadUnit = std::size_t{1} << 20;

// Calls body(thread) on every thread for a slice of time; what the threads counted per second, added up.
double rate(int threads, double seconds, const std::function<double(int)>& body) {
  std::atomic<int> ready{0};
  std::vector<double> rates(static_cast<std::size_t>(threads));
  const auto work = [&](int thread) {
    set_float_mode();
    ready.fetch_add(1);
    while (ready.load() < threads) std::this_thread::yield();
    const auto begin = Clock::now();
    double count = 0.0;
    std::chrono::duration<double> passed{};
    do {
      count += body(thread);
      passed = Clock::now() - begin;
    } while (passed.count() < seconds);
    rates[static_cast<std::size_t>(thread)] = count / passed.count();
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
  double sum = 0.0;
  for (const double one : rates) sum += one;
  return sum;
}

}  // namespace

Roof measure_roof(std::string_view isa, int threads, std::size_t bytes, double seconds) {
  if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be between 1 and 1024");
  if (!(seconds > 0.0 && seconds <= 60.0)) throw std::invalid_argument("seconds must be above 0 and at most 60");
  const RoofLoops loops = roof_loops(select_kernels(isa).isa());
  const auto workers = static_cast<std::size_t>(threads);
  const std::size_t part = std::max(kReadUnit, bytes / workers / kReadUnit * kReadUnit);
  const PagedMemory memory(part * workers);
  std::memset(memory.data(), 1, memory.size());  // pages nobody wrote to are all one page of zeros
  std::vector<std::size_t> at(workers);
  const auto read = [&](int thread) {
    const auto index = static_cast<std::size_t>(thread);
    loops.read(memory.data() + index * part + at[index], kReadUnit);
    at[index] = (at[index] + kReadUnit) % part;
    return static_cast<double>(kReadUnit);
  };
  const auto floats = [&](int) { return loops.multiply_floats(), loops.float_operations; };
  const auto integers = [&](int) { return loops.multiply_bytes(), loops.integer_operations; };
  Roof best{0.0, 0.0, 0.0, loops.float_instruction, loops.integer_instruction};
  const double slice = seconds / (3 * kSlices);
  for (int i = 0; i < kSlices; ++i) {
    best.read = std::max(best.read, rate(threads, slice, read));
    best.floats = std::max(best.floats, rate(threads, slice, floats));
    best.integers = std::max(best.integers, rate(threads, slice, integers));
  }
  return best;
}

}  // namespace tidemill
