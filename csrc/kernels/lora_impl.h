// The kernels of lora.h over the lanes S (see simd.h). Blocks of rows, ranks and columns are kept in registers; no sum
// depends on how many of them there are.
#pragma once
#include "inline.h"
#include "lora.h"
#include "simd.h"

namespace tidemill {

// h[r][j .. j + kRanks) for kRows rows.
template <class S, int kRows, int kRanks>
TIDEMILL_INLINE void lora_down_block(const float* a, std::size_t stride, std::int32_t j, std::int32_t k,
                                     const float* const* x, float scale, float* const* h) {
  using V = typename S::V;
  V sums[kRows][kRanks];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kRanks; ++i) sums[r][i] = S::zero();
  }
  const float* first = a + static_cast<std::size_t>(j) * stride;
  simd::for_lanes<S>(k, [&](int at, int lanes) {
    V weights[kRanks];
    for (int i = 0; i < kRanks; ++i) weights[i] = simd::load<S>(first + static_cast<std::size_t>(i) * stride + at, lanes);
    for (int r = 0; r < kRows; ++r) {
      const V values = simd::load<S>(x[r] + at, lanes);
      for (int i = 0; i < kRanks; ++i) sums[r][i] = S::fma(weights[i], values, sums[r][i]);
    }
  });
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kRanks; ++i) h[r][j + i] = scale * S::sum(sums[r][i]);
  }
}

template <class S, int kRows>
TIDEMILL_INLINE void lora_down_rows(const float* a, std::size_t stride, std::int32_t rank, std::int32_t k,
                                    const float* const* x, float scale, float* const* h) {
  std::int32_t j = 0;
  for (; j + 2 <= rank; j += 2) lora_down_block<S, kRows, 2>(a, stride, j, k, x, scale, h);
  if (j < rank) lora_down_block<S, kRows, 1>(a, stride, j, k, x, scale, h);
}

template <class S>
void lora_down(const float* a, std::size_t stride, std::int32_t rank, std::int32_t k, const float* const* x, int rows,
               float scale, float* const* h) {
  switch (rows) {
    case 1: return lora_down_rows<S, 1>(a, stride, rank, k, x, scale, h);
    case 2: return lora_down_rows<S, 2>(a, stride, rank, k, x, scale, h);
    case 3: return lora_down_rows<S, 3>(a, stride, rank, k, x, scale, h);
    default: return lora_down_rows<S, kLoraRows>(a, stride, rank, k, x, scale, h);
  }
}

template <class S, int kRows>
TIDEMILL_INLINE void lora_up_rows(const float* b, std::int32_t rank, std::int32_t n, std::int32_t tile_begin,
                                  std::int32_t tile_end, const float* const* h, float* const* out) {
  using V = typename S::V;
  constexpr int kBlock = 2 * S::kLanes;
  static_assert(kLoraColumns % kBlock == 0);
  for (std::int32_t tile = tile_begin; tile < tile_end; ++tile) {
    const float* weights = b + static_cast<std::size_t>(tile) * static_cast<std::size_t>(rank) * kLoraColumns;
    for (int column = 0; column < kLoraColumns; column += kBlock) {
      V sums[kRows][2];
      for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = S::zero();
      for (std::int32_t j = 0; j < rank; ++j) {
        const float* at = weights + static_cast<std::size_t>(j) * kLoraColumns + column;
        const V low = S::load(at), high = S::load(at + S::kLanes);
        for (int r = 0; r < kRows; ++r) {
          const V factor = S::set(h[r][j]);
          sums[r][0] = S::fma(low, factor, sums[r][0]);
          sums[r][1] = S::fma(high, factor, sums[r][1]);
        }
      }
      for (int half = 0; half < 2; ++half) {
        const std::int32_t to = tile * kLoraColumns + column + half * S::kLanes;
        const int lanes = n - to < S::kLanes ? n - to : S::kLanes;
        if (lanes <= 0) break;
        for (int r = 0; r < kRows; ++r) {
          simd::store<S>(out[r] + to, S::add(simd::load<S>(out[r] + to, lanes), sums[r][half]), lanes);
        }
      }
    }
  }
}

template <class S>
void lora_up(const float* b, std::int32_t rank, std::int32_t n, std::int32_t tile_begin, std::int32_t tile_end,
             const float* const* h, int rows, float* const* out) {
  switch (rows) {
    case 1: return lora_up_rows<S, 1>(b, rank, n, tile_begin, tile_end, h, out);
    case 2: return lora_up_rows<S, 2>(b, rank, n, tile_begin, tile_end, h, out);
    case 3: return lora_up_rows<S, 3>(b, rank, n, tile_begin, tile_end, h, out);
    default: return lora_up_rows<S, kLoraRows>(b, rank, n, tile_begin, tile_end, h, out);
  }
}

template <class S>
constexpr LoraKernels lora_kernels() {
  return {lora_down<S>, lora_up<S>};
}

}  // namespace tidemill
