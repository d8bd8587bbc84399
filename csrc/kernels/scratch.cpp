#include "scratch.h"

#include <memory>
#include <new>

namespace tidemill {

namespace {

constexpr std::align_val_t kLine{64};

struct Free {
  void operator()(std::uint8_t* bytes) const { ::operator delete(bytes, kLine); }
};

struct Scratch {
  std::unique_ptr<std::uint8_t, Free> bytes;
  std::size_t size = 0;
};

}  // namespace

std::uint8_t* thread_scratch(std::size_t bytes) noexcept {
  thread_local Scratch scratch;
  if (scratch.size < bytes) {
    scratch.bytes.reset();
    scratch.bytes.reset(static_cast<std::uint8_t*>(::operator new(bytes, kLine, std::nothrow)));
    scratch.size = scratch.bytes == nullptr ? 0 : bytes;
  }
  return scratch.bytes.get();
}

}  // namespace tidemill
