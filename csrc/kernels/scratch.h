// Memory that a kernel needs for the time of one call.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tidemill {

// At least `bytes` of the calling thread's own, aligned to 64; null where the system has none left. It keeps its size
// until the thread ends, and what an earlier call left in it.
std::uint8_t* thread_scratch(std::size_t bytes) noexcept;

}  // namespace tidemill
