// Attention kernels of one instruction set S (see simd.h) and one KV element type.
#pragma once
#include "attention.h"
#include "norm_impl.h"
#include "rope_impl.h"
#include "simd.h"

namespace tidemill {

struct F16Element {
  using Type = std::uint16_t;
  template <class S>
  static TIDEMILL_INLINE typename S::V load(const Type* p) {
    return S::load_half(p);
  }
};

struct F32Element {
  using Type = float;
  template <class S>
  static TIDEMILL_INLINE typename S::V load(const Type* p) {
    return S::load(p);
  }
};

TIDEMILL_INLINE void store_element(std::uint16_t* p, float x) { *p = float_to_half(x); }
TIDEMILL_INLINE void store_element(float* p, float x) { *p = x; }

template <class Element>
struct AttentionTile {
  using Type = typename Element::Type;
  const Type* k[kTileTokens / 16];  // one per block of the tile
  const Type* v[kTileTokens / 16];
  std::int32_t block_size;
  std::int32_t head_dim;
  std::int32_t padded_dim;
};

// Tokens [begin, end) of a tile, counted from its start; empty where end <= begin, and then begin or end may lie outside
// the tile.
struct TileSpan {
  std::int32_t begin;
  std::int32_t end;

  TIDEMILL_INLINE bool empty() const { return end <= begin; }
};

// The part of a tile that tokens at positions first to last read together.
TIDEMILL_INLINE TileSpan span_read(const AttentionCall& call, std::int32_t first, std::int32_t last,
                                   std::int32_t tile_start) {
  const std::int32_t begin = call.first_read(first) - tile_start;
  const std::int32_t end = last + 1 - tile_start;
  return {begin > 0 ? begin : 0, end < kTileTokens ? end : kTileTokens};
}

// Calls body(start, span) for each tile that tokens at positions first to last read.
template <class Body>
TIDEMILL_INLINE void for_tiles(const AttentionCall& call, std::int32_t first, std::int32_t last, Body body) {
  std::int32_t start = call.first_read(first) / kTileTokens * kTileTokens;
  for (; start <= last; start += kTileTokens) body(start, span_read(call, first, last, start));
}

// The blocks that hold a span of the tile at tile_start; the others are null.
template <class Element>
TIDEMILL_INLINE AttentionTile<Element> tile_of(const KvLayer& kv, const std::int32_t* table, std::int32_t kv_head,
                               std::int32_t tile_start, TileSpan span) {
  using Type = typename Element::Type;
  AttentionTile<Element> tile{{}, {}, kv.block_size, kv.head_dim, kv.padded_dim()};
  const std::int32_t first = tile_start / kv.block_size;
  const std::int32_t blocks = (span.end + kv.block_size - 1) / kv.block_size;
  for (std::int32_t b = span.begin / kv.block_size; b < blocks; ++b) {
    tile.k[b] = reinterpret_cast<const Type*>(kv.keys(table[first + b], kv_head));
    tile.v[b] = reinterpret_cast<const Type*>(kv.values(table[first + b], kv_head));
  }
  return tile;
}

// Vectors of eight that one inner loop carries per query row: enough independent sums to hide the latency of an fma,
// as many as the registers hold. Every sum has the same order whatever the number.
constexpr int vectors_per_row(int rows) { return rows <= 3 ? 4 : 2; }

// p[i][t] = q_i . k_t for 8 * kVectors tokens from t on.
template <class S, class Element, int kRows, int kVectors>
TIDEMILL_INLINE void token_scores(const AttentionTile<Element>& tile, const float* q, std::int32_t t, float* p,
                                  std::size_t p_stride) {
  using V = typename S::V;
  const typename Element::Type* k[kVectors / 2];  // sixteen tokens lie in one block, the next sixteen maybe in another
  TIDEMILL_UNROLL for (int w = 0; w < kVectors / 2; ++w) {
    const std::int32_t at = t + 16 * w;
    const std::int32_t block = at / tile.block_size;
    k[w] = tile.k[block] + (at - block * tile.block_size);
  }
  V acc[kRows][kVectors];
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) acc[i][w] = S::zero();
  }
  for (std::int32_t d = 0; d < tile.head_dim; ++d) {
    V keys[kVectors];
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) keys[w] = Element::template load<S>(k[w / 2] + 8 * (w % 2));
    TIDEMILL_UNROLL for (int w = 0; w < kVectors / 2; ++w) k[w] += tile.block_size;
    TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
      const V x = S::set(q[d * kRows + i]);
      TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) acc[i][w] = S::fma(keys[w], x, acc[i][w]);
    }
  }
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kVectors; ++w) {
      S::store(p + static_cast<std::size_t>(i) * p_stride + t + 8 * w, acc[i][w]);
    }
  }
}

