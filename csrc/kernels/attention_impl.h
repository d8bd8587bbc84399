// Attention over whole tasks, for one instruction set S (see simd.h) and one KV element type.
#pragma once
#include "attention_panel.h"
#include "rope_impl.h"

namespace tidemill {

inline constexpr std::int32_t kHalfPanel = kPanelQueries / 2;

// A panel of query rows of a task, and where each of them stands.
struct PanelPlace {
  std::int32_t first;  // row, counted from the task's first
  int rows;
  std::int32_t positions[kPanelQueries];  // ascending

  TIDEMILL_INLINE std::int32_t first_position() const { return positions[0]; }
  TIDEMILL_INLINE std::int32_t last_position() const { return positions[rows - 1]; }
};

// All panels of a task.
struct TaskPanels {
  int count = 0;
  PanelPlace places[kTaskPanels];

  TIDEMILL_INLINE TaskPanels(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task) {
    const std::int32_t group = call.group();
    std::int32_t position = row.start + task.begin / group;
    std::int32_t head = task.begin % group;
    for (std::int32_t r = task.begin; r < task.end; r += kPanelQueries) {
      PanelPlace& place = places[count++];
      place.first = r - task.begin;
      place.rows = task.end - r < kPanelQueries ? task.end - r : kPanelQueries;
      for (int i = 0; i < place.rows; ++i) {
        place.positions[i] = position;
        if (++head == group) head = 0, ++position;
      }
    }
  }
  TIDEMILL_INLINE const PanelPlace* begin() const { return places; }
  TIDEMILL_INLINE const PanelPlace* end() const { return places + count; }
};

TIDEMILL_INLINE const float* query_input(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task,
                                         std::int32_t query) {
  const std::int32_t group = call.group();
  return call.q + static_cast<std::size_t>(row.first_token + query / group) * call.q_stride +
         static_cast<std::size_t>((task.kv_head * group + query % group) * call.kv.head_dim);
}

TIDEMILL_INLINE float* query_output(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task,
                                    std::int32_t query) {
  const std::int32_t group = call.group();
  return call.out + static_cast<std::size_t>(row.first_token + query / group) * call.out_stride +
         static_cast<std::size_t>((task.kv_head * group + query % group) * call.kv.head_dim);
}

// Fetches one head's numbers: inputs and outputs of a panel lie apart, where no pattern that a processor knows finds them.
TIDEMILL_INLINE void fetch_head(const float* p, std::int32_t dim) {
  for (std::int32_t d = 0; d < dim; d += 16) __builtin_prefetch(p + d);
  __builtin_prefetch(p + dim - 1);
}

// Row i of a panel: copies a query, roped and scaled.
template <class S>
TIDEMILL_INLINE void load_query(const AttentionCall& call, const AttentionRow& row, std::int32_t token, const float* q,
                                int rows, float* at) {
  const std::int32_t dim = call.kv.head_dim;
  alignas(64) float roped[kMaxHeadDim];
  if (call.rope_cos != nullptr) {
    const auto angle = static_cast<std::size_t>(row.start + token) * static_cast<std::size_t>(call.rope_half);
    rope_head<S>(q, dim, call.rope_cos + angle, call.rope_sin + angle, call.rope_half, roped);
    q = roped;
  }
  const auto scale = S::set(call.scale);
  for (std::int32_t d = 0; d < dim; d += kChunkDims, at += rows * kChunkDims) {
    const int left = dim - d < kChunkDims ? dim - d : kChunkDims;
    simd::for_lanes<S>(left, [&](int i, int lanes) { S::store(at + i, S::mul(simd::load<S>(q + d + i, lanes), scale)); });
  }
}

// A panel's queries, to where the panel begins.
template <class S>
TIDEMILL_INLINE void load_queries(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task,
                                  std::int32_t first, int rows, float* panel) {
  for (int i = 0; i < rows; ++i) {
    const std::int32_t r = task.begin + first + i;
    load_query<S>(call, row, r / call.group(), query_input(call, row, task, r), rows, panel + kChunkDims * i);
  }
}

// Calls body(r) for so many of the task's query rows, from this one on, as there are.
template <class Body>
TIDEMILL_INLINE void for_queries(const AttentionTask& task, std::int32_t first, std::int32_t count, Body body) {
  const std::int32_t begin = task.begin + first;
  for (std::int32_t r = begin; r < begin + count && r < task.end; ++r) body(r);
}

// out = accumulated / total, for one query of a panel of so many rows. Zeros become positive: a segment that was merged
// into nothing has no others.
template <class S>
TIDEMILL_INLINE void normalise(const float* accumulated, int rows, float total, std::int32_t dim, float* out) {
  const auto factor = S::set(1.0f / total);
  simd::for_lanes<S>(dim, [&](int d, int lanes) {
    simd::store<S>(out + d, S::fma(S::load(accumulated + chunked(d, rows)), factor, S::zero()), lanes);
  });
}

// Softmaxes under way: of each query the largest score so far, sums of weights lane by lane, and weighted values.
struct Accumulators {
  float* maximums;  // [query]
  float* sums;      // [query][lanes]
  float* outputs;   // [panel][chunk][row][16], not yet divided by the sum
  std::int32_t padded_dim;

