// One panel of query rows against one tile: scores, the tile's step of the softmax, weighted values; for one instruction
// set S (see simd.h).
#pragma once
#include "attention_codes.h"
#include "attention_tile.h"
#include "simd.h"

namespace tidemill {

// Vectors that one inner loop carries per query row: enough independent sums to hide the latency of an fma, as many as
// the registers hold (32 where a vector has sixteen lanes). Every sum has the same order whatever the number.
constexpr int vectors_per_row(int lanes, int rows) { return lanes == 16 || rows <= 3 ? 4 : 2; }

// p[i][t] = q_i . k_t for kRuns runs of tokens.
template <class S, class Element, int kRows, int kRuns>
  requires(!Element::kQuantized)
TIDEMILL_INLINE void run_scores(const AttentionTile<Element>& tile, const float* q, std::int32_t run, float* p,
                                std::size_t p_stride) {
  using V = typename S::V;
  constexpr int kParts = kRunTokens / S::kLanes;  // vectors per run
  constexpr int kVectors = kRuns * kParts;
  const typename Element::Type* k[kRuns];
  const typename Element::Type* next[kRuns];
  TIDEMILL_UNROLL for (int w = 0; w < kRuns; ++w) {
    k[w] = Element::kWide ? tile.k[run] + kRunTokens * w : tile.k[run + w];
    if constexpr (Element::kStreamed) next[w] = tile.next_k[run + w];
  }
  const std::int32_t k_stride = Element::kWide ? kTileTokens : tile.block_size;
  constexpr int kLine = AttentionTile<Element>::kLine;
  const int line_dims = k_stride < kLine ? kLine / k_stride : 1;  // a power of two
  V acc[kRows][kVectors];
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) acc[i][w] = S::zero();
  }
  for (std::int32_t left = tile.head_dim; left > 0; left -= kChunkDims, q += kRows * kChunkDims) {
    const int dims = left < kChunkDims ? left : kChunkDims;
    for (int d = 0; d < dims; ++d) {
      V keys[kVectors];
      TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) {
        keys[w] = Element::template load<S>(k[w / kParts] + S::kLanes * (w % kParts));
      }
      TIDEMILL_UNROLL for (int w = 0; w < kRuns; ++w) {
        k[w] += k_stride;
        if constexpr (Element::kStreamed) {
          if ((d & (line_dims - 1)) == 0) fetch_line(next[w]);
          next[w] += k_stride;
        }
      }
      TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
        const V x = S::set(q[i * kChunkDims + d]);
        TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) acc[i][w] = S::fma(keys[w], x, acc[i][w]);
      }
    }
  }
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) {
      S::store(p + static_cast<std::size_t>(i) * p_stride + kRunTokens * run + S::kLanes * w, acc[i][w]);
    }
  }
}

// Runs [run, end), as many at a time as the registers hold.
template <class S, class Element, int kRows, int kRuns>
TIDEMILL_INLINE void scores_of_runs(const AttentionTile<Element>& tile, const float* q, std::int32_t run,
                                    std::int32_t end, float* p, std::size_t p_stride) {
  for (; run + kRuns <= end; run += kRuns) run_scores<S, Element, kRows, kRuns>(tile, q, run, p, p_stride);
  if constexpr (kRuns > 1) {
    if (run < end) scores_of_runs<S, Element, kRows, kRuns - 1>(tile, q, run, end, p, p_stride);
  }
}

// Scores of the runs that a span touches: what is beside it is masked later.
template <class S, class Element, int kRows>
TIDEMILL_INLINE void panel_scores(const AttentionTile<Element>& tile, const float* q, TileSpan span, float* p,
                                  std::size_t p_stride) {
  constexpr int kVectors = Element::kQuantized ? code_vectors_per_row(S::kLanes, kRows) : vectors_per_row(S::kLanes, kRows);
  constexpr int kRuns = kVectors * S::kLanes / kRunTokens;
  const std::int32_t end = (span.end + kRunTokens - 1) / kRunTokens;
  scores_of_runs<S, Element, kRows, kRuns>(tile, q, span.begin / kRunTokens, end, p, p_stride);
}

// The whole vectors around the scores of a span.
template <class S>
TIDEMILL_INLINE TileSpan lanes_around(TileSpan span) {
  return {span.begin / S::kLanes * S::kLanes, (span.end + S::kLanes - 1) / S::kLanes * S::kLanes};
}

