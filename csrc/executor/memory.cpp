#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace tidemill {

namespace {

// Pages of their own at a multiple of a huge page, where there is room for one.
std::uint8_t* map_pages(std::size_t bytes) {
  const std::size_t spare = bytes < kHugePage ? 0 : kHugePage;
  void* memory = mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::uint8_t*>(memory);
  if (spare == 0) return begin;
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  const std::size_t used = align_up(bytes, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
  if (before > 0) munmap(begin, before);
  if (before + used < bytes + spare) munmap(begin + before + used, bytes + spare - before - used);
  return begin + before;
}

}  // namespace

PagedMemory::PagedMemory(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  data_ = map_pages(bytes);
#if defined(MADV_HUGEPAGE)
  madvise(data_, bytes, MADV_HUGEPAGE);  // a hint: without it everything works, slower
#endif
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
