// What each thread is going to read next, for it to fetch into its own cache while it has nothing to do.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tidemill {

struct ByteSpan {
  const std::uint8_t* data;
  std::size_t size;
};

class Ahead {
 public:
  // Bytes of one thread; the smallest second-level caches keep as many, beside what is in use.
  static constexpr std::size_t kMost = std::size_t{256} << 10;

  Ahead() = default;
  // In the order in which they will be read, for each thread; what is over kMost is cut off.
  explicit Ahead(std::vector<std::vector<ByteSpan>> of_thread);

  std::span<const ByteSpan> of(int thread) const { return of_thread_[static_cast<std::size_t>(thread)]; }

 private:
  std::vector<std::vector<ByteSpan>> of_thread_;
};

// A walk over one thread's spans, a few lines at a time. A prefetch does not fault: memory that is gone does no harm.
class Fetcher {
 public:
  explicit Fetcher(std::span<const ByteSpan> spans) : spans_(spans) {}

  // Asks for the next lines; false if there are none.
  bool some() {
    if (spans_.empty()) return false;
    const ByteSpan& span = spans_.front();
    for (int line = 0; line < kLines && at_ < span.size; ++line, at_ += kLine) {
      __builtin_prefetch(span.data + at_, 0, 2);  // into the second level
    }
    if (at_ >= span.size) {
      spans_ = spans_.subspan(1);
      at_ = 0;
    }
    return true;
  }

 private:
  static constexpr int kLines = 8;
  static constexpr std::size_t kLine = 64;

  std::span<const ByteSpan> spans_;
  std::size_t at_ = 0;
};

}  // namespace tidemill