// Calls body(t) for those vectors, in order; a whole tile has a fixed number of them.
template <class S, bool kWhole, class Body>
TIDEMILL_INLINE void for_lanes_around(TileSpan span, Body body) {
  if constexpr (kWhole) {
    TIDEMILL_UNROLL for (int w = 0; w < kTileTokens / S::kLanes; ++w) body(S::kLanes * w);
  } else {
    const TileSpan lanes = lanes_around<S>(span);
    for (std::int32_t t = lanes.begin; t < lanes.end; t += S::kLanes) body(t);
  }
}

template <class S>
TIDEMILL_INLINE void cap_scores(float* p, TileSpan span, float soft_cap) {
  const auto cap = S::set(soft_cap);
  for_lanes_around<S, false>(span, [&](std::int32_t t) {
    S::store(p + t, S::mul(cap, simd::tanh<S>(S::div(S::load(p + t), cap))));
  });
}

// Scores beside a span, in its vectors, become the lowest.
template <class S>
TIDEMILL_INLINE void mask_scores(float* p, TileSpan span) {
  alignas(64) static constexpr float kIndex[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto index = S::load(kIndex);
  const auto lowest = S::set(-__builtin_inff());
  const TileSpan lanes = lanes_around<S>(span);
  if (lanes.begin < span.begin) {
    float* first = p + lanes.begin;
    const auto kept = S::not_less(index, S::set(static_cast<float>(span.begin - lanes.begin)));
    S::store(first, S::select(kept, S::load(first), lowest));
  }
  if (span.end < lanes.end) {
    float* last = p + lanes.end - S::kLanes;
    const auto kept = S::greater(S::set(static_cast<float>(span.end - lanes.end + S::kLanes)), index);
    S::store(last, S::select(kept, S::load(last), lowest));
  }
}

// The largest score of a span, lane by lane.
template <class S, bool kWhole>
TIDEMILL_INLINE typename S::V largest_scores(const float* p, TileSpan span) {
  typename S::V best = S::set(-__builtin_inff());
  for_lanes_around<S, kWhole>(span, [&](std::int32_t t) { best = S::max(best, S::load(p + t)); });
  return best;
}

// What a softmax that has read nothing has as its maximum: finite, so that its distance from itself is 0.
inline constexpr float kNothingRead = -0x1.fffffep127f;

// One float for each row of a panel.
using RowFloats = float[8];
static_assert(kPanelQueries <= 8);

// The tile's step of the softmaxes of kRows queries, first half: the new maximums. Scores are to be shifted by `shifts`,
// what was accumulated before is to be multiplied by `factors`. A query whose span is empty stays as it is. Whole: every
// span is the tile.
template <class S, int kRows, bool kWhole>
TIDEMILL_INLINE void raise_maximums(float* p, std::size_t p_stride, const TileSpan* spans, float* maximums,
                                    RowFloats& shifts, RowFloats& factors) {
  using E = typename S::Eight;
  typename S::V largest[kRows];
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    float* row = p + static_cast<std::size_t>(i) * p_stride;
    if (!kWhole && !spans[i].empty()) mask_scores<S>(row, spans[i]);
    largest[i] = largest_scores<S, kWhole>(row, spans[i]);
  }
  const auto before = E::load_first(maximums, kRows);
  const auto after = E::max(S::row_maxima(largest), before);
  E::store_first(maximums, after, kRows);
  E::store(shifts, after);
  E::store(factors, simd::exp_falling<E>(E::sub(before, after)));
}

// Scores of kRows rows become weights, which are added to the sums, vector by vector: the first are ready while the last
// are computed.
template <class S, int kRows, bool kWhole>
TIDEMILL_INLINE void weigh_scores(float* p, std::size_t p_stride, TileSpan span, const float* shifts,
                                  const float* factors, float* sums) {
  using V = typename S::V;
  V totals[kRows];
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    totals[i] = S::mul(S::load(sums + S::kLanes * i), S::set(factors[i]));
  }
  const TileSpan lanes = kWhole ? kWholeTile : lanes_around<S>(span);
  for (std::int32_t t = lanes.begin; t < lanes.end; t += S::kLanes) {
    TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
      float* at = p + static_cast<std::size_t>(i) * p_stride + t;
      const V weight = simd::exp_falling<S>(S::sub(S::load(at), S::set(shifts[i])));
      S::store(at, weight);
      totals[i] = S::add(totals[i], weight);
    }
  }
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) S::store(sums + S::kLanes * i, totals[i]);
}

