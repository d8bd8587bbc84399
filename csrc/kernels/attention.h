// Attention over paged KV, causal or, in whole sequences, not.
//
// A block of a layer is [kv_head][K as [dim][block tokens] | V as [block tokens][dim]], dim rounded up to whole vectors
// of eight. Scores of a vector of tokens need no horizontal sum, because K lies with its tokens side by side.
// In formats of whole numbers both halves are codes, then scales (kv_blocks.h); dim is rounded up to whole groups.
//
// Online softmax (Milakov & Gimelshein, arXiv:1805.02867) over tiles of 64 tokens, four of which are a segment, both at
// absolute multiples of their size whatever the block size. In each segment a (token, head) starts with nothing and
// keeps a maximum, one partial sum per lane and an output; at its end they are merged into those of the segments before,
// in ascending order. So a segment can be computed by any thread, at any time, and merged later: the order of operations
// is fixed by positions alone, and the bits do not depend on chunking, neighbours, block size or threads (rule 2).
// A head's sink comes before its first segment: the maximum is then the sink, and the sums add up to one.
// A token reads no slot beyond its own position (or the last of its sequence), so what an unwritten slot holds never
// matters.
//
// With a window of w the token at position p reads positions p - w + 1 to p: tiles wholly before are passed over, and of
// the tile in which the window begins no block before it is touched, as that may belong to another sequence by now.
//
//     tile   |----------------|----------------|----------------|
//     block  |  -  |  -  |  -  | r . |     |     |     |     . p |        - given back, . masked
//
#pragma once
#include <cstddef>
#include <cstdint>

#include "inline.h"

namespace tidemill {

inline constexpr int kTileTokens = 64;
inline constexpr int kSegmentTokens = 4 * kTileTokens;
inline constexpr int kPanelQueries = 6;        // query rows per inner call
inline constexpr int kTaskPanels = 32;         // most of them per task
inline constexpr int kTaskQueries = kTaskPanels * kPanelQueries;
inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxLanes = 16;  // of any instruction set

// Numbers shared with src/tidemill/executors/native/executor.py.
enum class KvFormat : std::uint8_t { kF16, kF32, kQ8, kQ4 };
inline constexpr int kKvFormats = 4;
inline constexpr std::int32_t kKvGroup = 32;  // numbers of a token and head that share a scale
inline constexpr std::int32_t kMaxKvGroups = kMaxHeadDim / kKvGroup;
TIDEMILL_INLINE constexpr bool is_quantized(KvFormat format) { return format >= KvFormat::kQ8; }
TIDEMILL_INLINE constexpr std::int32_t kv_bits(KvFormat format) {
  return format == KvFormat::kF16 ? 16 : format == KvFormat::kF32 ? 32 : format == KvFormat::kQ8 ? 8 : 4;
}

// One layer of one KV pool.
struct KvLayer {
  std::uint8_t* base;
  std::int32_t block_size;  // tokens: 16, 32 or 64
  std::int32_t kv_heads;
  std::int32_t head_dim;
  KvFormat format;

  TIDEMILL_INLINE std::int32_t padded_dim() const { return (head_dim + 7) / 8 * 8; }
  TIDEMILL_INLINE std::int32_t groups() const { return (head_dim + kKvGroup - 1) / kKvGroup; }
  TIDEMILL_INLINE std::int32_t stored_dim() const { return is_quantized(format) ? groups() * kKvGroup : padded_dim(); }
  TIDEMILL_INLINE std::size_t code_bytes() const {  // of a half
    return static_cast<std::size_t>(block_size * stored_dim() * kv_bits(format) / 8);
  }
  TIDEMILL_INLINE std::size_t half_head_bytes() const {
    const std::int32_t scales = is_quantized(format) ? block_size * groups() : 0;
    return code_bytes() + sizeof(std::uint16_t) * static_cast<std::size_t>(scales);
  }
  TIDEMILL_INLINE std::size_t block_bytes() const { return 2 * half_head_bytes() * static_cast<std::size_t>(kv_heads); }
  TIDEMILL_INLINE std::uint8_t* keys(std::int32_t block, std::int32_t kv_head) const {
    return base + static_cast<std::size_t>(block) * block_bytes() +
           2 * half_head_bytes() * static_cast<std::size_t>(kv_head);
  }
  TIDEMILL_INLINE std::uint8_t* values(std::int32_t block, std::int32_t kv_head) const {
    return keys(block, kv_head) + half_head_bytes();
  }
};

// One sequence's share of a step. Its token i is row first_token + i of the step, at position start + i.
struct AttentionRow {
  std::int32_t first_token;
  std::int32_t tokens;
  std::int32_t start;
  const std::int32_t* table;   // block ids
  std::size_t scores_offset;   // materialised scores: first float of the row's part of the matrix
};

struct AttentionCall {
  const float* q;  // row t, head h at q + t * q_stride + h * head_dim; likewise k and v
  const float* k;
  const float* v;
  std::size_t q_stride;
  std::size_t k_stride;
  std::size_t v_stride;
  float* out;  // row t, head h at out + t * out_stride + h * head_dim
  std::size_t out_stride;
  std::int32_t heads;
  float scale;
  float soft_cap;       // scores become soft_cap * tanh(score / soft_cap); 0: they stay
  std::int32_t window;  // positions a token reads, its own included; 0: all before it
  const float* sinks;   // [heads]: a score that each softmax has beside those of its positions, or null
  bool causal;          // false: a token reads all of its sequence, which is whole in this step
  const float* rope_cos;  // [position][rope_half], or null
  const float* rope_sin;
  std::int32_t rope_half;
  KvLayer kv;
  float* scores;  // materialised form only
  float* states;  // segments that parts of tasks leave behind; aligned to 64 bytes

