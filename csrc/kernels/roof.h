// Loops that do one thing as fast as an instruction set can: multiply and add floats, multiply and add bytes, read memory.
// Kernels are compared with them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidemill {

struct RoofLoops {
  const char* float_instruction;    // what is counted, by the processor's name for it
  const char* integer_instruction;
  double float_operations;  // of one call; a multiplication and an addition are two
  double integer_operations;
  void (*multiply_floats)();
  void (*multiply_bytes)();
  // `bytes` is aligned to 64, size a multiple of 512.
  void (*read)(const std::uint8_t* bytes, std::size_t size);
};

// The loops for kernels of this name; the processor must be able to run those.
RoofLoops roof_loops(std::string_view isa);

}  // namespace tidemill