// Scores of a span, rounded out to multiples of 16 (within its blocks): what the rest holds is masked by the caller.
template <class S, class Element, int kRows>
TIDEMILL_INLINE void panel_scores(const AttentionTile<Element>& tile, const float* q, TileSpan span, float* p,
                                  std::size_t p_stride) {
  constexpr int kVectors = vectors_per_row(kRows);
  std::int32_t t = span.begin / 16 * 16;
  for (; t + 8 * kVectors <= (span.end + 15) / 16 * 16; t += 8 * kVectors) {
    token_scores<S, Element, kRows, kVectors>(tile, q, t, p, p_stride);
  }
  for (; t < span.end; t += 16) token_scores<S, Element, kRows, 2>(tile, q, t, p, p_stride);
}

// The whole vectors of eight around the scores of a span.
TIDEMILL_INLINE TileSpan lanes_around(TileSpan span) { return {span.begin / 8 * 8, (span.end + 7) / 8 * 8}; }

template <class S>
TIDEMILL_INLINE void cap_scores(float* p, TileSpan span, float soft_cap_or_zero) {
  if (soft_cap_or_zero == 0.0f) return;
  const TileSpan lanes = lanes_around(span);
  soft_cap<S>(p + lanes.begin, soft_cap_or_zero, lanes.end - lanes.begin, p + lanes.begin);
}

// A query's softmax before its first tile.
template <class S>
TIDEMILL_INLINE void begin_softmax(const AttentionCall& call, std::int32_t head, float* maximum, float* sums) {
  S::store(sums, S::zero());
  *maximum = call.sinks == nullptr ? -__builtin_inff() : call.sinks[head];
  if (call.sinks != nullptr) sums[0] = 1.0f;
}

// The tile's step of one query's softmax: scores become weights, the new maximum and sums are kept, the factor for
// what was accumulated before is returned. Tokens outside the span, which must not be empty, weigh nothing.
template <class S>
TIDEMILL_INLINE float softmax_step(float* p, TileSpan span, float* maximum, float* sums) {
  using V = typename S::V;
  const float lowest = -__builtin_inff();
  const TileSpan lanes = lanes_around(span);
  for (std::int32_t t = lanes.begin; t < span.begin; ++t) p[t] = lowest;
  for (std::int32_t t = span.end; t < lanes.end; ++t) p[t] = lowest;
  V best = S::set(lowest);
  for (std::int32_t t = lanes.begin; t < lanes.end; t += 8) best = S::max(best, S::load(p + t));
  const float before = *maximum;
  const float tile_max = S::max_lane(best);
  const float now = tile_max > before ? tile_max : before;
  float factor = 1.0f;
  if (now != before) {
    float lanes[S::kLanes];
    S::store(lanes, simd::exp<S>(S::set(before - now)));
    factor = lanes[0];
  }
  *maximum = now;
  V total = S::mul(S::load(sums), S::set(factor));
  const V shift = S::set(now);
  for (std::int32_t t = lanes.begin; t < lanes.end; t += 8) {
    const V weight = simd::exp<S>(S::sub(S::load(p + t), shift));
    S::store(p + t, weight);
    total = S::add(total, weight);
  }
  S::store(sums, total);
  return factor;
}

