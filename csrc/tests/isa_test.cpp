// Which instruction sets are found, and that each name selects its own kernels.
#if defined(__linux__)
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "executor/isa.h"
#include "executor/tile_access.h"
#include "tests/check.h"

using namespace tidemill;

namespace {

void every_name_selects_its_kernels() {
  for (const std::string& isa : supported_isas()) CHECK_CASE(select_kernels(isa).isa() == isa, "%s", isa.c_str());
  CHECK(select_kernels("auto").isa() == supported_isas().front());
  CHECK(supported_isas().back() == "portable");
}

void what_does_not_run_here_is_refused() {
  bool refused = false;
  try {
    select_kernels("quantum");
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

#if defined(__linux__)
// Linux refuses the tiles of AMX to a process that has a stack for signals too small to save them on. In a child, and
// first of all: what a process was granted is never taken back.
void tiles_that_are_refused_are_not_used() {
  const pid_t child = fork();
  if (child == 0) {
    static char small[4096];
    const stack_t stack = {small, 0, sizeof small};
    bool right = sigaltstack(&stack, nullptr) == 0;
    if (tile_access().present) {
      right = right && supported_isas().front() != "amx" && refused_isas().size() == 1 && !refused_isas()[0].second.empty();
      try {
        select_kernels("amx");
        right = false;
      } catch (const std::invalid_argument& error) {
        right = right && std::string(error.what()).find(tile_access().refusal) != std::string::npos;
      }
    }
    _exit(right ? 0 : 1);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

void nothing_runs_that_is_refused() {
  for (const auto& [isa, reason] : refused_isas()) {
    for (const std::string& name : supported_isas()) CHECK_CASE(name != isa, "%s: %s", isa.c_str(), reason.c_str());
  }
}

// Where the processor is known (an emulated one), so is the list: the variable has it, separated by spaces.
void the_expected_ones_are_found() {
  const char* expected = std::getenv("TIDEMILL_EXPECTED_ISAS");
  if (expected == nullptr) return;
  std::string found;
  for (const std::string& isa : supported_isas()) found += (found.empty() ? "" : " ") + isa;
  CHECK_CASE(found == expected, "found '%s', expected '%s'", found.c_str(), expected);
}

}  // namespace

int main() {
#if defined(__linux__)
  tiles_that_are_refused_are_not_used();
#endif
  nothing_runs_that_is_refused();
  every_name_selects_its_kernels();
  what_does_not_run_here_is_refused();
  the_expected_ones_are_found();
  return test::finish("isa");
}
