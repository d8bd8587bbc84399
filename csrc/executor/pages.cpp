#include "pages.h"

#include <sys/mman.h>
#include <unistd.h>

namespace tidemill {
namespace {

// Advice on every page that these bytes touch. A failure is no harm: both uses are hints.
void advise(const std::uint8_t* data, std::size_t bytes, int advice) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(data) & ~(page - 1);
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes + page - 1) & ~(page - 1);
  if (bytes != 0) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

void populate([[maybe_unused]] const std::uint8_t* data, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_POPULATE_READ)
  advise(data, bytes, MADV_POPULATE_READ);
#endif
}

void let_go(const std::uint8_t* data, std::size_t bytes) { advise(data, bytes, MADV_DONTNEED); }

}  // namespace tidemill
