// Linear layers: packed weights, quantised activations, and the kernels of one instruction set.
//
// Determinism (docs/architecture.md, rules 1, 4 and 5): work is split over output tiles and rows, never over k. Each
// output adds its groups of 32 k in ascending order, in every row-count variant, so a row's bits do not depend on how
// many rows stand beside it or which thread computes it.
//
// Arithmetic, exactly as the reference executor repeats it. All values are float32, every line rounds once, to nearest
// even; fma is fused; x[32] is one group of one row; n, q are weights as stored (n unsigned, q signed), d, m the file's
// f16 scale and minimum of the group, D, M those of 256 k, sc, mn the integers that the file scales D and M with: per
// group of 32, or (sc[h], mn[h]) per half group of 16.
//
//   quantize          peak = max |x|; 0 where it is below 2^-100 (such a group becomes zero), NaN where any x is NaN or
//                     infinite (such a row's outputs are all NaN)
//                     scale = peak / 127;  inverse = 127 / peak, or 0 where peak is 0 or NaN
//                     v[j] = round(x[j] * inverse), clamped to +-127; ties to even; all 0 where peak is NaN
//                     scale, scale_sum = scale * float(sum of v), and half_sum[h], the sum of 16 v each, are kept
//
//   linear_quantized  acc = 0; for each group in ascending order, with s the integer sum (exact):
//     q8_0, iq4_nl      s = sum q * v;         acc = fma(float(s) * d, scale, acc)
//     q4_0              s = sum (n - 8) * v;   acc = fma(float(s) * d, scale, acc)
//     q5_0, mxfp4       as q4_0 with 16; with 12, d = 2^(e - 128), n = 12 + twice the 4-bit float
//     q4_z              as q4_0 with z, the integer zero of the group, at most 128
//     q4_1, q5_1        s = sum n * v;         acc = fma(float(s) * d, scale, acc);  acc = fma(m, scale_sum, acc)
//     q4_k, q5_k        as q4_1 with d = D * sc, m = -(M * mn)
//     q6_k, q3_k        s = sum sc[h] * (n - offset) * v, offset 32 or 4;  acc = fma(float(s) * D, scale, acc)
//     q2_k              s = sum sc[h] * n * v;                     acc = fma(float(s) * D, scale, acc)
//                       t = mn[0] * half_sum[0] + mn[1] * half_sum[1];  acc = fma(-(float(t) * M), scale, acc)
//                     Every s and t is below 2^24, and below 2^22 where there is one scale per group: float(s) is exact.
//                     d comes first because it has few bits (linear_amx.cpp).
//
//   linear_float      weights become w = (n - offset) * d, fma(n, d, m), q * d or the float itself: the file's exact
//                     values, those with a minimum rounded once, as are those of f8_e4m3, 8-bit float * f32 d. acc = 0; for each group of 32 k in ascending order
//                     (the last may be shorter):
//                     part = 0; part = fma(w[k], x[k], part) for ascending k; acc = acc + part
//
//   both              out = acc; if bias: out = out + bias; if residual: out = out + residual
//
// linear_quantized and quantize give the same bits in every instruction set. linear_float does where the target has a
// fused multiply-add; the portable build on x86-64 rounds w * x before adding.
#pragma once
#include <cstddef>
#include <cstdint>

#include "expanded_tiles.h"

namespace tidemill {

inline constexpr int kTileColumns = 16;  // outputs per weight tile
inline constexpr int kGroup = 32;        // activations along k that share a scale
inline constexpr int kPanelRows = 4;     // activation rows per panel
inline constexpr int kGroupScales = 3;   // words kept per row and group of activations

// Compute layouts. Each holds the file's values exactly. "Super" and "Halves" scale the integers of a group, or of half
// a group, with one f16 per 256 k; "Table" codes stand for the integers of a table; kQ4Zero has an integer zero per
// group. The float layouts are last: from kFloat8 on there is no product with 8-bit activations.
enum class Layout : std::uint8_t {
  kQ4Symmetric, kQ4Affine, kQ8,
  kQ4Super, kQ5Super, kQ6Halves, kQ5Symmetric, kQ5Affine, kQ3Halves, kQ2Halves, kQ4Table, kFloat4Table,
  kQ4Zero,
  kFloat8, kF16, kBF16, kF32
};

// Storage formats of files; the numbers are shared with the Python side.
enum class FileFormat : std::uint8_t {
  kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ8_0, kQ4_K, kQ6_K, kQ5_K, kQ5_0, kQ5_1, kQ3_K, kQ2_K, kIQ4_NL, kMXFP4,
  kQ4_Z, kF8_E4M3
};
inline constexpr FileFormat kLastFormat = FileFormat::kF8_E4M3;

// One weight [n, k] as ceil(n / 16) tiles of 16 outputs; outputs past n are zero. Does not own its bytes.
struct PackedMatrix {
  Layout layout;
  std::int32_t n;
  std::int32_t k;
  std::size_t tile_bytes;
  const std::uint8_t* data;  // 64-byte aligned

