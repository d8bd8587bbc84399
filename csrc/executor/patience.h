// When to stop spinning and sharing: on a machine that others use too, a worker can lose its processor inside a chunk,
// and the region then lasts a time slice of several milliseconds.
//
//     kSpin --three overruns--> kSleep --three overruns--> kAlone
//       ^------a while later------|  ^-----a while later-----|
//
// A sleeping worker is scheduled promptly where a spinning one has used up its slice; a caller alone waits for nobody.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

namespace tidemill {

enum class Sharing : std::uint8_t {
  kSpin,   // idle threads spin before they sleep
  kSleep,  // idle threads sleep at once
  kAlone,  // the caller computes every chunk
};

class Patience {
 public:
  using Duration = std::chrono::steady_clock::duration;

  Sharing sharing() const { return sharing_; }

  // One region has ended: how long the caller worked, and how long it then waited for chunks that others had claimed.
  void record(Duration worked, Duration waited) {
    if (waited > kOverrun && waited > worked) {
      if (++overruns_ == kTolerated) change(std::min(static_cast<int>(sharing_) + 1, static_cast<int>(Sharing::kAlone)));
      return;
    }
    if (++quiet_regions_ < kMemory) return;
    change(std::max(static_cast<int>(sharing_) - 1, static_cast<int>(Sharing::kSpin)));
  }

  static constexpr Duration kOverrun = std::chrono::milliseconds(1);
  static constexpr int kTolerated = 3;
  static constexpr int kMemory = 4096;  // regions: some twenty steps of one token

 private:
  void change(int sharing) {
    sharing_ = static_cast<Sharing>(sharing);
    overruns_ = 0;
    quiet_regions_ = 0;
  }

  Sharing sharing_ = Sharing::kSpin;
  int overruns_ = 0;
  int quiet_regions_ = 0;
};

}  // namespace tidemill
