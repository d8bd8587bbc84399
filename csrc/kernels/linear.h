// Linear layers: packed weights, quantised activations, and the kernels of one instruction set.
//
// Determinism (docs/architecture.md, rules 1, 4 and 5): work is split over output tiles and rows, never over k. Each
// output adds its groups of 32 k in ascending order, in every row-count variant, so a row's bits do not depend on how
// many rows stand beside it or which thread computes it.
//
// Arithmetic, exactly as the reference executor repeats it. All values are float32, every line rounds once, to nearest
// even; fma is fused; x[32] is one group of one row; n, q are weights as stored, d, m the file's f16 scale and minimum.
//
//   quantize          peak = max |x|; 0 where it is below 2^-100 (such a group becomes zero), NaN where any x is NaN or
//                     infinite (such a row's outputs are all NaN)
//                     scale = peak / 127;  inverse = 127 / peak, or 0 where peak is 0 or NaN
//                     v[j] = round(x[j] * inverse), clamped to +-127; ties to even; all 0 where peak is NaN
//                     scale, and scale * float(sum of v), are kept
//
//   linear_quantized  acc = 0; for each group in ascending order, with s the integer sum (exact):
//     q4_1              s = sum n * v;  acc = fma(float(s), d * scale, acc);  acc = fma(m,      scale_sum, acc)
//     q4_0              s = sum n * v;  acc = fma(float(s), d * scale, acc);  acc = fma(-8 * d, scale_sum, acc)
//     q8_0              s = sum q * v;  acc = fma(float(s), d * scale, acc)
//
//   linear_float      weights become w = (n - 8) * d, fma(n, d, m), q * d or the float itself: the file's exact values,
//                     q4_1 rounded once. acc = 0; for each group of 32 k in ascending order (the last may be shorter):
//                     part = 0; part = fma(w[k], x[k], part) for ascending k; acc = acc + part
//
//   both              out = acc; if bias: out = out + bias; if residual: out = out + residual
//
// linear_quantized and quantize give the same bits in every instruction set. linear_float does where the target has a
// fused multiply-add; the portable build on x86-64 rounds w * x before adding.
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

// Packs tiles [tile_begin, tile_end) of a weight from file rows into out (the whole matrix's buffer, 64-byte aligned).
// file_rows needs no alignment. k is a multiple of 32 in the block formats. Layouts:
//   kQ4Symmetric, kQ4Affine  per group of 32 k: 16 f16 d | 16 f16 m (affine only) | columns 0-7, 128 bytes | 8-15, 128
//                            bytes. Byte 4c + j of the 32-byte vector v holds k = 8v + j (low) and 8v + 4 + j (high).
//   kQ8                      per group: 16 f16 d | per quad of 4 k: 16 columns x 4 int8
//   kF16, kF32               [k][16]
//   kBF16                    [ceil(k / 2)][16][k even, k odd]
void pack_tiles(FileFormat format, const std::uint8_t* file_rows, std::int32_t n, std::int32_t k, std::uint8_t* out,
                std::int32_t tile_begin, std::int32_t tile_end);

// Writes the k values of one output, exactly as the file means them (token embeddings read tied weights this way).
void dequantize_row(const PackedMatrix& weight, std::int32_t row, float* out);

// Activations rounded to int8 per row and group of 32 k, in panels of kPanelRows rows. A view of arena memory.
struct QuantizedRows {
  std::int32_t rows;
  std::int32_t k;
  std::int8_t* values;  // [panel][group][8 quads][rows of panel][4]
  float* scales;        // [panel][group][rows of panel scales, then rows of panel scale * sum]
};
std::size_t quantized_value_bytes(std::int32_t rows, std::int32_t k);
std::size_t quantized_scale_bytes(std::int32_t rows, std::int32_t k);

// Where a linear layer writes. Row r, output j goes to out[r * out_stride + j]. residual may be out itself.
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