// out_i = out_i * factor_i + sum over a span's tokens of p[i][t] v_t, tokens in order, kWidth vectors of eight at d.
template <class S, class Element, int kRows, int kWidth>
TIDEMILL_INLINE void panel_values(const AttentionTile<Element>& tile, const float* p, std::size_t p_stride,
                                  const float* factors, TileSpan span, std::int32_t d, float* const* out) {
  using V = typename S::V;
  V acc[kRows][kWidth];
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) {
      acc[i][w] = S::mul(S::load(out[i] + d + 8 * w), S::set(factors[i]));
    }
  }
  for (std::int32_t t = span.begin; t < span.end;) {
    const std::int32_t block = t / tile.block_size;
    const std::int32_t first = block * tile.block_size;
    const auto* v = tile.v[block] + static_cast<std::size_t>((t - first) * tile.padded_dim + d);
    const std::int32_t end = first + tile.block_size < span.end ? first + tile.block_size : span.end;
    for (; t < end; ++t) {
      V values[kWidth];
      TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) values[w] = Element::template load<S>(v + 8 * w);
      v += tile.padded_dim;
      TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
        const V x = S::set(p[static_cast<std::size_t>(i) * p_stride + static_cast<std::size_t>(t)]);
        TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) acc[i][w] = S::fma(values[w], x, acc[i][w]);
      }
    }
  }
  TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
    TIDEMILL_UNROLL for (int w = 0; w < kWidth; ++w) S::store(out[i] + d + 8 * w, acc[i][w]);
  }
}

// out += sum over a span's tokens of p[t] v_t: those at a window's ends that only some queries of a panel read.
template <class S, class Element>
TIDEMILL_INLINE void extra_values(const AttentionTile<Element>& tile, const float* p, TileSpan span, float* out) {
  for (std::int32_t t = span.begin; t < span.end; ++t) {
    const std::int32_t block = t / tile.block_size;
    const auto* v = tile.v[block] + static_cast<std::size_t>(t - block * tile.block_size) *
                                        static_cast<std::size_t>(tile.padded_dim);
    const auto x = S::set(p[t]);
    for (std::int32_t d = 0; d < tile.padded_dim; d += 8) {
      S::store(out + d, S::fma(Element::template load<S>(v + d), x, S::load(out + d)));
    }
  }
}

// out_i = out_i * factor_i + the tokens that only query i and earlier ones of its panel read; the factor is then 1.
template <class S, class Element>
TIDEMILL_INLINE void leading_values(const AttentionTile<Element>& tile, const float* p, float* factor, TileSpan span,
                                    float* out) {
  for (std::int32_t d = 0; d < tile.padded_dim; d += 8) {
    S::store(out + d, S::mul(S::load(out + d), S::set(*factor)));
  }
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
  constexpr int kVectors = vectors_per_row(kRows);
  std::int32_t d = 0;
  for (; d + 8 * kVectors <= tile.padded_dim; d += 8 * kVectors) {
    panel_values<S, Element, kRows, kVectors>(tile, p, p_stride, factors, common, d, out);
  }
  for (; d < tile.padded_dim; d += 8) {
    panel_values<S, Element, kRows, 1>(tile, p, p_stride, factors, common, d, out);
  }
  for (int i = 1; i < kRows; ++i) {
    const TileSpan own{common.end, spans[i].end};
    extra_values<S, Element>(tile, p + static_cast<std::size_t>(i) * p_stride, own, out[i]);
  }
}

// One panel of query rows and what it has accumulated.
struct QueryPanel {
  const float* q;  // [dim][rows], scaled
  float* maximum;  // [rows]
  float* sums;     // [rows][8]
  float soft_cap;  // 0: none
  float* out[kPanelQueries];
  TileSpan spans[kPanelQueries];  // tokens of the tile each row reads; begins and ends ascend
};

template <class S, class Element, int kRows>
void attend_panel(const AttentionTile<Element>& tile, const QueryPanel& panel) {
  alignas(32) float p[kRows * kTileTokens];
  float factors[kRows];
  panel_scores<S, Element, kRows>(tile, panel.q, {panel.spans[0].begin, panel.spans[kRows - 1].end}, p, kTileTokens);
  for (int i = 0; i < kRows; ++i) {
    factors[i] = 1.0f;
    if (panel.spans[i].empty()) continue;
    cap_scores<S>(p + i * kTileTokens, panel.spans[i], panel.soft_cap);
    factors[i] = softmax_step<S>(p + i * kTileTokens, panel.spans[i], panel.maximum + i, panel.sums + 8 * i);
  }
  panel_output<S, Element, kRows>(tile, p, kTileTokens, factors, panel.spans, panel.out);
}

