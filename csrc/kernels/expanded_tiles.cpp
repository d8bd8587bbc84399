#include "expanded_tiles.h"

namespace tidemill {

void ExpandedTiles::begin(std::uint64_t use) {
  if (use == use_) return;
  use_ = use;
  used_ = 0;
  count_ = 0;
}

ExpandedTiles::Place ExpandedTiles::of(const std::uint8_t* tile, std::size_t bytes) {
  for (int i = 0; i < count_; ++i) {
    if (kept_[i].tile == tile && kept_[i].bytes == bytes) return {memory_ + kept_[i].at, true};
  }
  const std::size_t room = (bytes + 63) / 64 * 64;
  if (count_ == kMost || room > size_ - used_) return {nullptr, false};
  kept_[count_++] = {tile, used_, bytes};
  used_ += room;
  return {memory_ + used_ - room, false};
}

void ExpandedTiles::take_back() { used_ = kept_[--count_].at; }

}  // namespace tidemill