  // In attention_state_floats(queries, dim) floats, aligned to 64 bytes.
  static TIDEMILL_INLINE Accumulators in(float* floats, std::int32_t queries, std::int32_t padded_dim) {
    float* sums = floats + static_cast<std::size_t>((queries + 15) / 16 * 16);
    return {floats, sums, sums + static_cast<std::size_t>(queries) * kMaxLanes, padded_dim};
  }
  TIDEMILL_INLINE bool same(const Accumulators& other) const { return maximums == other.maximums; }
  // Of the panel that begins with this query.
  TIDEMILL_INLINE float* output(std::int32_t query) const {
    return outputs + static_cast<std::size_t>(query) * static_cast<std::size_t>(chunked_floats(padded_dim));
  }
};

// Nothing read yet, for queries [begin, end).
template <class S>
TIDEMILL_INLINE void clear(const Accumulators& state, std::int32_t begin, std::int32_t end) {
  for (std::int32_t i = begin; i < end; ++i) state.maximums[i] = kNothingRead;
  for (std::int32_t i = begin; i < end; ++i) S::store(state.sums + i * S::kLanes, S::zero());
  float* const last = state.output(end);
  for (float* at = state.output(begin); at < last; at += kChunkDims) {
    TIDEMILL_UNROLL for (int i = 0; i < kChunkDims; i += S::kLanes) S::store(at + i, S::zero());
  }
}

// A query's softmax before its first segment.
template <class S>
TIDEMILL_INLINE void begin_softmax(const AttentionCall& call, std::int32_t head, float* maximum, float* sums) {
  S::store(sums, S::zero());
  *maximum = call.sinks == nullptr ? kNothingRead : call.sinks[head];
  if (call.sinks != nullptr) sums[0] = 1.0f;
}

// Adds what a panel found in a segment to what it has found in those before. Rows that read nothing of it stay as they
// are.
template <class S>
TIDEMILL_INLINE void merge_rows(const Accumulators& into, const Accumulators& segment, std::int32_t first, int rows,
                                const bool* reads) {
  using E = typename S::Eight;
  const auto earlier = E::load_first(into.maximums + first, rows);
  const auto found = E::load_first(segment.maximums + first, rows);
  const auto now = E::max(found, earlier);
  E::store_first(into.maximums + first, now, rows);
  alignas(32) RowFloats before, own;
  E::store(before, simd::exp_falling<E>(E::sub(earlier, now)));
  E::store(own, simd::exp_falling<E>(E::sub(found, now)));
  for (int i = 0; i < rows; ++i) {
    if (!reads[i]) continue;
    float* sums = into.sums + (first + i) * S::kLanes;
    S::store(sums, S::fma(S::load(segment.sums + (first + i) * S::kLanes), S::set(own[i]),
                          S::mul(S::load(sums), S::set(before[i]))));
    float* to = into.output(first) + kChunkDims * i;
    const float* from = segment.output(first) + kChunkDims * i;
    for_head_vectors<S>(into.padded_dim, [&](auto lanes, std::int32_t d) {
      using L = decltype(lanes);
      const std::int32_t at = chunked(d, rows);
      L::store(to + at, L::fma(L::load(from + at), L::set(own[i]), L::mul(L::load(to + at), L::set(before[i]))));
    });
  }
}

// A thread's scratch for one task.
struct TaskScratch {
  float* queries;  // panels of [chunk][rows][16]
  Accumulators all;
  Accumulators segment;
  float* wide;  // one tile of K and V in float32

