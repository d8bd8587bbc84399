// When the pool stops spinning and sharing, and when it comes back.
#include "executor/patience.h"

#include "tests/check.h"

using namespace tidemill;

namespace {

using std::chrono::microseconds;

void overruns(Patience& patience, int count) {
  for (int i = 0; i < count; ++i) patience.record(microseconds(50), microseconds(4000));
}

void quiet(Patience& patience, int count) {
  for (int i = 0; i < count; ++i) patience.record(microseconds(50), microseconds(5));
}

void three_overruns_go_one_step_down() {
  Patience patience;
  overruns(patience, 2);
  CHECK(patience.sharing() == Sharing::kSpin);
  overruns(patience, 1);
  CHECK(patience.sharing() == Sharing::kSleep);
  overruns(patience, 3);
  CHECK(patience.sharing() == Sharing::kAlone);
  overruns(patience, 9);
  CHECK(patience.sharing() == Sharing::kAlone);
}

void a_quiet_while_goes_one_step_up() {
  Patience patience;
  overruns(patience, 6);
  quiet(patience, Patience::kMemory - 1);
  CHECK(patience.sharing() == Sharing::kAlone);
  quiet(patience, 1);
  CHECK(patience.sharing() == Sharing::kSleep);
  quiet(patience, Patience::kMemory);
  CHECK(patience.sharing() == Sharing::kSpin);
}

void rare_overruns_are_forgotten() {
  Patience patience;
  for (int i = 0; i < 20; ++i) {
    overruns(patience, 2);
    quiet(patience, Patience::kMemory);
  }
  CHECK(patience.sharing() == Sharing::kSpin);
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
  long_chunks_are_no_overruns();
  return tidemill::test::finish("patience");
}