template <class S, class Element>
void attend_panel(int rows, const AttentionTile<Element>& tile, const QueryPanel& panel) {
  switch (rows) {
    case 1: return attend_panel<S, Element, 1>(tile, panel);
    case 2: return attend_panel<S, Element, 2>(tile, panel);
    case 3: return attend_panel<S, Element, 3>(tile, panel);
    case 4: return attend_panel<S, Element, 4>(tile, panel);
    case 5: return attend_panel<S, Element, 5>(tile, panel);
    default: return attend_panel<S, Element, 6>(tile, panel);
  }
}

// Walks a task's query rows panel by panel: body(first query row, rows, its panel).
template <class Body>
TIDEMILL_INLINE void for_panels(const AttentionTask& task, Body body) {
  for (std::int32_t r = task.begin; r < task.end; r += kPanelQueries) {
    body(r, task.end - r < kPanelQueries ? task.end - r : kPanelQueries);
  }
}

// Copies the task's queries as panels of [dim][rows], roped and scaled.
template <class S>
void load_queries(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task, float* panels) {
  const std::int32_t dim = call.kv.head_dim;
  const std::int32_t group = call.group();
  alignas(32) float head[kMaxHeadDim];
  for_panels(task, [&](std::int32_t first, int rows) {
    float* panel = panels + static_cast<std::size_t>(first - task.begin) * static_cast<std::size_t>(dim);
    for (int i = 0; i < rows; ++i) {
      const std::int32_t token = (first + i) / group;
      const std::int32_t q_head = task.kv_head * group + (first + i) % group;
      const float* q = call.q + static_cast<std::size_t>(row.first_token + token) * call.q_stride +
                       static_cast<std::size_t>(q_head * dim);
      if (call.rope_cos != nullptr) {
        const auto at = static_cast<std::size_t>(row.start + token) * static_cast<std::size_t>(call.rope_half);
        rope_head<S>(q, dim, call.rope_cos + at, call.rope_sin + at, call.rope_half, head);
        q = head;
      }
      for (std::int32_t d = 0; d < dim; ++d) panel[d * rows + i] = q[d] * call.scale;
    }
  });
}

template <class S>
TIDEMILL_INLINE float* query_output(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task,
                                    std::int32_t query) {
  const std::int32_t group = call.group();
  return call.out + static_cast<std::size_t>(row.first_token + query / group) * call.out_stride +
         static_cast<std::size_t>((task.kv_head * group + query % group) * call.kv.head_dim);
}

// out = accumulated / total, for one query.
template <class S>
TIDEMILL_INLINE void normalise(const float* accumulated, float total, std::int32_t dim, float* out) {
  const auto divisor = S::set(total);
  simd::for_lanes<S>(dim, [&](int d, int lanes) {
    simd::store<S>(out + d, S::div(S::load(accumulated + d), divisor), lanes);
  });
}

// A tile's K and V in float32, so that many panels convert them once. Conversion is exact: bits stay the same.
template <class S, class Element>
AttentionTile<F32Element> widen_tile(const AttentionTile<Element>& tile, TileSpan span, float* buffer) {
  AttentionTile<F32Element> wide{{}, {}, tile.block_size, tile.head_dim, tile.padded_dim};
  const std::int32_t blocks = (span.end + tile.block_size - 1) / tile.block_size;
  const std::int32_t size = tile.block_size * tile.padded_dim;
  for (std::int32_t b = span.begin / tile.block_size; b < blocks; ++b) {
    float* k = buffer + static_cast<std::size_t>(2 * b) * static_cast<std::size_t>(size);
    float* v = k + size;
    for (std::int32_t i = 0; i < size; i += 8) {
      S::store(k + i, Element::template load<S>(tile.k[b] + i));
      S::store(v + i, Element::template load<S>(tile.v[b] + i));
    }
    wide.k[b] = k;
    wide.v[b] = v;
  }
  return wide;
}

