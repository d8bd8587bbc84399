// One panel of query rows against one tile: scores, the tile's step of the softmax, weighted values; for one instruction
// set S (see simd.h).
#pragma once
#include "attention_tile.h"
#include "norm_impl.h"
#include "simd.h"

namespace tidemill {

// Vectors that one inner loop carries per query row: enough independent sums to hide the latency of an fma, as many as
// the registers hold (32 where a vector has sixteen lanes). Every sum has the same order whatever the number.
constexpr int vectors_per_row(int lanes, int rows) { return lanes == 16 || rows <= 3 ? 4 : 2; }

// Calls body(lanes, d) for the vectors of a padded head: whole ones, then one of eight lanes where eight are left.
template <class S, class Body>
TIDEMILL_INLINE void for_head_vectors(std::int32_t padded_dim, Body body) {
  std::int32_t d = 0;
  for (; d + S::kLanes <= padded_dim; d += S::kLanes) body(S{}, d);
  if constexpr (S::kLanes > 8) {
    if (d < padded_dim) body(typename S::Eight{}, d);
  }
}

// p[i][t] = q_i . k_t for kVectors vectors of tokens from t on, a multiple of 16.
template <class S, class Element, int kRows, int kVectors>
TIDEMILL_INLINE void token_scores(const AttentionTile<Element>& tile, const float* q, std::int32_t t, float* p,
                                  std::size_t p_stride) {
  using V = typename S::V;
  constexpr int kParts = 16 / S::kLanes;  // vectors in the sixteen tokens that are sure to lie in one block
  const typename Element::Type* k[kVectors / kParts];
  const typename Element::Type* next[kVectors / kParts];
  TIDEMILL_UNROLL for (int w = 0; w < kVectors / kParts; ++w) {
    const std::int32_t at = t + 16 * w;
    const std::int32_t block = at / tile.block_size;
    k[w] = tile.k[block] + (at - block * tile.block_size);
    if constexpr (Element::kStreamed) next[w] = tile.next_k[block] + (at - block * tile.block_size);
  }
  V acc[kRows][kVectors];
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) acc[i][w] = S::zero();
  }
  for (std::int32_t d = 0; d < tile.head_dim; ++d) {
    V keys[kVectors];
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) {
      keys[w] = Element::template load<S>(k[w / kParts] + S::kLanes * (w % kParts));
    }
    TIDEMILL_UNROLL for (int w = 0; w < kVectors / kParts; ++w) {
      k[w] += tile.block_size;
      if constexpr (Element::kStreamed) {
        S::prefetch(next[w]);
        next[w] += tile.block_size;
      }
    }
    TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
      const V x = S::set(q[d * kRows + i]);
      TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) acc[i][w] = S::fma(keys[w], x, acc[i][w]);
    }
  }
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) {
      S::store(p + static_cast<std::size_t>(i) * p_stride + t + S::kLanes * w, acc[i][w]);
    }
  }
}

// Scores of a span, rounded out to multiples of 16 (within its blocks): what the rest holds is masked by the caller.
template <class S, class Element, int kRows>
TIDEMILL_INLINE void panel_scores(const AttentionTile<Element>& tile, const float* q, TileSpan span, float* p,
                                  std::size_t p_stride) {
  constexpr int kVectors = vectors_per_row(S::kLanes, kRows);
  constexpr int kTokens = S::kLanes * kVectors;
  std::int32_t t = span.begin / 16 * 16;
  for (; t + kTokens <= (span.end + 15) / 16 * 16; t += kTokens) {
    token_scores<S, Element, kRows, kVectors>(tile, q, t, p, p_stride);
  }
  for (; t < span.end; t += 16) token_scores<S, Element, kRows, 16 / S::kLanes>(tile, q, t, p, p_stride);
}

// The whole vectors around the scores of a span.
template <class S>
TIDEMILL_INLINE TileSpan lanes_around(TileSpan span) {
  return {span.begin / S::kLanes * S::kLanes, (span.end + S::kLanes - 1) / S::kLanes * S::kLanes};
}

template <class S>
TIDEMILL_INLINE void cap_scores(float* p, TileSpan span, float soft_cap_or_zero) {
  if (soft_cap_or_zero == 0.0f) return;
  const TileSpan lanes = lanes_around<S>(span);
  soft_cap<S>(p + lanes.begin, soft_cap_or_zero, lanes.end - lanes.begin, p + lanes.begin);
}

// The largest score of a span, which must not be empty; scores beside it in its vectors become the lowest.
template <class S>
TIDEMILL_INLINE float largest_score(float* p, TileSpan span) {
  const float lowest = -__builtin_inff();
  const TileSpan lanes = lanes_around<S>(span);
  for (std::int32_t t = lanes.begin; t < span.begin; ++t) p[t] = lowest;
  for (std::int32_t t = span.end; t < lanes.end; ++t) p[t] = lowest;
  typename S::V best = S::set(lowest);
  for (std::int32_t t = lanes.begin; t < lanes.end; t += S::kLanes) best = S::max(best, S::load(p + t));
  return S::max_lane(best);
}

