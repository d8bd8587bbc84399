// The memory of a program's slots, sized for the largest step so far.
#pragma once
#include <cstdint>
#include <vector>

#include "../kernels/linear.h"
#include "memory.h"
#include "program.h"

namespace tidemill {

// Floats from one row to the next: whole cache lines, as stores across lines are slow.
constexpr std::size_t row_stride(std::int32_t width) {
  return align_up(static_cast<std::size_t>(width) * sizeof(float)) / sizeof(float);
}

class Arena {
 public:
  // Makes room for a step of this many rows; grows only, and keeps nothing of what was there.
  void reserve(const std::vector<Slot>& slots, std::int32_t tokens, std::int32_t outputs);

  float* floats(std::int32_t slot) const { return reinterpret_cast<float*>(base(slot)); }
  QuantizedRows quantized(std::int32_t slot, std::int32_t rows, std::int32_t k) const;
  std::size_t bytes() const { return memory_.size(); }

 private:
  std::uint8_t* base(std::int32_t slot) const { return memory_.data() + offsets_[static_cast<std::size_t>(slot)]; }

  std::int32_t tokens_ = 0;
  std::int32_t outputs_ = 0;
  std::vector<std::size_t> offsets_;
  PagedMemory memory_;
};

// Bytes that the slots need for a step of this many rows.
std::size_t arena_bytes(const std::vector<Slot>& slots, std::int32_t tokens, std::int32_t outputs);

}  // namespace tidemill
