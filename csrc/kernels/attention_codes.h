// A panel of few query rows against a tile of whole numbers, which become floats in registers: scores and weighted values
// as in attention_panel.h, the same operations in the same order on the same numbers.
#pragma once
#include "attention_tile.h"
#include "simd.h"

namespace tidemill {

// Vectors per query row, as vectors_per_row, with room for the scales.
constexpr int code_vectors_per_row(int lanes, int rows) { return lanes == 16 && rows <= 4 ? 4 : 2; }

// Keys of one row of codes, in the vectors of kRuns runs: body(d, keys) for its dimension, or its two.
template <class S, class Element, int kVectors, class Body>
TIDEMILL_INLINE void key_row(const std::uint8_t* const* codes, const typename S::V* scales, int d, Body body) {
  constexpr int kParts = kRunTokens / S::kLanes;
  typename S::V low[kVectors];
  if constexpr (Element::Codes::kFormat == KvFormat::kQ8) {
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) {
      low[w] = S::mul(S::load_bytes(codes[w / kParts] + S::kLanes * (w % kParts)), scales[w]);
    }
    body(d, low);
  } else {
    typename S::V high[kVectors];
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) {
      S::load_nibbles(codes[w / kParts] + S::kLanes * (w % kParts), low[w], high[w]);
      low[w] = S::mul(low[w], scales[w]);
      high[w] = S::mul(high[w], scales[w]);
    }
    body(d, low);
    body(d + 1, high);  // zeros beyond the last dimension, as the query's are
  }
}

// p[i][t] = q_i . k_t for kRuns runs of tokens.
template <class S, class Element, int kRows, int kRuns>
  requires Element::kQuantized
TIDEMILL_INLINE void run_scores(const AttentionTile<Element>& tile, const float* q, std::int32_t run, float* p,
                                std::size_t p_stride) {
  using V = typename S::V;
  constexpr int kParts = kRunTokens / S::kLanes;  // vectors per run
  constexpr int kVectors = kRuns * kParts;
  constexpr int kRowDims = Element::Codes::kFormat == KvFormat::kQ8 ? 1 : 2;
  const std::uint8_t* codes[kRuns];
  TIDEMILL_UNROLL for (int w = 0; w < kRuns; ++w) codes[w] = tile.k[run + w];
  const std::int32_t stride = tile.block_size;
  V acc[kRows][kVectors];
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) acc[i][w] = S::zero();
  }
  const std::int32_t groups = tile.groups;
  const std::int32_t lines = tile.key_lines_per_group();
  std::int32_t left = tile.head_dim;
  for (std::int32_t g = 0; g < groups; ++g, left -= kKvGroup, q += 2 * kRows * kChunkDims) {
    V scales[kVectors];
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) {
      scales[w] = S::load_half(tile.k_scales[run + w / kParts] + g * stride + S::kLanes * (w % kParts));
    }
    for (int chunk = 0; chunk < 2; ++chunk) {
      const std::int32_t rest = left - chunk * kChunkDims;
      const int dims = rest < kChunkDims ? rest : kChunkDims;
      const float* row = q + chunk * kRows * kChunkDims;
      for (int d = 0; d < dims; d += kRowDims) {
        key_row<S, Element, kVectors>(codes, scales, d, [&](int at, const V(&keys)[kVectors]) __attribute__((always_inline)) {
          TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
            const V x = S::set(row[i * kChunkDims + at]);
            TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) acc[i][w] = S::fma(keys[w], x, acc[i][w]);
          }
        });
        TIDEMILL_UNROLL for (int w = 0; w < kRuns; ++w) codes[w] += stride;
      }
    }
    if constexpr (Element::kStreamed) {
      TIDEMILL_UNROLL for (int w = 0; w < kRuns; ++w) tile.fetch_keys(run + w, g * lines, lines);
    }
  }
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) {
      S::store(p + static_cast<std::size_t>(i) * p_stride + kRunTokens * run + S::kLanes * w, acc[i][w]);
    }
  }
}

