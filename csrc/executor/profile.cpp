#include "profile.h"

namespace tidemill {

void StepProfile::start(std::size_t instructions) {
  stages_.assign(2 * instructions + 2, {});
  pool_.set_metered(true);
  work_ = pool_.work_time();
  last_ = Clock::now();
  on_ = true;
}

void StepProfile::stop() {
  pool_.set_metered(false);
  on_ = false;
}

void StepProfile::mark(std::size_t stage) {
  const auto now = Clock::now();
  const WorkTime work = pool_.work_time();
  const std::int64_t wall = std::chrono::nanoseconds(now - last_).count();
  const int workers = pool_.threads() - 1;
  const std::int64_t idle = work.waited - work_.waited + workers * wall - (work.worked - work_.worked);
  StageTime& time = stages_[stage];
  time.wall += wall;
  time.idle += idle / pool_.threads();
  last_ = now;
  work_ = work;
}

}  // namespace tidemill
