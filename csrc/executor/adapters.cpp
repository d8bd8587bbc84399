#include "adapters.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "../kernels/lora.h"

namespace tidemill {

namespace {

std::int32_t tiles_of(std::int32_t outputs) { return (outputs + kLoraColumns - 1) / kLoraColumns; }

std::size_t a_stride(const LoraWeights& weights) {
  return align_up(sizeof(float) * static_cast<std::size_t>(weights.inputs)) / sizeof(float);
}

std::size_t a_floats(const LoraWeights& weights) {
  return a_stride(weights) * static_cast<std::size_t>(weights.rank);
}

std::size_t b_floats(const LoraWeights& weights) {
  return static_cast<std::size_t>(tiles_of(weights.outputs)) * kLoraColumns * static_cast<std::size_t>(weights.rank);
}

void lay_out_a(const LoraWeights& weights, float* out) {
  const auto inputs = static_cast<std::size_t>(weights.inputs);
  for (std::size_t j = 0; j < static_cast<std::size_t>(weights.rank); ++j) {
    std::memcpy(out + j * a_stride(weights), weights.a + j * inputs, sizeof(float) * inputs);
  }
}

void lay_out_b(const LoraWeights& weights, float* out) {
  const auto rank = static_cast<std::size_t>(weights.rank);
  for (std::size_t i = 0; i < static_cast<std::size_t>(weights.outputs); ++i) {
    float* tile = out + i / kLoraColumns * kLoraColumns * rank + i % kLoraColumns;
    for (std::size_t j = 0; j < rank; ++j) tile[j * kLoraColumns] = weights.b[i * rank + j];
  }
}

void check(std::span<const LoraTarget> targets, std::span<const LoraWeights> weights) {
  std::vector<bool> seen(targets.size());
  for (const LoraWeights& part : weights) {
    if (part.target < 0 || static_cast<std::size_t>(part.target) >= targets.size()) {
      throw std::invalid_argument("there is no target " + std::to_string(part.target));
    }
    const auto index = static_cast<std::size_t>(part.target);
    const LoraTarget& target = targets[index];
    if (part.inputs != target.inputs || part.outputs != target.outputs || part.rank < 1 || seen[index]) {
      throw std::invalid_argument("target " + std::to_string(part.target) + " is [" + std::to_string(target.outputs) +
                                  ", " + std::to_string(target.inputs) + "], and the adapter's part does not fit it");
    }
    seen[index] = true;
  }
}

}  // namespace

std::int32_t LowRank::tiles() const { return tiles_of(outputs); }

Adapter::Adapter(std::size_t targets, std::span<const LoraWeights> weights) : parts_of_(targets, kNone) {
  std::size_t floats = 0;
  for (const LoraWeights& part : weights) floats += a_floats(part) + b_floats(part);
  memory_ = PagedMemory(std::max<std::size_t>(floats, 1) * sizeof(float));
  auto* at = reinterpret_cast<float*>(memory_.data());
  for (const LoraWeights& part : weights) {
    float* b = at + a_floats(part);
    lay_out_a(part, at);
    lay_out_b(part, b);
    parts_of_[static_cast<std::size_t>(part.target)] = static_cast<std::int32_t>(parts_.size());
    parts_.push_back({part.rank, part.outputs, a_stride(part), part.scale, at, b});
    at = b + b_floats(part);
  }
}

void Adapters::add(std::int64_t number, std::span<const LoraTarget> targets, std::span<const LoraWeights> weights) {
  if (number < 1 || adapters_.contains(number)) {
    throw std::invalid_argument("an adapter cannot have the number " + std::to_string(number));
  }
  check(targets, weights);
  adapters_.emplace(number, std::make_unique<Adapter>(targets.size(), weights));
}

void Adapters::drop(std::int64_t number) { adapters_.erase(number); }

const Adapter* Adapters::find(std::int64_t number) const {
  const auto found = number == 0 ? adapters_.end() : adapters_.find(number);
  return found == adapters_.end() ? nullptr : found->second.get();
}

}  // namespace tidemill
