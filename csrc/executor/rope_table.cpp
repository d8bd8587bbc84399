#include "rope_table.h"

#include <algorithm>
#include <cmath>

namespace tidemill {

RopeTable::RopeTable(std::vector<double> inv_freq, double factor) : inv_freq_(std::move(inv_freq)), factor_(factor) {}

void RopeTable::grow(std::int32_t positions) {
  if (positions <= positions_) return;
  positions = std::max(positions, 2 * positions_);
  const std::size_t size = static_cast<std::size_t>(positions) * inv_freq_.size();
  cos_.reserve(size);
  sin_.reserve(size);
  for (std::int32_t position = positions_; position < positions; ++position) {
    for (const double frequency : inv_freq_) {
      const double angle = static_cast<double>(position) * frequency;
      cos_.push_back(static_cast<float>(std::cos(angle) * factor_));
      sin_.push_back(static_cast<float>(std::sin(angle) * factor_));
    }
  }
  positions_ = positions;
}

}  // namespace tidemill
