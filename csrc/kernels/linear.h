// Linear layers: packed weights, quantised activations, and the kernels of one instruction set.
//
// Determinism (docs/architecture.md, rules 1, 4 and 5): work is split over output tiles and rows, never over k. Each
// output adds its groups of 32 k in ascending order, in every row-count variant, so a row's bits do not depend on how
// many rows stand beside it or which thread computes it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tidemill {

inline constexpr int kTileColumns = 16;  // outputs per weight tile
inline constexpr int kGroup = 32;        // values along k that share a scale
inline constexpr int kPanelRows = 4;     // activation rows per panel

// Compute layouts. Each holds the file's values exactly.
enum class Layout : std::uint8_t { kQ4Symmetric, kQ4Affine, kQ8, kF16, kBF16, kF32 };

// Storage formats of files; the numbers are shared with the Python side.
enum class FileFormat : std::uint8_t { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ8_0 };

// One weight [n, k] as ceil(n / 16) tiles of 16 outputs; outputs past n are zero. Does not own its bytes.
struct PackedMatrix {
  Layout layout;
  std::int32_t n;
  std::int32_t k;
  std::size_t tile_bytes;
  const std::uint8_t* data;  // 64-byte aligned

  std::int32_t tiles() const { return (n + kTileColumns - 1) / kTileColumns; }
  std::size_t bytes() const { return tile_bytes * static_cast<std::size_t>(tiles()); }
  bool quantized() const { return layout <= Layout::kQ8; }
};

Layout layout_of(FileFormat format);
std::size_t packed_tile_bytes(Layout layout, std::int32_t k);

// Packs tiles [tile_begin, tile_end) of a weight from file rows into out (the whole matrix's buffer).
void pack_tiles(FileFormat format, const std::uint8_t* file_rows, std::int32_t n, std::int32_t k, std::uint8_t* out,
                std::int32_t tile_begin, std::int32_t tile_end);

// Activations rounded to int8 per row and group of 32 k, in panels of kPanelRows rows. A view of arena memory.
struct QuantizedRows {
  std::int32_t rows;
  std::int32_t k;
  std::int8_t* values;  // [panel][group][8 quads][rows of panel][4]
  float* scales;        // [panel][group][rows of panel scales, then rows of panel scale * sum]
};
std::size_t quantized_value_bytes(std::int32_t rows, std::int32_t k);
std::size_t quantized_scale_bytes(std::int32_t rows, std::int32_t k);

// Where a linear layer writes. Row r, output j goes to out[r * out_stride + j].
struct LinearOutput {
  float* out;
  std::size_t out_stride;
  const float* bias;      // [n] or null
  const float* residual;  // same shape as out with residual_stride, or null
  std::size_t residual_stride;
};

// The kernels of one instruction set. Ranges are half-open. `variant` forces the number of rows per inner call (1..4,
// tests); 0 chooses.
struct LinearKernels {
  const char* isa;

  // Rounds whole panels [panel_begin, panel_end) of x [rows, k].
  void (*quantize)(const float* x, std::size_t stride, QuantizedRows out, std::int32_t panel_begin,
                   std::int32_t panel_end);

  // 8-bit activations times a quantised layout, for tiles [tile_begin, tile_end) and all rows.
  void (*linear_quantized)(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t tile_begin,
                           std::int32_t tile_end, const LinearOutput& output, int variant);

  // Float activations times any layout (exact mode for the quantised ones).
  void (*linear_float)(const PackedMatrix& weight, const float* x, std::size_t stride, std::int32_t rows,
                       std::int32_t tile_begin, std::int32_t tile_end, const LinearOutput& output, int variant);
};

const LinearKernels& linear_kernels_portable();
#if defined(__x86_64__)
const LinearKernels& linear_kernels_avx2();
#endif

}  // namespace tidemill
