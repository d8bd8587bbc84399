#include "memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace tidemill {

PagedMemory::PagedMemory(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: without it everything works, slower
#endif
  data_ = static_cast<std::uint8_t*>(memory);
}

PagedMemory::~PagedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

PagedMemory::PagedMemory(PagedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PagedMemory& PagedMemory::operator=(PagedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace tidemill
