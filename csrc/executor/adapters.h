// LoRA adapters: for some of a program's weights, two small matrices each, kept beside them and never added to them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "memory.h"
#include "program.h"

namespace tidemill {

// An adapter's part for one weight, as given: A [rank, inputs], B [outputs, rank]. Not owned.
struct LoraWeights {
  std::int32_t target, rank, inputs, outputs;
  float scale;
  const float* a;
  const float* b;
};

// The same in the layout of kernels/lora.h.
struct LowRank {
  std::int32_t rank, outputs;
  std::size_t stride;  // floats from one row of A to the next
  float scale;
  const float* a;
  const float* b;

  std::int32_t tiles() const;
};

class Adapter {
 public:
  Adapter(std::size_t targets, std::span<const LoraWeights> weights);

  // Its part for a target; null: it leaves that weight as it is.
  const LowRank* part(std::int32_t target) const {
    const std::int32_t index = parts_of_[static_cast<std::size_t>(target)];
    return index == kNone ? nullptr : &parts_[static_cast<std::size_t>(index)];
  }

 private:
  std::vector<std::int32_t> parts_of_;  // by target
  std::vector<LowRank> parts_;
  PagedMemory memory_;
};

// By number. Numbers are above 0.
class Adapters {
 public:
  // Throws std::invalid_argument for a number in use, and for parts that do not fit the targets.
  void add(std::int64_t number, std::span<const LoraTarget> targets, std::span<const LoraWeights> weights);
  void drop(std::int64_t number);
  const Adapter* find(std::int64_t number) const;

 private:
  std::map<std::int64_t, std::unique_ptr<Adapter>> adapters_;
};

}  // namespace tidemill
