// The slow twin of tiled attention: scores, softmax and values as stages over a whole score matrix in memory.
#pragma once
#include "attention_impl.h"

namespace tidemill {

// Calls body(start, span) for each tile that tokens at positions first to last read.
template <class Body>
TIDEMILL_INLINE void for_tiles(const AttentionCall& call, std::int32_t first, std::int32_t last, Body body) {
  std::int32_t start = call.first_read(first) / kTileTokens * kTileTokens;
  for (; start <= last; start += kTileTokens) body(start, span_read(call, first, last, start));
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
    load_queries<S>(call, row, task, r - task.begin, 1, scratch);
    float* p = score_row(call, row, r / group, task.kv_head * group + r % group);
    const std::int32_t position = row.start + r / group;
    for_tiles(call, position, call.last_read(row, position), [&](std::int32_t start, TileSpan span) {
      const auto tile = tile_of<OnceElement<Element>>(call.kv, row.table, task.kv_head, start, span);
      panel_scores<S, OnceElement<Element>, 1>(tile, scratch, span, p + start, 0);
      if (call.soft_cap != 0.0f) cap_scores<S>(p + start, span, call.soft_cap);
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
    alignas(64) float sums[S::kLanes];
    begin_softmax<S>(call, task.kv_head * group + r % group, &maximum, sums);
    alignas(32) RowFloats shifts, factors;
    raise_maximums<S, 1, false>(p, 0, &span, &maximum, shifts, factors);
    weigh_panel<S, 1, false>(p, 0, &span, shifts, factors, sums);
    const auto total = S::set(S::sum(S::load(sums)));
    const TileSpan lanes = lanes_around<S>(span);
    for (std::int32_t t = lanes.begin; t < lanes.end; t += S::kLanes) S::store(p + t, S::div(S::load(p + t), total));
  }
}

template <class S, class Element>
void materialised_values(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task,
                         float* scratch) {
  const std::int32_t group = call.group();
  const std::int32_t padded = call.kv.padded_dim();
  for (std::int32_t r = task.begin; r < task.end; ++r) {
    const float* p = score_row(call, row, r / group, task.kv_head * group + r % group);
    for (std::int32_t d = 0; d < padded; d += 8) S::Eight::store(scratch + d, S::Eight::zero());
    const std::int32_t position = row.start + r / group;
    for_tiles(call, position, call.last_read(row, position), [&](std::int32_t start, TileSpan span) {
      const auto tile = tile_of<OnceElement<Element>>(call.kv, row.table, task.kv_head, start, span);
      extra_values<S, OnceElement<Element>, 1>(tile, p + start, span, scratch);
    });
    normalise<S>(scratch, 1, 1.0f, call.kv.head_dim, query_output(call, row, task, r));
  }
}

template <class S, class Element>
constexpr AttentionKernels attention_kernels() {
  return {write_kv<S, Element>, attend<S, Element>, merge<S>, materialised_scores<S, Element>, materialised_softmax<S>,
          materialised_values<S, Element>};
}

}  // namespace tidemill
