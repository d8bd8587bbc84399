// Which instruction sets are found, and that each name selects its own kernels.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "executor/isa.h"
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
  every_name_selects_its_kernels();
  what_does_not_run_here_is_refused();
  the_expected_ones_are_found();
  return test::finish("isa");
}