// A task's queries and what they have accumulated, in a thread's scratch.
struct QueryState {
  float* queries;   // panels of [dim][rows]
  float* outputs;   // [query][padded dim], not yet divided by the sum
  float* maximums;  // [query]
  float* sums;      // [query][8]
  float* wide;      // one tile of K and V in float32

  static TIDEMILL_INLINE QueryState in(float* scratch, std::int32_t padded_dim) {
    const auto values = static_cast<std::size_t>(kTaskQueries) * static_cast<std::size_t>(padded_dim);
    float* maximums = scratch + 2 * values;
    return {scratch, scratch + values, maximums, maximums + kTaskQueries, maximums + 9 * kTaskQueries};
  }
};

template <class S, class Element>
void attend_tile(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task,
                 const AttentionTile<Element>& tile, std::int32_t tile_start, const QueryState& state) {
  const std::int32_t group = call.group();
  for_panels(task, [&](std::int32_t first, int rows) {
    const std::int32_t local = first - task.begin;
    QueryPanel panel{state.queries + static_cast<std::size_t>(local) * static_cast<std::size_t>(tile.head_dim),
                     state.maximums + local, state.sums + 8 * local, call.soft_cap, {}, {}};
    for (int i = 0; i < rows; ++i) {
      const std::int32_t position = row.start + (first + i) / group;
      panel.spans[i] = span_read(call, position, call.last_read(row, position), tile_start);
      panel.out[i] = state.outputs + static_cast<std::size_t>((local + i) * tile.padded_dim);
    }
    const bool behind = panel.spans[0].begin >= kTileTokens;
    const bool ahead = panel.spans[rows - 1].end <= 0;
    if (!behind && !ahead) attend_panel<S, Element>(rows, tile, panel);
  });
}

template <class S, class Element>
void attend(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task, float* scratch) {
  const std::int32_t padded = call.kv.padded_dim();
  const std::int32_t queries = task.end - task.begin;
  const std::int32_t group = call.group();
  const QueryState state = QueryState::in(scratch, padded);
  load_queries<S>(call, row, task, state.queries);
  for (std::int32_t r = 0; r < queries; ++r) {
    begin_softmax<S>(call, task.kv_head * group + (task.begin + r) % group, state.maximums + r, state.sums + 8 * r);
  }
  for (std::int32_t i = 0; i < padded * queries; i += 8) S::store(state.outputs + i, S::zero());
  const std::int32_t last = call.last_read(row, row.start + (task.end - 1) / group);
  for_tiles(call, row.start + task.begin / group, last, [&](std::int32_t start, TileSpan span) {
    const auto tile = tile_of<Element>(call.kv, row.table, task.kv_head, start, span);
    if (queries > 2 * kPanelQueries && sizeof(typename Element::Type) < sizeof(float)) {
      attend_tile<S>(call, row, task, widen_tile<S>(tile, span, state.wide), start, state);
    } else {
      attend_tile<S>(call, row, task, tile, start, state);
    }
  });
  for (std::int32_t r = 0; r < queries; ++r) {
    normalise<S>(state.outputs + static_cast<std::size_t>(r * padded), S::sum(S::load(state.sums + 8 * r)),
                 call.kv.head_dim, query_output<S>(call, row, task, task.begin + r));
  }
}

template <class S, class Element>
void write_kv(const AttentionCall& call, const AttentionRow& row, std::int32_t begin, std::int32_t end) {
  using Type = typename Element::Type;
  const std::int32_t dim = call.kv.head_dim;
  const std::int32_t padded = call.kv.padded_dim();
  const std::int32_t block_size = call.kv.block_size;
  alignas(32) float head[kMaxHeadDim];
  for (std::int32_t token = begin; token < end; ++token) {
    const std::int32_t position = row.start + token;
    const std::int32_t block = row.table[position / block_size];
    const std::int32_t slot = position % block_size;
    const auto step_row = static_cast<std::size_t>(row.first_token + token);
    for (std::int32_t h = 0; h < call.kv.kv_heads; ++h) {
      const float* k = call.k + step_row * call.k_stride + static_cast<std::size_t>(h * dim);
      const float* v = call.v + step_row * call.v_stride + static_cast<std::size_t>(h * dim);
      if (call.rope_cos != nullptr) {
        const auto at = static_cast<std::size_t>(position) * static_cast<std::size_t>(call.rope_half);
        rope_head<S>(k, dim, call.rope_cos + at, call.rope_sin + at, call.rope_half, head);
        k = head;
      }
      Type* keys = reinterpret_cast<Type*>(call.kv.keys(block, h)) + slot;
      Type* values = reinterpret_cast<Type*>(call.kv.values(block, h)) + slot * padded;
      for (std::int32_t d = 0; d < dim; ++d) store_element(keys + d * block_size, k[d]);
      for (std::int32_t d = 0; d < dim; ++d) store_element(values + d, v[d]);
      for (std::int32_t d = dim; d < padded; ++d) store_element(values + d, 0.0f);
    }
  }
}