  TIDEMILL_INLINE std::int32_t group() const { return heads / kv.kv_heads; }
  // First position that the token at `position` reads.
  TIDEMILL_INLINE std::int32_t first_read(std::int32_t position) const {
    return window == 0 || position < window ? 0 : position - window + 1;
  }
  // Last position that the row's token at `position` reads.
  TIDEMILL_INLINE std::int32_t last_read(const AttentionRow& row, std::int32_t position) const {
    return causal ? position : row.start + row.tokens - 1;
  }
};

// Query rows [begin, end) of one sequence and KV head; query row r is token r / group, head r % group of the group.
// Of their context the segments [first_segment, last_segment): all that they read, or a part.
struct AttentionTask {
  std::int32_t row;
  std::int32_t kv_head;
  std::int32_t begin;
  std::int32_t end;
  std::int32_t first_segment;
  std::int32_t last_segment;
  std::int32_t first_kept = kNotKept;  // parts, and what merges them: the segment whose state lies at `states`
  std::size_t states = 0;              // a float of call.states
  std::int32_t whole = kNotKept;       // parts: which of the tasks that are split this is one of

  static constexpr std::int32_t kNotKept = -1;
  TIDEMILL_INLINE bool is_part() const { return first_kept != kNotKept; }
};

// What a panel of query rows holds for each row and dimension lies in chunks of sixteen dimensions, [chunk][row][16]:
// the rows of a chunk are at fixed distances. A row has so many floats:
inline constexpr std::int32_t kChunkDims = 16;
TIDEMILL_INLINE constexpr std::int32_t chunked_floats(std::int32_t head_dim) {
  return (head_dim + kChunkDims - 1) / kChunkDims * kChunkDims;
}

// Floats of what so many queries have accumulated, in whole lines of 64 bytes: maximums, sums, outputs.
TIDEMILL_INLINE constexpr std::size_t attention_state_floats(std::int32_t queries, std::int32_t head_dim) {
  const auto count = static_cast<std::size_t>(queries);
  return (count + 15) / 16 * 16 + count * static_cast<std::size_t>(kMaxLanes + chunked_floats(head_dim));
}

// Floats of scratch that a thread needs for any task of this head size.
TIDEMILL_INLINE constexpr std::size_t attention_scratch_floats(std::int32_t head_dim) {
  const auto dim = static_cast<std::size_t>(chunked_floats(head_dim));
  // Queries, two states, one tile in float32, and what aligns them.
  return kTaskQueries * dim + 2 * attention_state_floats(kTaskQueries, head_dim) + 2 * kTileTokens * dim + 15;
}

// Length of one materialised score row: whole tiles.
TIDEMILL_INLINE constexpr std::size_t score_row_floats(std::int32_t context) {
  return static_cast<std::size_t>((context + kTileTokens - 1) / kTileTokens) * kTileTokens;
}

struct AttentionKernels {
  // Ropes, rounds and stores K and V of tokens [begin, end) of one row.
  void (*write)(const AttentionCall& call, const AttentionRow& row, std::int32_t begin, std::int32_t end);
  // A task, or a part of one: then its segments' states are kept. `next`, null or a task of the same call, is the one
  // that this thread is likely to be given next: its first tile is fetched meanwhile.
  void (*attend)(const AttentionCall& call, const AttentionRow* rows, const AttentionTask& task,
                 const AttentionTask* next, float* scratch);
  // The whole of a task whose parts have been attended, from the states they kept.
  void (*merge)(const AttentionCall& call, const AttentionRow* rows, const AttentionTask& task, float* scratch);

  // The slow twin: each stage over all tasks, the whole score matrix in memory between them.
  void (*scores)(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task, float* scratch);
  void (*softmax)(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task, float* scratch);
  void (*values)(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task, float* scratch);
};

}  // namespace tidemill
