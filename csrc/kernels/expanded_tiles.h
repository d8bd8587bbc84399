// Weights in the form that tile products read, kept by one thread from one share of a step's rows to the next.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tidemill {

class ExpandedTiles {
 public:
  // Does not own its memory, which is aligned to 64 bytes.
  ExpandedTiles(std::uint8_t* memory, std::size_t size) : memory_(memory), size_(size) {}

  // What is kept stays while `use` is the same number; with another one all room is free again.
  void begin(std::uint64_t use);

  struct Place {
    std::uint8_t* bytes;  // null: there is no room
    bool filled;          // by an earlier call of this use
  };
  // Where `bytes` of the tiles that begin at this packed one are kept: room to be filled, or what an earlier call filled.
  Place of(const std::uint8_t* tile, std::size_t bytes);
  // The room that was given last is free again, and was not filled.
  void take_back();

 private:
  static constexpr int kMost = 8;  // weights side by side in one layer
  struct Kept {
    const std::uint8_t* tile;
    std::size_t at, bytes;
  };

  std::uint8_t* memory_;
  std::size_t size_;
  std::size_t used_ = 0;
  std::uint64_t use_ = 0;
  int count_ = 0;
  Kept kept_[kMost] = {};
};

}  // namespace tidemill
