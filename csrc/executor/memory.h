// Large zeroed memory on its own pages: weights, KV and the arena.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tidemill {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;  // of most processors

// Owns memory on its own pages; asks for huge pages, which save 8-15 % of a memory-bound step. Those need memory at
// multiples of their size, so it is better to take one large piece than many small ones.
class PagedMemory {
 public:
  PagedMemory() = default;
  explicit PagedMemory(std::size_t bytes);  // throws std::bad_alloc
  ~PagedMemory();
  PagedMemory(PagedMemory&& other) noexcept;
  PagedMemory& operator=(PagedMemory&& other) noexcept;

  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = 64) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace tidemill