// Second half: scores become weights, and the sums are kept.
template <class S, int kRows, bool kWhole>
TIDEMILL_INLINE void weigh_panel(float* p, std::size_t p_stride, const TileSpan* spans, const RowFloats& shifts,
                                 const RowFloats& factors, float* sums) {
  constexpr int kTogether = kWhole && S::kLanes == 16 ? kRows : 1;  // as many as the registers hold
  for (int i = 0; i < kRows; i += kTogether) {
    if (!kWhole && spans[i].empty()) continue;
    weigh_scores<S, kTogether, kWhole>(p + static_cast<std::size_t>(i) * p_stride, p_stride, spans[i], shifts + i,
                                       factors + i, sums + S::kLanes * i);
  }
}

// out_i = out_i * factor_i + sum over a span's tokens of p[i][t] v_t, tokens in order, kWidth vectors at d.
template <class S, class Element, int kRows, int kWidth>
  requires(!Element::kQuantized)
TIDEMILL_INLINE void panel_values(const AttentionTile<Element>& tile, const float* p, std::size_t p_stride,
                                  const float* factors, TileSpan span, std::int32_t d, float* out) {
  using V = typename S::V;
  constexpr int kLine = AttentionTile<Element>::kLine;
  const auto row = static_cast<std::size_t>(tile.padded_dim);
  out += chunked(d, kRows);
  V acc[kRows][kWidth];
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) {
      acc[i][w] = S::mul(S::load(out + kChunkDims * i + chunked(S::kLanes * w, kRows)), S::set(factors[i]));
    }
  }
  for (std::int32_t t = span.begin; t < span.end;) {
    const std::int32_t run = t / kRunTokens;
    const std::size_t at = static_cast<std::size_t>(t % kRunTokens) * row + static_cast<std::size_t>(d);
    const auto* v = tile.v[run] + at;
    const auto* next = Element::kStreamed ? tile.next_v[run] + at : v;
    const std::int32_t run_end = Element::kWide ? kTileTokens : (run + 1) * kRunTokens;
    const std::int32_t end = run_end < span.end ? run_end : span.end;
    for (; t < end; ++t) {
      V values[kWidth];
      TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) values[w] = Element::template load<S>(v + S::kLanes * w);
      v += row;
      if constexpr (Element::kStreamed) {
        TIDEMILL_UNROLL for (int w = 0; w < S::kLanes * kWidth; w += kLine) fetch_line(next + w);
        next += row;
      }
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

// Values of token t from dimension d on.
template <class S, class Element>
TIDEMILL_INLINE typename S::V value_vector(const AttentionTile<Element>& tile, std::int32_t t, std::int32_t d) {
  const std::int32_t run = t / kRunTokens;
  const std::int32_t at = t % kRunTokens;
  if constexpr (Element::kQuantized) {
    const std::int32_t group = d / kKvGroup;
    float scales[kMaxKvGroups] = {};
    scales[group] = half_to_float(tile.v_scales[run][at * tile.groups + group]);
    typename S::V values[1];
    value_vectors<S, Element>(tile.v[run] + at * tile.token_bytes(), scales, d, values);
    return values[0];
  } else {
    return Element::template load<S>(tile.v[run] + at * tile.padded_dim + d);
  }
}

// out += sum over a span's tokens of p[t] v_t: those at a window's ends that only some queries of a panel read.
template <class S, class Element, int kRows>
TIDEMILL_INLINE void extra_values(const AttentionTile<Element>& tile, const float* p, TileSpan span, float* out) {
  for (std::int32_t t = span.begin; t < span.end; ++t) {
    for_head_vectors<S>(tile.padded_dim, [&](auto lanes, std::int32_t d) {
      using L = decltype(lanes);
      float* at = out + chunked(d, kRows);
      L::store(at, L::fma(value_vector<L>(tile, t, d), L::set(p[t]), L::load(at)));
    });
  }
}

// out_i = out_i * factor_i + the tokens that only query i and earlier ones of its panel read; the factor is then 1.
template <class S, class Element, int kRows>
TIDEMILL_INLINE void leading_values(const AttentionTile<Element>& tile, const float* p, float* factor, TileSpan span,
                                    float* out) {
  for_head_vectors<S>(tile.padded_dim, [&](auto lanes, std::int32_t d) {
    using L = decltype(lanes);
    float* at = out + chunked(d, kRows);
    L::store(at, L::mul(L::load(at), L::set(*factor)));
  });
  *factor = 1.0f;
  extra_values<S, Element, kRows>(tile, p, span, out);
}

// Weighted values of a panel, kWidth vectors at a time; what is left, fewer.
template <class S, class Element, int kRows>
TIDEMILL_INLINE void common_values(const AttentionTile<Element>& tile, const float* p, std::size_t p_stride,
                                   const float* factors, TileSpan common, float* out) {
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
}

// The same where spans differ: for each query its tokens in order, its own at the window's beginning, those that all
// queries read, its own at the diagonal.
//
//     query 0   | own |  common  |             spans ascend: a later query begins and ends later
//     query 1     own |  common  | own |
//     query 2         |  common  | own   |
template <class S, class Element, int kRows>
TIDEMILL_INLINE void ragged_values(const AttentionTile<Element>& tile, const float* p, std::size_t p_stride,
                                   float* factors, const TileSpan* spans, float* out) {
  const std::int32_t begin = spans[kRows - 1].begin;
  const TileSpan common{begin, spans[0].end > begin ? spans[0].end : begin};
  for (int i = 0; i + 1 < kRows; ++i) {
    const TileSpan own{spans[i].begin, spans[i].end < begin ? spans[i].end : begin};
    if (own.empty()) continue;
    leading_values<S, Element, kRows>(tile, p + static_cast<std::size_t>(i) * p_stride, factors + i, own,
                               out + kChunkDims * i);
  }
  common_values<S, Element, kRows>(tile, p, p_stride, factors, common, out);
  for (int i = 1; i < kRows; ++i) {
    const TileSpan own{common.end, spans[i].end};
    extra_values<S, Element, kRows>(tile, p + static_cast<std::size_t>(i) * p_stride, own, out + kChunkDims * i);
  }
}

// One panel of query rows and what it has accumulated.
struct QueryPanel {
  const float* q;   // [chunk][rows][16], scaled
  float* maximums;  // [rows]
  float* sums;      // [rows][lanes]
  float* out;       // [chunk][rows][16]
  float soft_cap;   // 0: none
  bool whole;       // every row reads all of the tile
  TileSpan spans[kPanelQueries];  // else, tokens of the tile each row reads; begins and ends ascend
  alignas(32) RowFloats shifts;   // of the tile's step of the softmax, as the scores leave them
  alignas(32) RowFloats factors;
};

// p[i][t] = the scores of the panel's row i, and the maximums that follow from them.
template <class S, class Element, int kRows>
void score_panel(const AttentionTile<Element>& tile, QueryPanel& panel, float* p) {
  const TileSpan span = panel.whole ? kWholeTile : TileSpan{panel.spans[0].begin, panel.spans[kRows - 1].end};
  panel_scores<S, Element, kRows>(tile, panel.q, span, p, kTileTokens);
  if (panel.soft_cap != 0.0f) {
    for (int i = 0; i < kRows; ++i) {
      cap_scores<S>(p + i * kTileTokens, panel.whole ? kWholeTile : panel.spans[i], panel.soft_cap);
    }
  }
  if (panel.whole) {
    raise_maximums<S, kRows, true>(p, kTileTokens, panel.spans, panel.maximums, panel.shifts, panel.factors);
  } else {
    raise_maximums<S, kRows, false>(p, kTileTokens, panel.spans, panel.maximums, panel.shifts, panel.factors);
  }
}

// The rest, from the scores: weights and values.
template <class S, class Element, int kRows>
void finish_panel(const AttentionTile<Element>& tile, QueryPanel& panel, float* p) {
  if (panel.whole) {
    weigh_panel<S, kRows, true>(p, kTileTokens, panel.spans, panel.shifts, panel.factors, panel.sums);
    common_values<S, Element, kRows>(tile, p, kTileTokens, panel.factors, kWholeTile, panel.out);
  } else {
    weigh_panel<S, kRows, false>(p, kTileTokens, panel.spans, panel.shifts, panel.factors, panel.sums);
    ragged_values<S, Element, kRows>(tile, p, kTileTokens, panel.factors, panel.spans, panel.out);
  }
}

// The two for each number of rows.
template <class S, class Element>
struct PanelSteps {
  using Step = void (*)(const AttentionTile<Element>& tile, QueryPanel& panel, float* p);

  static constexpr Step kScore[] = {score_panel<S, Element, 1>, score_panel<S, Element, 2>, score_panel<S, Element, 3>,
                                    score_panel<S, Element, 4>, score_panel<S, Element, 5>, score_panel<S, Element, 6>};
  static constexpr Step kFinish[] = {finish_panel<S, Element, 1>, finish_panel<S, Element, 2>,
                                     finish_panel<S, Element, 3>, finish_panel<S, Element, 4>,
                                     finish_panel<S, Element, 5>, finish_panel<S, Element, 6>};
};

}  // namespace tidemill
