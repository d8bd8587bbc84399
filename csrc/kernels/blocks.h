// The block formats of files, one block at a time (their bytes: src/tidemill/graph/formats.py).
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"

namespace tidemill {

struct BlockSize {
  std::size_t values;
  std::size_t bytes;
};

// Values and bytes per block; one value for the float formats.
BlockSize block_size(FileFormat format);

// One block taken apart. Scales are as stored: per block of 32 d and m; per block of 256 besides these an integer per
// group of 32 or half group of 16.
struct FileBlock {
  std::uint8_t codes[256];     // unsigned; q8_0's are int8, those of tables not looked up
  std::uint8_t scales[16];     // q6_k's and q3_k's are int8
  std::uint8_t minimums[16];
  std::uint16_t d;  // f16; mxfp4: the exponent
  std::uint16_t m;  // f16
  std::uint8_t z;   // q4_z
  float wide;       // f8_e4m3's d
};

// The 8-bit float e4m3fn (Open Compute Project, 8-bit floating point 1.0). Its NaN, 0x7f, is read as 480: loaders refuse
// such weights.
float float8_value(std::uint8_t code);

void read_block(FileFormat format, const std::uint8_t* bytes, FileBlock& block);

// The first `count` values of a block taken apart, exactly; those with a minimum are rounded once.
void block_values(Layout layout, const FileBlock& block, int count, float* out);

// The exact values of one block.
void dequantize_block(FileFormat format, const std::uint8_t* bytes, float* out);

}  // namespace tidemill