// kWidth vectors of a token's values from dimension d on; its scales are floats by now.
template <class S, class Element, int kWidth>
TIDEMILL_INLINE void value_vectors(const std::uint8_t* codes, const float* scales, std::int32_t d,
                                   typename S::V (&values)[kWidth]) {
  constexpr int kHalf = kKvGroup / 2;
  constexpr int kWidthDims = S::kLanes * kWidth;
  if constexpr (Element::Codes::kFormat == KvFormat::kQ8) {
    TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) {
      const std::int32_t at = d + S::kLanes * w;
      values[w] = S::mul(S::load_bytes(codes + at), S::set(scales[at / kKvGroup]));
    }
  } else if constexpr (kWidthDims % kKvGroup == 0) {  // whole groups: both halves of a byte are wanted
    constexpr int kParts = kHalf / S::kLanes;
    TIDEMILL_UNROLL for (int w = 0; w < kWidth; w += 2 * kParts) {
      const std::int32_t group = d / kKvGroup + w / (2 * kParts);
      const auto scale = S::set(scales[group]);
      TIDEMILL_UNROLL for (int i = 0; i < kParts; ++i) {
        typename S::V low, high;
        S::load_nibbles(codes + group * kHalf + S::kLanes * i, low, high);
        values[w + i] = S::mul(low, scale);
        values[w + kParts + i] = S::mul(high, scale);
      }
    }
  } else {
    TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) {
      const std::int32_t at = d + S::kLanes * w;
      typename S::V low, high;
      S::load_nibbles(codes + at / kKvGroup * kHalf + at % kHalf, low, high);
      values[w] = S::mul(at % kKvGroup < kHalf ? low : high, S::set(scales[at / kKvGroup]));
    }
  }
}

// out_i = out_i * factor_i + sum over a span's tokens of p[i][t] v_t, tokens in order, kWidth vectors at d.
template <class S, class Element, int kRows, int kWidth>
  requires Element::kQuantized
TIDEMILL_INLINE void panel_values(const AttentionTile<Element>& tile, const float* p, std::size_t p_stride,
                                  const float* factors, TileSpan span, std::int32_t d, float* out) {
  using V = typename S::V;
  out += chunked(d, kRows);
  V acc[kRows][kWidth];
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) {
      acc[i][w] = S::mul(S::load(out + kChunkDims * i + chunked(S::kLanes * w, kRows)), S::set(factors[i]));
    }
  }
  const std::int32_t groups = tile.groups;
  const std::int32_t token_bytes = tile.token_bytes();
  const std::int32_t lines = Element::kStreamed && d == 0 ? tile.value_lines_per_token() : 0;
  alignas(64) float scales[kRunTokens * kMaxKvGroups];
  for (std::int32_t t = span.begin; t < span.end;) {
    const std::int32_t run = t / kRunTokens;
    const std::int32_t end = (run + 1) * kRunTokens < span.end ? (run + 1) * kRunTokens : span.end;
    for (std::int32_t i = 0; i < kRunTokens * groups; i += S::kLanes) {
      S::store(scales + i, S::load_half(tile.v_scales[run] + i));
    }
    const std::uint8_t* codes = tile.v[run] + t % kRunTokens * token_bytes;
    const float* scale = scales + t % kRunTokens * groups;
    for (; t < end; ++t, codes += token_bytes, scale += groups) {
      V values[kWidth];
      value_vectors<S, Element>(codes, scale, d, values);
      if (lines > 0) tile.fetch_values(run, t % kRunTokens * lines, lines);
      TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
        const V x = S::set(p[static_cast<std::size_t>(i) * p_stride + static_cast<std::size_t>(t)]);
        TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) acc[i][w] = S::fma(values[w], x, acc[i][w]);
      }
    }
  }
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) {
      S::store(out + kChunkDims * i + chunked(S::kLanes * w, kRows), acc[i][w]);
    }
  }
}

}  // namespace tidemill