  static TIDEMILL_INLINE TaskScratch in(float* scratch, std::int32_t padded_dim) {
    const auto address = reinterpret_cast<std::uintptr_t>(scratch);
    float* at = scratch + (64 - address % 64) % 64 / sizeof(float);
    const std::size_t state = attention_state_floats(kTaskQueries, padded_dim);
    float* states = at + static_cast<std::size_t>(kTaskQueries) * static_cast<std::size_t>(chunked_floats(padded_dim));
    return {at, Accumulators::in(states, kTaskQueries, padded_dim),
            Accumulators::in(states + state, kTaskQueries, padded_dim), states + 2 * state};
  }
  // The panel that begins with this query.
  TIDEMILL_INLINE float* queries_of(std::int32_t query) const {
    return queries + static_cast<std::size_t>(query) * static_cast<std::size_t>(chunked_floats(all.padded_dim));
  }
};

// A panel against the tile at tile_start; false where no row reads any of it. Filled in place: a copy would be loads that
// wait for the stores just before them.
template <class S>
TIDEMILL_INLINE bool place_panel(const AttentionCall& call, const AttentionRow& row, const PanelPlace& place,
                                 std::int32_t tile_start, const float* queries, const Accumulators& into,
                                 QueryPanel& panel) {
  panel.q = queries + static_cast<std::size_t>(place.first) * static_cast<std::size_t>(chunked_floats(into.padded_dim));
  panel.maximums = into.maximums + place.first;
  panel.sums = into.sums + S::kLanes * place.first;
  panel.out = into.output(place.first);
  panel.soft_cap = call.soft_cap;
  const std::int32_t tile_end = tile_start + kTileTokens;
  const std::int32_t first_begin = call.first_read(place.first_position());
  const std::int32_t last_begin = call.first_read(place.last_position());
  const std::int32_t first_end = call.last_read(row, place.first_position()) + 1;
  const std::int32_t last_end = call.last_read(row, place.last_position()) + 1;
  panel.whole = last_begin <= tile_start && first_end >= tile_end;
  if (panel.whole) return true;
  for (int i = 0; i < place.rows; ++i) {
    const std::int32_t position = place.positions[i];
    panel.spans[i] = span_read(call, position, call.last_read(row, position), tile_start);
  }
  return first_begin < tile_end && last_end > tile_start;
}

// All panels of a task against one tile: before(place), the panel, after(place). A panel is scored before the one ahead
// of it is finished: the processor then has products to compute while it waits for a softmax.
template <class S, class Element, class Before, class After>
TIDEMILL_INLINE void attend_tile(const AttentionCall& call, const AttentionRow& row, const TaskPanels& panels,
                                 const AttentionTile<Element>& tile, std::int32_t tile_start, const float* queries,
                                 const Accumulators& into, Before before, After after) {
  using Steps = PanelSteps<S, Element>;
  struct Scored {
    const PanelPlace* place;
    QueryPanel panel;
    bool reads;  // anything of the tile
  };
  alignas(64) float p[2][kPanelQueries * kTileTokens];
  Scored scored[2];
  int side = 0;
  const auto finish = [&](int one) {
    Scored& panel = scored[one];
    if (panel.reads) Steps::kFinish[panel.place->rows - 1](tile, panel.panel, p[one]);
    after(*panel.place);
  };
  for (const PanelPlace& place : panels) {
    Scored& now = scored[side];
    now.place = &place;
    before(place);
    now.reads = place_panel<S>(call, row, place, tile_start, queries, into, now.panel);
    if (now.reads) Steps::kScore[place.rows - 1](tile, now.panel, p[side]);
    side = 1 - side;
    if (place.first != 0) finish(side);
  }
  finish(1 - side);
}

// The tiles that a task reads, in order.
template <class Element>
struct TaskTiles {
  const AttentionCall& call;
  const AttentionRow& row;
  const AttentionTask& task;
  std::int32_t first_position;  // of the task's queries
  std::int32_t last;            // last position read

