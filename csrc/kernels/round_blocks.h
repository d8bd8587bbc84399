// Weights rounded to blocks of files: what `quantize` does when a model is loaded.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"

namespace tidemill {

// Rounds `rows` rows of `columns` values (whole blocks of 32), stored in a float format one after another, to q8_0 or
// q4_1 blocks. Returns false, and stops, at a value that is not finite or whose block has no finite f16 scale.
//
//   q8_0  d = peak / 127, rounded to f16; codes round to nearest
//   q4_1  of 12 grids (d, m), all but the plain one fitted once by least squares to the codes that it gives and rounded to f16, the one
//         whose codes have the least sum of weight * error^2; weight = |x| + rms of the block: large values of a row
//         meet large activations no less often than small ones, and their rounding moves the output more
bool round_rows(FileFormat from, const std::uint8_t* rows, std::int32_t count, std::int32_t columns, FileFormat to,
                std::uint8_t* out);

}  // namespace tidemill
