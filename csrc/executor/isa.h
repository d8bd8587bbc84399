// Which kernels run on this processor.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../kernels/linear.h"
#include "../kernels/vector.h"

namespace tidemill {

struct Kernels {
  const LinearKernels* linear;
  const VectorKernels* vector;

  const char* isa() const { return linear->isa; }
};

// Instruction sets this build has and this processor can run, best first.
std::vector<std::string> supported_isas();

// Those that the processor could run and the system does not let it, each with the reason.
std::vector<std::pair<std::string, std::string>> refused_isas();

// The kernels of "auto" (the best), or of one named set; throws std::invalid_argument where it cannot run.
Kernels select_kernels(std::string_view isa);

}  // namespace tidemill