  static TIDEMILL_INLINE TaskTiles of(const AttentionCall& call, const AttentionRow* rows, const AttentionTask& task) {
    const AttentionRow& row = rows[task.row];
    const std::int32_t group = call.group();
    const std::int32_t last = call.last_read(row, row.start + (task.end - 1) / group);
    const std::int32_t end = task.last_segment * kSegmentTokens;
    return {call, row, task, row.start + task.begin / group, last < end ? last : end - 1};
  }
  TIDEMILL_INLINE std::int32_t first_start() const {
    const std::int32_t read = call.first_read(first_position) / kTileTokens * kTileTokens;
    const std::int32_t begin = task.first_segment * kSegmentTokens;
    return read > begin ? read : begin;
  }
  TIDEMILL_INLINE TileSpan span(std::int32_t start) const { return span_read(call, first_position, last, start); }
  TIDEMILL_INLINE AttentionTile<Element> at(std::int32_t start) const {
    return tile_of<Element>(call.kv, row.table, task.kv_head, start, span(start));
  }
};

// A panel's share of a segment is added to what its queries found in those before.
template <class S>
TIDEMILL_INLINE void merge_panel(const AttentionCall& call, const AttentionRow& row, std::int32_t segment,
                                 const PanelPlace& place, const Accumulators& state, const Accumulators& all) {
  const std::int32_t begin = segment * kSegmentTokens;
  bool reads[kPanelQueries];
  for (int i = 0; i < place.rows; ++i) {
    const bool behind = call.first_read(place.positions[i]) >= begin + kSegmentTokens;
    const bool ahead = call.last_read(row, place.positions[i]) < begin;
    reads[i] = !behind && !ahead;
  }
  merge_rows<S>(all, state, place.first, place.rows, reads);
}

// A task's queries over its segments: begin(place) before a panel's first tile; into(segment) says where one accumulates;
// done(segment, place, state) takes what a panel found in it, which is still in the nearest cache then; end(place) after
// its last tile. All of it panel by panel, so that what waits for memory stands beside products; fetch(query, first, last)
// is called twice for each panel, with a query of it, in the first and the last tile.
template <class S, class Element, class Begin, class Fetch, class Into, class Done, class End>
TIDEMILL_INLINE void for_segments(const AttentionCall& call, const AttentionRow* rows, const AttentionTask& task,
                                  const AttentionTask* next, const TaskPanels& panels, const TaskScratch& scratch,
                                  Begin begin, Fetch fetch, Into into, Done done, End end) {
  const auto tiles = TaskTiles<Element>::of(call, rows, task);
  const bool cached = panels.count > 2;
  const std::int32_t first_start = tiles.first_start();
  std::int32_t cleared = -1;  // the segment that is under way
  AttentionTile<Element> tile = tiles.at(first_start);
  for (std::int32_t start = first_start; start <= tiles.last; start += kTileTokens) {
    const std::int32_t segment = start / kSegmentTokens;
    const Accumulators state = into(segment);
    const bool first = segment != cleared;
    const bool begins = start == first_start;
    const bool ends = start + kTileTokens > tiles.last;
    const bool last = ends || (start + kTileTokens) % kSegmentTokens == 0;
    cleared = segment;
    AttentionTile<Element> following = tile;
    if (!ends) {
      following = tiles.at(start + kTileTokens);
    } else if (next != nullptr) {
      const auto others = TaskTiles<Element>::of(call, rows, *next);
      following = others.at(others.first_start());
    }
    tile.fetch_meanwhile(following);
    const std::int32_t lines = tile.block_lines();
    const std::int32_t share = cached ? (lines + panels.count - 1) / panels.count : 0;
    std::int32_t line = 0;
    const auto before = [&](const PanelPlace& place) {
      if (begins) begin(place);
      if (begins || ends) fetch(place.first, begins, ends);
      if (first) clear<S>(state, place.first, place.first + place.rows);
      const std::int32_t to = lines - line < share ? lines : line + share;
      if (cached) tile.fetch_lines(line, to);
      line = to;
    };
    const auto after = [&](const PanelPlace& place) {
      if (begins || ends) fetch(place.first + kHalfPanel, begins, ends);
      if (last) done(segment, place, state);
      if (ends) end(place);
    };
    if (cached) {
      const auto wide = wide_tile<S>(tile, tiles.span(start), scratch.wide);
      attend_tile<S>(call, tiles.row, panels, wide, start, scratch.queries, state, before, after);
    } else {
      attend_tile<S>(call, tiles.row, panels, tile, start, scratch.queries, state, before, after);
    }
    tile = following;
  }
}

// A panel before any segment.
template <class S>
TIDEMILL_INLINE void begin_panel(const AttentionCall& call, const AttentionTask& task, const PanelPlace& place,
                                 const Accumulators& all) {
  const std::int32_t group = call.group();
  clear<S>(all, place.first, place.first + place.rows);
  for (std::int32_t r = place.first; r < place.first + place.rows; ++r) {
    begin_softmax<S>(call, task.kv_head * group + (task.begin + r) % group, all.maximums + r, all.sums + S::kLanes * r);
  }
}

// After the last.
template <class S>
TIDEMILL_INLINE void end_panel(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task,
                               const PanelPlace& place, const Accumulators& all) {
  for (int i = 0; i < place.rows; ++i) {
    const std::int32_t r = place.first + i;
    normalise<S>(all.output(place.first) + kChunkDims * i, place.rows, S::sum(S::load(all.sums + S::kLanes * r)),
                 call.kv.head_dim, query_output(call, row, task, task.begin + r));
  }
}

TIDEMILL_INLINE Accumulators kept_segment(const AttentionCall& call, const AttentionTask& task, std::int32_t segment) {
  const std::int32_t queries = task.end - task.begin;
  const std::size_t size = attention_state_floats(queries, call.kv.padded_dim());
  const auto index = static_cast<std::size_t>(segment - task.first_kept);
  return Accumulators::in(call.states + task.states + index * size, queries, call.kv.padded_dim());
}

// The whole of a task's queries; or of a part of their context its segments, which merge adds up. Both do the same sums
// in the same order: without sinks the first segment is merged into nothing, so it accumulates where that would be.
template <class S, class Element>
void attend(const AttentionCall& call, const AttentionRow* rows, const AttentionTask& task, const AttentionTask* next,
            float* floats) {
  const AttentionRow& row = rows[task.row];
  const TaskScratch scratch = TaskScratch::in(floats, call.kv.padded_dim());
  const TaskPanels panels(call, row, task);
  const auto fetch_input = [&](std::int32_t r) { fetch_head(query_input(call, row, task, r), call.kv.head_dim); };
  const auto fetch_output = [&](std::int32_t r) { fetch_head(query_output(call, row, task, r), call.kv.head_dim); };
  // Half a panel at a time: more would wait for each other.
  const auto fetch = [&](std::int32_t query, bool first, bool last) {
    if (first) for_queries(task, query + 2 * kPanelQueries, kHalfPanel, fetch_input);
    if (last) for_queries(task, query + kPanelQueries, kHalfPanel, fetch_output);
  };
  const auto load = [&](const PanelPlace& place) {
    load_queries<S>(call, row, task, place.first, place.rows, scratch.queries_of(place.first));
  };
  for_queries(task, 0, 2 * kPanelQueries, fetch_input);
  if (task.is_part()) {
    for_segments<S, Element>(
        call, rows, task, next, panels, scratch, load, fetch,
        [&](std::int32_t segment) { return kept_segment(call, task, segment); },
        [](std::int32_t, const PanelPlace&, const Accumulators&) {}, [](const PanelPlace&) {});
    return;
  }
  const bool sinks = call.sinks != nullptr;
  const std::int32_t first_segment = TaskTiles<Element>::of(call, rows, task).first_start() / kSegmentTokens;
  for_segments<S, Element>(
      call, rows, task, next, panels, scratch,
      [&](const PanelPlace& place) {
        load(place);
        if (sinks) begin_panel<S>(call, task, place, scratch.all);
      },
      fetch,
      [&](std::int32_t segment) { return segment > first_segment || sinks ? scratch.segment : scratch.all; },
      [&](std::int32_t segment, const PanelPlace& place, const Accumulators& state) {
        if (!state.same(scratch.all)) merge_panel<S>(call, row, segment, place, state, scratch.all);
      },
      [&](const PanelPlace& place) { end_panel<S>(call, row, task, place, scratch.all); });
}

// Adds up the segments of a task whose parts have been attended.
template <class S>
void merge(const AttentionCall& call, const AttentionRow* rows, const AttentionTask& task, float* floats) {
  const AttentionRow& row = rows[task.row];
  const TaskScratch scratch = TaskScratch::in(floats, call.kv.padded_dim());
  for (const PanelPlace& place : TaskPanels(call, row, task)) {
    begin_panel<S>(call, task, place, scratch.all);
    for (std::int32_t segment = task.first_segment; segment < task.last_segment; ++segment) {
      merge_panel<S>(call, row, segment, place, kept_segment(call, task, segment), scratch.all);
    }
    end_panel<S>(call, row, task, place, scratch.all);
  }
}

// A token's key and value of one head, into its slot.
template <class S, class Element>
  requires(!Element::kQuantized)
TIDEMILL_INLINE void store_head(const KvLayer& kv, std::int32_t block, std::int32_t kv_head, std::int32_t slot,
                                const float* k, const float* v) {
  using Type = typename Element::Type;
  const std::int32_t padded = kv.padded_dim();
  Type* keys = reinterpret_cast<Type*>(kv.keys(block, kv_head)) + slot;
  Type* values = reinterpret_cast<Type*>(kv.values(block, kv_head)) + slot * padded;
  alignas(64) Type elements[kMaxHeadDim];
  store_elements<S>(elements, k, kv.head_dim);
  for (std::int32_t d = 0; d < kv.head_dim; ++d) keys[d * kv.block_size] = elements[d];
  store_elements<S>(values, v, kv.head_dim);
  for (std::int32_t d = kv.head_dim; d < padded; ++d) store_element(values + d, 0.0f);
}

template <class S, class Element>
  requires Element::kQuantized
TIDEMILL_INLINE void store_head(const KvLayer& kv, std::int32_t block, std::int32_t kv_head, std::int32_t slot,
                                const float* k, const float* v) {
  using Codes = typename Element::Codes;
  constexpr std::int32_t kBytes = kKvGroup * kv_bits(Codes::kFormat) / 8;  // of a group's codes
  std::uint8_t* keys = kv.keys(block, kv_head);
  std::uint8_t* values = kv.values(block, kv_head);
  auto* key_scales = reinterpret_cast<std::uint16_t*>(keys + kv.code_bytes());
  auto* value_scales = reinterpret_cast<std::uint16_t*>(values + kv.code_bytes());
  const std::int32_t groups = kv.groups();
  const auto whole_group = [&](const float* x, std::int32_t g, float* last) {  // zeros follow the last dimension
    const std::int32_t dims = kv.head_dim - g * kKvGroup;
    if (dims >= kKvGroup) return x + g * kKvGroup;
    for (std::int32_t d = 0; d < kKvGroup; ++d) last[d] = d < dims ? x[g * kKvGroup + d] : 0.0f;
    return static_cast<const float*>(last);
  };
  alignas(64) float last[kKvGroup];
  for (std::int32_t g = 0; g < groups; ++g) {
    const KvGroupCodes key = Codes::encode(whole_group(k, g, last));
    Codes::store_keys(key, keys + g * kBytes * kv.block_size + slot, kv.block_size);
    key_scales[g * kv.block_size + slot] = key.scale;
    const KvGroupCodes value = Codes::encode(whole_group(v, g, last));
    Codes::store_values(value, values + (slot * groups + g) * kBytes);
    value_scales[slot * groups + g] = value.scale;
  }
}

template <class S, class Element>
void write_kv(const AttentionCall& call, const AttentionRow& row, std::int32_t begin, std::int32_t end) {
  const std::int32_t dim = call.kv.head_dim;
  const std::int32_t block_size = call.kv.block_size;
  alignas(64) float head[kMaxHeadDim];
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
      store_head<S, Element>(call.kv, block, h, slot, k, v);
    }
  }
}

}  // namespace tidemill
