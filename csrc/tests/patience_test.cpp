// When the pool stops spinning and sharing, and when it comes back.
#include "executor/patience.h"

#include "tests/check.h"

using namespace tidemill;

namespace {

using std::chrono::microseconds;
using Duration = Patience::Duration;

void overruns(Patience& patience, int count) {
  for (int i = 0; i < count; ++i) patience.record(microseconds(50), microseconds(4000));
}

// Regions without an overrun that last so long together, give or take one.
void quiet(Patience& patience, Duration time, Duration region = microseconds(50)) {
  for (Duration passed{}; passed < time; passed += region) patience.record(region, Duration{});
}

void three_overruns_go_one_step_down() {
  Patience patience;
  overruns(patience, 2);
  CHECK(patience.sharing() == Sharing::kSpin);
  overruns(patience, 1);
  CHECK(patience.sharing() == Sharing::kSleep);
  overruns(patience, 3);
  CHECK(patience.sharing() == Sharing::kAlone);
}

// Long regions come back as soon as short ones: what counts is time.
void a_quiet_while_goes_one_step_up() {
  for (const Duration region : {Duration(microseconds(20)), Duration(microseconds(5000))}) {
    Patience patience;
    overruns(patience, 6);
    quiet(patience, Patience::kShortest - region, region);
    CHECK(patience.sharing() == Sharing::kAlone);
    quiet(patience, region, region);
    CHECK(patience.sharing() == Sharing::kSleep);
    quiet(patience, Patience::kShortest, region);
    CHECK(patience.sharing() == Sharing::kSpin);
  }
}

void rare_overruns_are_forgotten() {
  Patience patience;
  for (int i = 0; i < 20; ++i) {
    overruns(patience, 2);
    quiet(patience, Patience::kShortest);
  }
  CHECK(patience.sharing() == Sharing::kSpin);
}

// How long a pool stays alone before it tries again.
Duration patience_alone(Patience& patience) {
  Duration passed{};
  for (; patience.sharing() == Sharing::kAlone; passed += microseconds(100)) patience.record(microseconds(100), {});
  return passed;
}

void a_neighbour_that_stays_is_asked_rarely() {
  Patience patience;
  overruns(patience, 6);
  Duration last{};
  for (Duration pause = Patience::kShortest; pause < Patience::kLongest; pause *= 2) {
    last = patience_alone(patience);
    CHECK(last >= pause);
    CHECK(last <= pause + microseconds(200));
    overruns(patience, 1);  // on trial, so one is enough
    CHECK(patience.sharing() == Sharing::kAlone);
  }
  CHECK(patience_alone(patience) <= Patience::kLongest + microseconds(200));
}

void once_it_has_left_the_whiles_get_short_again() {
  Patience patience;
  overruns(patience, 6);
  for (int i = 0; i < 3; ++i) {
    patience_alone(patience);
    overruns(patience, 1);
  }
  patience_alone(patience);
  CHECK(patience.sharing() == Sharing::kSleep);
  quiet(patience, 20 * Patience::kShortest);
  CHECK(patience.sharing() == Sharing::kSpin);
  overruns(patience, 6);
  CHECK(patience_alone(patience) <= Patience::kShortest + microseconds(200));
}

// A long chunk at the end of long work, or a short wait, is nobody's fault.
void long_chunks_are_no_overruns() {
  Patience patience;
  for (int i = 0; i < 100; ++i) patience.record(microseconds(30000), microseconds(5000));
  for (int i = 0; i < 100; ++i) patience.record(microseconds(10), microseconds(900));
  CHECK(patience.sharing() == Sharing::kSpin);
}

}  // namespace

int main() {
  three_overruns_go_one_step_down();
  a_quiet_while_goes_one_step_up();
  rare_overruns_are_forgotten();
  a_neighbour_that_stays_is_asked_rarely();
  once_it_has_left_the_whiles_get_short_again();
  long_chunks_are_no_overruns();
  return tidemill::test::finish("patience");
}
