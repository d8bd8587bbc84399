// Cases of a kernel benchmark that take turns, so that peaks and kernels share their minutes; medians are compared.
// Times are processor time of the thread, which leaves out the slices that other processes take.
#pragma once
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tidemill::bench {

inline double seconds_of(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

inline double thread_seconds() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

class HugeBytes {  // on huge pages where the system gives them
 public:
  explicit HugeBytes(std::size_t size) : data_(static_cast<std::uint8_t*>(::operator new(size, kPage))) {
#if defined(__linux__)
    madvise(data_.get(), size, MADV_HUGEPAGE);
#endif
    std::uint64_t z = 88172645463325252u;
    for (std::size_t i = 0; i + 8 <= size; i += 8) {
      z ^= z << 13, z ^= z >> 7, z ^= z << 17;
      // Neither as f16, bf16 nor f32 subnormal or huge: those take hundreds of cycles on some processors.
      const std::uint64_t safe = (z & 0x83ff83ff83ff83ffu) | 0x3c003c003c003c00u;
      __builtin_memcpy(data_.get() + i, &safe, 8);
    }
  }
  std::uint8_t* get() const { return data_.get(); }

 private:
  static constexpr std::align_val_t kPage{std::size_t{2} << 20};
  struct Free {
    void operator()(std::uint8_t* p) const { ::operator delete(p, kPage); }
  };
  std::unique_ptr<std::uint8_t, Free> data_;
};

struct Case {
  std::string name;
  std::string peak;  // which peak it is compared with
  double operations;
  double bytes;  // of packed weights, 0 where they stay in the cache
  std::function<void()> run;
  int repeats = 1;
  std::vector<double> times = {};

  double median() const {
    std::vector<double> sorted = times;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

// Operations per second of the peak a case is compared with, 0 where there is none.
inline double peak_of(const std::vector<Case>& cases, const Case& c) {
  for (const Case& peak : cases) {
    if (peak.name == "peak " + c.peak) return peak.operations / peak.median() / 1e9;
  }
  return 0.0;
}

inline void measure(std::vector<Case>& cases, double seconds) {
  const double slice = seconds / static_cast<double>(cases.size()) / 8;
  for (Case& c : cases) {
    c.run();
    const double start = thread_seconds();
    c.run();
    c.repeats = std::max(1, static_cast<int>(slice / (thread_seconds() - start)));
  }
  const double end = seconds_of(CLOCK_MONOTONIC) + seconds;
  do {
    for (Case& c : cases) {
      const double start = thread_seconds();
      for (int i = 0; i < c.repeats; ++i) c.run();
      c.times.push_back((thread_seconds() - start) / c.repeats);
    }
  } while (seconds_of(CLOCK_MONOTONIC) < end);
}

inline void report(const char* name, const std::vector<Case>& cases) {
  std::string json = std::string("{\"bench\": \"") + name + "\", \"rounds\": " +
                     std::to_string(cases[0].times.size()) + ", \"cases\": [";
  for (const Case& c : cases) {
    const double rate = c.operations / c.median() / 1e9;
    const double bandwidth = c.bytes / c.median() / 1e9;
    const double peak = peak_of(cases, c);
    const double share = peak > 0.0 ? rate / peak : 0.0;
    std::printf("%-40s %10.1f us %8.1f GOP/s", c.name.c_str(), c.median() * 1e6, rate);
    if (share > 0.0) std::printf("  %3.0f %% of %s", 100.0 * share, c.peak.c_str());
    if (bandwidth > 0.0) std::printf("  %5.1f GB/s", bandwidth);
    std::printf("\n");
    char entry[256];
    std::snprintf(entry, sizeof entry, "%s{\"name\": \"%s\", \"us\": %.2f, \"gops\": %.2f, \"share\": %.3f, \"gbps\": %.2f}",
                  &c == &cases[0] ? "" : ", ", c.name.c_str(), c.median() * 1e6, rate, share, bandwidth);
    json += entry;
  }
  std::printf("%s]}\n", json.c_str());
}

// The sets of a list like "avx2,avx512"; "best" is the one that is chosen by default.
inline std::vector<std::string> isas_of(const std::string& names) {
  std::vector<std::string> sets;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = names.find(',', begin);
    const std::string name = names.substr(begin, end - begin);
    sets.push_back(name == "best" ? "auto" : name);
  }
  return sets;
}

}  // namespace tidemill::bench