  std::int32_t tiles() const { return (n + kTileColumns - 1) / kTileColumns; }
  std::size_t bytes() const { return tile_bytes * static_cast<std::size_t>(tiles()); }
  bool quantized() const { return layout < Layout::kFloat8; }
  bool blocks() const { return layout < Layout::kF16; }
};

Layout layout_of(FileFormat format);
std::size_t packed_tile_bytes(Layout layout, std::int32_t k);

// Counts changes of the packed bytes: caches of them from another version are not used. A test holds it to the bytes.
inline constexpr int kPackingVersion = 1;

// Packs tiles [tile_begin, tile_end) of a weight from file rows into out (the whole matrix's buffer, 64-byte aligned).
// file_rows needs no alignment. k is whole blocks in the block formats. Layouts (bytes of them in kernels/layout.h):
//   blocks      [header of 256 k: 16 f16 D | 16 f16 M, where there are] groups of 32 k: header | planes of codes
//   headers of groups, 16 columns each
//               kQ4Symmetric, kQ5Symmetric, kQ8, kQ4Table   f16 d
//               kQ4Affine, kQ5Affine                        f16 d | f16 m
//               kQ4Super, kQ5Super                          u8 sc | u8 mn
//               kQ6Halves, kQ3Halves                        [column][half] int8 sc
//               kQ2Halves                                   [column][half] sc in the low, mn in the high four bits
//               kFloat4Table                                u8 exponent
//               kQ4Zero                                     f16 d | u8 z
//               kFloat8                                     f32 d
//   planes      of one bit width for columns 0-7, then 8-15; byte 4c + j of a 32-byte vector is of column c and k = j in
//               each quad of 4 k:
//               4 bits  vector v has the quads 2v (low) and 2v + 1 (high); the low bits of 4, 5 and 6
//               2 bits  vector u has the quads 4u + i at bits 2i; the low bits of 2 and 3, the high ones of 6
//               1 bit   quad i at bit i; the high bit of 3 and 5
//   kQ8         per group: header | per quad of 4 k: 16 columns x 4 int8
//   kFloat8     per group: header | [k][16] 8-bit floats
//   kF16, kF32  [k][16]
//   kBF16       [ceil(k / 2)][16][k even, k odd]
void pack_tiles(FileFormat format, const std::uint8_t* file_rows, std::int32_t n, std::int32_t k, std::uint8_t* out,
                std::int32_t tile_begin, std::int32_t tile_end);

// Writes the k values of one output, exactly as the file means them (token embeddings read tied weights this way).
void dequantize_row(const PackedMatrix& weight, std::int32_t row, float* out);

// Activations rounded to int8 per row and group of 32 k, in panels of kPanelRows rows. A view of arena memory.
struct QuantizedRows {
  std::int32_t rows;
  std::int32_t k;
  std::int8_t* values;  // [panel][group][8 quads][rows of panel][4]
  float* scales;        // [panel][group][rows of panel scale, of scale_sum, of two int16 half_sum in a float's place]
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
// tests); 0 chooses, and may take more.
struct LinearKernels {
  const char* isa;

  // Rounds groups [group_begin, group_end) of all rows, x [rows, 32 * groups]: x begins with the first of these groups.
  void (*quantize)(const float* x, std::size_t stride, const QuantizedRows& out, std::int32_t group_begin,
                   std::int32_t group_end);

  // 8-bit activations times a quantised layout, for tiles [tile_begin, tile_end) and all rows. `kept`, or null, may hold
  // what a kernel expands of these tiles, for calls with other rows.
  void (*linear_quantized)(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t tile_begin,
                           std::int32_t tile_end, const LinearOutput& output, int variant, ExpandedTiles* kept);

  // Float activations times any layout (exact mode for the quantised ones).
  void (*linear_float)(const PackedMatrix& weight, const float* x, std::size_t stride, std::int32_t rows,
                       std::int32_t tile_begin, std::int32_t tile_end, const LinearOutput& output, int variant);
};

const LinearKernels& linear_kernels_portable();
#if defined(__x86_64__)
const LinearKernels& linear_kernels_avx2();
const LinearKernels& linear_kernels_avx512();
const LinearKernels& linear_kernels_amx();
#elif defined(__aarch64__)
const LinearKernels& linear_kernels_neon();
const LinearKernels& linear_kernels_neon_dot();
#endif

}  // namespace tidemill