// Scores of a span become weights, which are added to the sums.
template <class S>
TIDEMILL_INLINE void weigh_scores(float* p, TileSpan span, float maximum, float factor, float* sums) {
  using V = typename S::V;
  const TileSpan lanes = lanes_around<S>(span);
  V total = S::mul(S::load(sums), S::set(factor));
  const V shift = S::set(maximum);
  for (std::int32_t t = lanes.begin; t < lanes.end; t += S::kLanes) {
    const V weight = simd::exp<S>(S::sub(S::load(p + t), shift));
    S::store(p + t, weight);
    total = S::add(total, weight);
  }
  S::store(sums, total);
}

// The tile's step of the softmaxes of kRows queries: scores become weights, the new maximums and sums are kept; factors
// are for what was accumulated before. A query whose span is empty stays as it is.
template <class S, int kRows>
TIDEMILL_INLINE void softmax_step(float* p, std::size_t p_stride, const TileSpan* spans, float* maximums, float* sums,
                                  float* factors) {
  static_assert(kRows <= S::kLanes);
  alignas(64) float change[S::kLanes] = {};
  for (int i = 0; i < kRows; ++i) {
    if (spans[i].empty()) continue;
    const float largest = largest_score<S>(p + static_cast<std::size_t>(i) * p_stride, spans[i]);
    const float before = maximums[i];
    maximums[i] = largest > before ? largest : before;
    change[i] = before - maximums[i];
  }
  S::store(change, simd::exp<S>(S::load(change)));  // of all rows at once; exp(0) is 1
  for (int i = 0; i < kRows; ++i) {
    factors[i] = change[i];
    if (spans[i].empty()) continue;
    weigh_scores<S>(p + static_cast<std::size_t>(i) * p_stride, spans[i], maximums[i], factors[i],
                    sums + S::kLanes * i);
  }
}

// out_i = out_i * factor_i + sum over a span's tokens of p[i][t] v_t, tokens in order, kWidth vectors at d.
template <class S, class Element, int kRows, int kWidth>
TIDEMILL_INLINE void panel_values(const AttentionTile<Element>& tile, const float* p, std::size_t p_stride,
                                  const float* factors, TileSpan span, std::int32_t d, float* const* out) {
  using V = typename S::V;
  constexpr int kLine = 64 / static_cast<int>(sizeof(typename Element::Type));
  V acc[kRows][kWidth];
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) {
      acc[i][w] = S::mul(S::load(out[i] + d + S::kLanes * w), S::set(factors[i]));
    }
  }
  for (std::int32_t t = span.begin; t < span.end;) {
    const std::int32_t block = t / tile.block_size;
    const std::int32_t first = block * tile.block_size;
    const auto at = static_cast<std::size_t>((t - first) * tile.padded_dim + d);
    const auto* v = tile.v[block] + at;
    const auto* next = Element::kStreamed ? tile.next_v[block] + at : v;
    const std::int32_t end = first + tile.block_size < span.end ? first + tile.block_size : span.end;
    for (; t < end; ++t) {
      V values[kWidth];
      TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) values[w] = Element::template load<S>(v + S::kLanes * w);
      v += tile.padded_dim;
      if constexpr (Element::kStreamed) {
        TIDEMILL_UNROLL for (int w = 0; w < S::kLanes * kWidth; w += kLine) S::prefetch(next + w);
        next += tile.padded_dim;
      }
      TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
        const V x = S::set(p[static_cast<std::size_t>(i) * p_stride + static_cast<std::size_t>(t)]);
        TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) acc[i][w] = S::fma(values[w], x, acc[i][w]);
      }
    }
  }
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) S::store(out[i] + d + S::kLanes * w, acc[i][w]);
  }
}

// out += sum over a span's tokens of p[t] v_t: those at a window's ends that only some queries of a panel read.
template <class S, class Element>
TIDEMILL_INLINE void extra_values(const AttentionTile<Element>& tile, const float* p, TileSpan span, float* out) {
  for (std::int32_t t = span.begin; t < span.end; ++t) {
    const std::int32_t block = t / tile.block_size;
    const auto* v = tile.v[block] + static_cast<std::size_t>(t - block * tile.block_size) *
                                        static_cast<std::size_t>(tile.padded_dim);
    for_head_vectors<S>(tile.padded_dim, [&](auto lanes, std::int32_t d) {
      using L = decltype(lanes);
      L::store(out + d, L::fma(Element::template load<L>(v + d), L::set(p[t]), L::load(out + d)));
    });
  }
}

