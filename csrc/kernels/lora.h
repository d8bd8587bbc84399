// Low-rank updates of linear layers (Hu et al., LoRA, arXiv:2106.09685): y += B (scale * (A x)).
//
// Everything is float32, and x is the layer's input before any rounding (docs/architecture.md, rule 7). Up to kLoraRows
// rows share a call; each has sums of its own, in one order, so that its bits do not depend on the others:
//
//   down   h[j] = scale * sum over k of A[j][k] x[k], each lane adding its k in ascending order, then lane by lane
//   up     sum = 0; sum = fma(B[i][j], h[j], sum) for ascending j; y[i] = y[i] + sum
#pragma once
#include <cstddef>
#include <cstdint>

namespace tidemill {

inline constexpr int kLoraRows = 4;      // rows that share a call
inline constexpr int kLoraColumns = 32;  // outputs per tile of B

struct LoraKernels {
  // a [rank][stride], x[r] k values, h[r] rank values.
  void (*down)(const float* a, std::size_t stride, std::int32_t rank, std::int32_t k, const float* const* x, int rows,
               float scale, float* const* h);
  // b: tiles of kLoraColumns outputs, [tile][rank][column], zero behind the n-th; out[r] n values.
  void (*up)(const float* b, std::int32_t rank, std::int32_t n, std::int32_t tile_begin, std::int32_t tile_end,
             const float* const* h, int rows, float* const* out);
};

}  // namespace tidemill
