// What this machine can do at best, measured: the roof that steps are compared with.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace tidemill {

struct Roof {
  double read;      // bytes per second, all threads together
  double floats;    // operations per second on floats; a multiplication and an addition are two
  double integers;  // the same on bytes
  std::string float_instruction, integer_instruction;
};

// Runs the loops of kernels/roof.h on so many threads at once, for about `seconds` in all; the best of five slices each.
// `bytes` of memory are read over and over. Throws std::invalid_argument for an instruction set that cannot run here.
Roof measure_roof(std::string_view isa, int threads, std::size_t bytes, double seconds);

}  // namespace tidemill