// Materialised form: the score row of (token, head) is scores + scores_offset + (token * heads + head) * row length.
TIDEMILL_INLINE float* score_row(const AttentionCall& call, const AttentionRow& row, std::int32_t token,
                                 std::int32_t head) {
  const std::size_t length = score_row_floats(row.start + row.tokens);
  return call.scores + row.scores_offset +
         (static_cast<std::size_t>(token) * static_cast<std::size_t>(call.heads) + static_cast<std::size_t>(head)) *
             length;
}

template <class S, class Element>
void materialised_scores(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task,
                         float* scratch) {
  const std::int32_t group = call.group();
  for (std::int32_t r = task.begin; r < task.end; ++r) {
    load_queries<S>(call, row, AttentionTask{task.row, task.kv_head, r, r + 1}, scratch);
    float* p = score_row(call, row, r / group, task.kv_head * group + r % group);
    const std::int32_t position = row.start + r / group;
    for_tiles(call, position, call.last_read(row, position), [&](std::int32_t start, TileSpan span) {
      const auto tile = tile_of<Element>(call.kv, row.table, task.kv_head, start, span);
      panel_scores<S, Element, 1>(tile, scratch, span, p + start, 0);
      cap_scores<S>(p + start, span, call.soft_cap);
    });
  }
}

// Weights in place of scores, already divided by their sum.
template <class S>
void materialised_softmax(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task, float*) {
  const std::int32_t group = call.group();
  for (std::int32_t r = task.begin; r < task.end; ++r) {
    float* p = score_row(call, row, r / group, task.kv_head * group + r % group);
    const std::int32_t position = row.start + r / group;
    const TileSpan span{call.first_read(position), call.last_read(row, position) + 1};
    float maximum;
    alignas(32) float sums[S::kLanes];
    begin_softmax<S>(call, task.kv_head * group + r % group, &maximum, sums);
    softmax_step<S>(p, span, &maximum, sums);
    const auto total = S::set(S::sum(S::load(sums)));
    const TileSpan lanes = lanes_around(span);
    for (std::int32_t t = lanes.begin; t < lanes.end; t += 8) S::store(p + t, S::div(S::load(p + t), total));
  }
}

template <class S, class Element>
void materialised_values(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task,
                         float* scratch) {
  const std::int32_t group = call.group();
  const std::int32_t padded = call.kv.padded_dim();
  for (std::int32_t r = task.begin; r < task.end; ++r) {
    const float* p = score_row(call, row, r / group, task.kv_head * group + r % group);
    for (std::int32_t d = 0; d < padded; d += 8) S::store(scratch + d, S::zero());
    const std::int32_t position = row.start + r / group;
    for_tiles(call, position, call.last_read(row, position), [&](std::int32_t start, TileSpan span) {
      const auto tile = tile_of<Element>(call.kv, row.table, task.kv_head, start, span);
      extra_values<S, Element>(tile, p + start, span, scratch);
    });
    normalise<S>(scratch, 1.0f, call.kv.head_dim, query_output<S>(call, row, task, r));
  }
}

template <class S, class Element>
constexpr AttentionKernels attention_kernels() {
  return {write_kv<S, Element>, attend<S, Element>, materialised_scores<S, Element>, materialised_softmax<S>,
          materialised_values<S, Element>};
}

}  // namespace tidemill
