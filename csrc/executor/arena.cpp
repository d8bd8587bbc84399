#include "arena.h"

#include <algorithm>

namespace tidemill {

namespace {

std::size_t slot_bytes(const Slot& slot, std::int32_t tokens, std::int32_t outputs) {
  const std::int32_t rows = slot.rows == RowsOf::kTokens ? tokens : outputs;
  const std::size_t floats = sizeof(float) * row_stride(slot.float_width) * static_cast<std::size_t>(rows);
  const std::size_t quantized = slot.quantized_width == 0
                                    ? 0
                                    : align_up(quantized_value_bytes(rows, slot.quantized_width)) +
                                          quantized_scale_bytes(rows, slot.quantized_width);
  return align_up(std::max(floats, quantized));
}

}  // namespace

std::size_t arena_bytes(const std::vector<Slot>& slots, std::int32_t tokens, std::int32_t outputs) {
  std::size_t bytes = 0;
  for (const Slot& slot : slots) bytes += slot_bytes(slot, tokens, outputs);
  return bytes;
}

void Arena::reserve(const std::vector<Slot>& slots, std::int32_t tokens, std::int32_t outputs) {
  if (tokens <= tokens_ && outputs <= outputs_ && offsets_.size() == slots.size()) return;
  tokens_ = std::max(tokens, tokens_);
  outputs_ = std::max(outputs, outputs_);
  memory_ = PagedMemory();  // give back first, so that both are never held at once
  memory_ = PagedMemory(arena_bytes(slots, tokens_, outputs_));
  offsets_.clear();
  std::size_t offset = 0;
  for (const Slot& slot : slots) {
    offsets_.push_back(offset);
    offset += slot_bytes(slot, tokens_, outputs_);
  }
}

QuantizedRows Arena::quantized(std::int32_t slot, std::int32_t rows, std::int32_t k) const {
  std::uint8_t* values = base(slot);
  std::uint8_t* scales = values + align_up(quantized_value_bytes(rows, k));
  return {rows, k, reinterpret_cast<std::int8_t*>(values), reinterpret_cast<float*>(scales)};
}

}  // namespace tidemill
