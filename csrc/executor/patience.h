// When to stop spinning and sharing: on a machine that others use too, a worker can lose its processor inside a chunk,
// and the region then lasts a time slice of several milliseconds.
//
//     kSpin --three overruns--> kSleep --three overruns--> kAlone
//       ^------a while later------|  ^-----a while later-----|
//
// A sleeping worker is scheduled promptly where a spinning one has used up its slice; a caller alone waits for nobody.
// A step up is on trial: one overrun takes it back, and the next while is twice as long. So a moment's neighbour costs a
// moment, and one that stays is asked rarely; whiles without an overrun make them short again. Time is that of regions:
// an idle pool learns nothing.
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
      if (on_trial_) pause_ = std::min(2 * pause_, kLongest);
      if (++overruns_ == kTolerated || on_trial_) step(+1);
      return;
    }
    quiet_ += worked + waited;
    if (quiet_ < pause_) return;
    if (sharing_ != Sharing::kAlone) pause_ = std::max(pause_ / 2, kShortest);
    step(-1);
  }

  static constexpr Duration kOverrun = std::chrono::milliseconds(1);
  static constexpr int kTolerated = 3;
  static constexpr Duration kShortest = std::chrono::milliseconds(25);  // a few steps of one token
  static constexpr Duration kLongest = std::chrono::seconds(2);

 private:
  void step(int by) {
    const int last = static_cast<int>(Sharing::kAlone);
    const auto next = static_cast<Sharing>(std::clamp(static_cast<int>(sharing_) + by, 0, last));
    on_trial_ = by < 0 && next != sharing_;
    sharing_ = next;
    overruns_ = 0;
    quiet_ = {};
  }

  Sharing sharing_ = Sharing::kSpin;
  bool on_trial_ = false;
  int overruns_ = 0;
  Duration quiet_{};
  Duration pause_ = kShortest;
};

}  // namespace tidemill