// out_i = out_i * factor_i + the tokens that only query i and earlier ones of its panel read; the factor is then 1.
template <class S, class Element>
TIDEMILL_INLINE void leading_values(const AttentionTile<Element>& tile, const float* p, float* factor, TileSpan span,
                                    float* out) {
  for_head_vectors<S>(tile.padded_dim, [&](auto lanes, std::int32_t d) {
    using L = decltype(lanes);
    L::store(out + d, L::mul(L::load(out + d), L::set(*factor)));
  });
  *factor = 1.0f;
  extra_values<S, Element>(tile, p, span, out);
}

// Weighted values of a panel, for each query its tokens in order: its own at the window's beginning, those that all
// queries read, its own at the diagonal.
//
//     query 0   | own |  common  |             spans ascend: a later query begins and ends later
//     query 1     own |  common  | own |
//     query 2         |  common  | own   |
template <class S, class Element, int kRows>
TIDEMILL_INLINE void panel_output(const AttentionTile<Element>& tile, const float* p, std::size_t p_stride,
                                  float* factors, const TileSpan* spans, float* const* out) {
  const std::int32_t begin = spans[kRows - 1].begin;
  const TileSpan common{begin, spans[0].end > begin ? spans[0].end : begin};
  for (int i = 0; i + 1 < kRows; ++i) {
    const TileSpan own{spans[i].begin, spans[i].end < begin ? spans[i].end : begin};
    if (own.empty()) continue;
    leading_values<S, Element>(tile, p + static_cast<std::size_t>(i) * p_stride, factors + i, own, out[i]);
  }
  constexpr int kWidth = vectors_per_row(S::kLanes, kRows);
  std::int32_t d = 0;
  for (; d + S::kLanes * kWidth <= tile.padded_dim; d += S::kLanes * kWidth) {
    panel_values<S, Element, kRows, kWidth>(tile, p, p_stride, factors, common, d, out);
  }
  for (; d + S::kLanes <= tile.padded_dim; d += S::kLanes) {
    panel_values<S, Element, kRows, 1>(tile, p, p_stride, factors, common, d, out);
  }
  if constexpr (S::kLanes > 8) {
    if (d < tile.padded_dim) {
      panel_values<typename S::Eight, Element, kRows, 1>(tile, p, p_stride, factors, common, d, out);
    }
  }
  for (int i = 1; i < kRows; ++i) {
    const TileSpan own{common.end, spans[i].end};
    extra_values<S, Element>(tile, p + static_cast<std::size_t>(i) * p_stride, own, out[i]);
  }
}

// One panel of query rows and what it has accumulated.
struct QueryPanel {
  const float* q;   // [dim][rows], scaled
  float* maximums;  // [rows]
  float* sums;      // [rows][lanes]
  float soft_cap;   // 0: none
  float* out[kPanelQueries];
  TileSpan spans[kPanelQueries];  // tokens of the tile each row reads; begins and ends ascend
};

// p[i][t] = the scores of the panel's row i.
template <class S, class Element, int kRows>
void score_panel(const AttentionTile<Element>& tile, const QueryPanel& panel, float* p) {
  panel_scores<S, Element, kRows>(tile, panel.q, {panel.spans[0].begin, panel.spans[kRows - 1].end}, p, kTileTokens);
}

// The rest, from the scores: softmax and values.
template <class S, class Element, int kRows>
void finish_panel(const AttentionTile<Element>& tile, const QueryPanel& panel, float* p) {
  float factors[kRows];
  for (int i = 0; i < kRows; ++i) {
    if (!panel.spans[i].empty()) cap_scores<S>(p + i * kTileTokens, panel.spans[i], panel.soft_cap);
  }
  softmax_step<S, kRows>(p, kTileTokens, panel.spans, panel.maximums, panel.sums, factors);
  panel_output<S, Element, kRows>(tile, p, kTileTokens, factors, panel.spans, panel.out);
}

// The two for each number of rows.
template <class S, class Element>
struct PanelSteps {
  using Step = void (*)(const AttentionTile<Element>& tile, const QueryPanel& panel, float* p);

  static constexpr Step kScore[] = {score_panel<S, Element, 1>, score_panel<S, Element, 2>, score_panel<S, Element, 3>,
                                    score_panel<S, Element, 4>, score_panel<S, Element, 5>, score_panel<S, Element, 6>};
  static constexpr Step kFinish[] = {finish_panel<S, Element, 1>, finish_panel<S, Element, 2>,
                                     finish_panel<S, Element, 3>, finish_panel<S, Element, 4>,
                                     finish_panel<S, Element, 5>, finish_panel<S, Element, 6>};
};

}  // namespace tidemill
