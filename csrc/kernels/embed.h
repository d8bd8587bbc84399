// Rows of an embedding table, read straight from the file's bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace tidemill {

// Bytes of one row of `columns` values in a file.
std::size_t file_row_bytes(FileFormat format, std::int32_t columns);

// The exact values of one row in float32 (q4_1's d * q + m is rounded once).
void dequantize_row(FileFormat format, const std::uint8_t* row, std::int32_t columns, float* out);

}  // namespace tidemill
