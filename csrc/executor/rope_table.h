// cos and sin of every position seen so far, for one rope.
#pragma once
#include <cstdint>
#include <vector>

#include "../kernels/vector.h"

namespace tidemill {

class RopeTable {
 public:
  RopeTable(std::vector<double> inv_freq, double factor);

  // Makes room for positions [0, positions); angles are computed in double and rounded once.
  void grow(std::int32_t positions);
  RopeView view() const { return {cos_.data(), sin_.data(), static_cast<std::int32_t>(inv_freq_.size())}; }

 private:
  std::vector<double> inv_freq_;
  double factor_;
  std::int32_t positions_ = 0;
  std::vector<float> cos_;  // [position][frequency]
  std::vector<float> sin_;
};

}  // namespace tidemill
