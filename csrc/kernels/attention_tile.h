// Tiles of paged KV, the parts of them that queries read, and the element types they are stored in.
#pragma once
#include "attention.h"
#include "kv_blocks.h"
#include "simd.h"

namespace tidemill {

struct F16Element {
  using Type = std::uint16_t;
  static constexpr bool kQuantized = false;
  static constexpr bool kStreamed = true;  // comes from memory: the next tile is fetched while one is computed
  static constexpr bool kWide = false;
  template <class S>
  static TIDEMILL_INLINE typename S::V load(const Type* p) {
    return S::load_half(p);
  }
};

struct F32Element {
  using Type = float;
  static constexpr bool kQuantized = false;
  static constexpr bool kStreamed = true;
  static constexpr bool kWide = false;
  template <class S>
  static TIDEMILL_INLINE typename S::V load(const Type* p) {
    return S::load(p);
  }
};

// Whole numbers with scales.
template <class Codes_>
struct QuantizedElement {
  using Type = std::uint8_t;
  using Codes = Codes_;
  static constexpr bool kQuantized = true;
  static constexpr bool kStreamed = true;
  static constexpr bool kWide = false;
};

using Q8Element = QuantizedElement<Q8Codes>;
using Q4Element = QuantizedElement<Q4Codes>;

// Into the second level, where more lines may be on their way than into the first, and take no others' place.
TIDEMILL_INLINE void fetch_line(const void* p) { __builtin_prefetch(p, 0, 2); }

// The same without fetching ahead.
template <class Element>
struct OnceElement : Element {
  static constexpr bool kStreamed = false;
};

// Float32 in a cache, as one block of 64 tokens: a tile that many panels read.
struct WideElement : OnceElement<F32Element> {
  static constexpr bool kWide = true;
};

TIDEMILL_INLINE void store_element(std::uint16_t* p, float x) { *p = float_to_half(x); }
TIDEMILL_INLINE void store_element(float* p, float x) { *p = x; }

// A whole head, rounded as one element is.
template <class S>
TIDEMILL_INLINE void store_elements(std::uint16_t* p, const float* x, std::int32_t n) {
  std::int32_t i = 0;
  for (; i + S::kLanes <= n; i += S::kLanes) S::store_half(p + i, S::load(x + i));
  for (; i < n; ++i) store_element(p + i, x[i]);
}
template <class S>
TIDEMILL_INLINE void store_elements(float* p, const float* x, std::int32_t n) {
  __builtin_memcpy(p, x, sizeof(float) * static_cast<std::size_t>(n));
}

constexpr int kRunTokens = 16;  // tokens that are sure to lie side by side in one block
constexpr int kTileRuns = kTileTokens / kRunTokens;

// Keys of token t and dimension d: k[run of t] + d * block_size + t % 16; values: v[run of t] + t % 16 * padded_dim + d.
template <class Element>
struct AttentionTile {
  using Type = typename Element::Type;
  const Type* k[kTileRuns];
  const Type* v[kTileRuns];
  std::int32_t block_size;
  std::int32_t head_dim;
  std::int32_t padded_dim;
  const Type* next_k[kTileRuns];  // of the tile to fetch meanwhile; where it has no such run, this tile's own
  const Type* next_v[kTileRuns];

  TIDEMILL_INLINE void set_block(std::int32_t block, const Type* keys, const Type* values) {
    const std::int32_t runs = block_size / kRunTokens;
    for (std::int32_t r = 0; r < runs; ++r) {
      k[block * runs + r] = keys + kRunTokens * r;
      v[block * runs + r] = values + kRunTokens * r * padded_dim;
    }
  }

  TIDEMILL_INLINE void fetch_meanwhile(const AttentionTile& next) {
    for (int r = 0; r < kTileRuns; ++r) {
      next_k[r] = next.k[r] == nullptr ? k[r] : next.k[r];
      next_v[r] = next.v[r] == nullptr ? v[r] : next.v[r];
    }
  }

  static constexpr std::int32_t kLine = 64 / static_cast<std::int32_t>(sizeof(Type));
  TIDEMILL_INLINE std::int32_t block_lines() const { return block_size * padded_dim / kLine; }  // of K, or of V

  // Fetches lines [begin, end) of each block of the next tile, for work that does not pass over this tile itself.
  TIDEMILL_INLINE void fetch_lines(std::int32_t begin, std::int32_t end) const {
    for (std::int32_t r = 0; r < kTileRuns; r += block_size / kRunTokens) {
      if (next_k[r] == nullptr) continue;
      for (std::int32_t i = begin * kLine; i < end * kLine; i += kLine) {
        fetch_line(next_k[r] + i);
        fetch_line(next_v[r] + i);
      }
    }
  }
};

// A tile of codes. Key codes of token t: k[run of t] + row * block_size + t % 16, a row being a dimension (q8) or a pair of
// them (q4); their scales: k_scales[run of t] + group * block_size + t % 16. Value codes: v[run of t] + t % 16 * the bytes
// of a token; their scales: v_scales[run of t] + t % 16 * groups + group.
template <class Element>
  requires Element::kQuantized
struct AttentionTile<Element> {
  const std::uint8_t* k[kTileRuns];
  const std::uint16_t* k_scales[kTileRuns];
  const std::uint8_t* v[kTileRuns];
  const std::uint16_t* v_scales[kTileRuns];
  // The memory of a block's head in equal shares, one for each of its runs; then those of the tile to fetch meanwhile, or
  // where it has no such run this tile's own.
  const std::uint8_t* shares[kTileRuns];
  const std::uint8_t* next[kTileRuns];
  std::int32_t block_size;
  std::int32_t head_dim;
  std::int32_t padded_dim;
  std::int32_t groups;
  std::int32_t share_bytes;

  TIDEMILL_INLINE std::int32_t token_bytes() const { return groups * kKvGroup * kv_bits(Element::Codes::kFormat) / 8; }

  TIDEMILL_INLINE void fetch_meanwhile(const AttentionTile& following) {
    for (int r = 0; r < kTileRuns; ++r) next[r] = following.shares[r] == nullptr ? shares[r] : following.shares[r];
  }
  // Half of a share is fetched beside a run's keys, group by group, and half beside its values, token by token.
  static constexpr std::int32_t kLine = 64;
  TIDEMILL_INLINE std::int32_t half_lines() const { return (share_bytes / 2 + kLine - 1) / kLine; }
  TIDEMILL_INLINE std::int32_t key_lines_per_group() const { return (half_lines() + groups - 1) / groups; }
  TIDEMILL_INLINE std::int32_t value_lines_per_token() const { return (half_lines() + kRunTokens - 1) / kRunTokens; }
  TIDEMILL_INLINE void fetch_keys(std::int32_t run, std::int32_t line, std::int32_t lines) const {
    for (std::int32_t i = line; i < line + lines; ++i) fetch_line(next[run] + kLine * i);
  }
  TIDEMILL_INLINE void fetch_values(std::int32_t run, std::int32_t line, std::int32_t lines) const {
    for (std::int32_t i = line; i < line + lines; ++i) fetch_line(next[run] + share_bytes / 2 + kLine * i);
  }
  // None beside the panels: the next tile is fetched while this one is converted.
  TIDEMILL_INLINE std::int32_t block_lines() const { return 0; }
  TIDEMILL_INLINE void fetch_lines(std::int32_t, std::int32_t) const {}
};

// Tokens [begin, end) of a tile, counted from its start; empty where end <= begin, and then begin or end may lie outside
// the tile.
struct TileSpan {
  std::int32_t begin;
  std::int32_t end;

  TIDEMILL_INLINE bool empty() const { return end <= begin; }
};

inline constexpr TileSpan kWholeTile{0, kTileTokens};

// The part of a tile that tokens at positions first to last read together.
TIDEMILL_INLINE TileSpan span_read(const AttentionCall& call, std::int32_t first, std::int32_t last,
                                   std::int32_t tile_start) {
  const std::int32_t begin = call.first_read(first) - tile_start;
  const std::int32_t end = last + 1 - tile_start;
  return {begin > 0 ? begin : 0, end < kTileTokens ? end : kTileTokens};
}

// The blocks that hold a span of the tile at tile_start; runs of others are null.
template <class Element>
TIDEMILL_INLINE AttentionTile<Element> tile_of(const KvLayer& kv, const std::int32_t* table, std::int32_t kv_head,
                                               std::int32_t tile_start, TileSpan span) {
  using Type = typename Element::Type;
  AttentionTile<Element> tile{{}, {}, kv.block_size, kv.head_dim, kv.padded_dim(), {}, {}};
  const std::int32_t first = tile_start / kv.block_size;
  const std::int32_t blocks = (span.end + kv.block_size - 1) / kv.block_size;
  for (std::int32_t b = span.begin / kv.block_size; b < blocks; ++b) {
    tile.set_block(b, reinterpret_cast<const Type*>(kv.keys(table[first + b], kv_head)),
                   reinterpret_cast<const Type*>(kv.values(table[first + b], kv_head)));
  }
  return tile;
}

template <class Element>
  requires Element::kQuantized
TIDEMILL_INLINE AttentionTile<Element> tile_of(const KvLayer& kv, const std::int32_t* table, std::int32_t kv_head,
                                               std::int32_t tile_start, TileSpan span) {
  AttentionTile<Element> tile{};
  tile.block_size = kv.block_size;
  tile.head_dim = kv.head_dim;
  tile.padded_dim = kv.padded_dim();
  tile.groups = kv.groups();
  const std::int32_t runs = kv.block_size / kRunTokens;
  tile.share_bytes = static_cast<std::int32_t>(2 * kv.half_head_bytes()) / runs;
  const std::int32_t end = (span.end + kRunTokens - 1) / kRunTokens;
  for (std::int32_t r = span.begin / kRunTokens; r < end; ++r) {
    const std::int32_t block = table[tile_start / kv.block_size + r / runs];
    const std::int32_t first = r % runs * kRunTokens;
    const std::uint8_t* keys = kv.keys(block, kv_head);
    const std::uint8_t* values = kv.values(block, kv_head);
    tile.k[r] = keys + first;
    tile.k_scales[r] = reinterpret_cast<const std::uint16_t*>(keys + kv.code_bytes()) + first;
    tile.v[r] = values + first * tile.token_bytes();
    tile.v_scales[r] = reinterpret_cast<const std::uint16_t*>(values + kv.code_bytes()) + first * tile.groups;
    tile.shares[r] = keys + r % runs * tile.share_bytes;
  }
  return tile;
}

// The tokens of a span's blocks in float32, as one block at `buffer`, so that many panels convert them once. Conversion
// is exact: bits stay the same.
template <class S, class Element>
  requires(!Element::kQuantized)
AttentionTile<WideElement> wide_tile(const AttentionTile<Element>& tile, TileSpan span, float* buffer) {
  AttentionTile<WideElement> wide{{}, {}, kTileTokens, tile.head_dim, tile.padded_dim, {}, {}};
  wide.set_block(0, buffer, buffer + kTileTokens * tile.padded_dim);
  const std::int32_t size = tile.block_size;
  for (std::int32_t t = span.begin / size * size; t < span.end; t += size) {
    const auto* k = tile.k[t / kRunTokens];
    const auto* v = tile.v[t / kRunTokens];
    float* wide_k = buffer + t;
    float* wide_v = buffer + kTileTokens * tile.padded_dim + t * tile.padded_dim;
    for (std::int32_t d = 0; d < tile.head_dim; ++d) {
      for (std::int32_t i = 0; i < size; i += S::kLanes) {
        S::store(wide_k + d * kTileTokens + i, Element::template load<S>(k + d * size + i));
      }
    }
    for (std::int32_t i = 0; i < size * tile.padded_dim; i += S::kLanes) {
      S::store(wide_v + i, Element::template load<S>(v + i));
    }
  }
  return wide;
}

// Where dimension d of a row is, counted from the row's place in the first chunk of a panel of so many rows.
TIDEMILL_INLINE constexpr std::int32_t chunked(std::int32_t d, int rows) {
  return d / kChunkDims * (kChunkDims * rows) + d % kChunkDims;
}

// Calls body(lanes, d) for the vectors of a padded head: whole ones, then one of eight lanes where eight are left.
template <class S, class Body>
TIDEMILL_INLINE void for_head_vectors(std::int32_t padded_dim, Body body) {
  std::int32_t d = 0;
  for (; d + S::kLanes <= padded_dim; d += S::kLanes) body(S{}, d);
  if constexpr (S::kLanes > 8) {
    if (d < padded_dim) body(typename S::Eight{}, d);
  }
}

// Keys of a run of tokens, group by group: `wide` + dimension * kTileTokens.
template <class S, class Element>
TIDEMILL_INLINE void widen_keys(const AttentionTile<Element>& tile, std::int32_t run, float* wide) {
  const std::int32_t stride = tile.block_size;
  const std::int32_t lines = tile.key_lines_per_group();
  for (std::int32_t g = 0; g < tile.groups; ++g, wide += kKvGroup * kTileTokens) {
    const std::int32_t left = tile.head_dim - g * kKvGroup;
    const std::int32_t dims = left < kKvGroup ? left : kKvGroup;
    TIDEMILL_UNROLL for (int i = 0; i < kRunTokens; i += S::kLanes) {
      const auto scale = S::load_half(tile.k_scales[run] + g * stride + i);
      float* out = wide + i;
      if constexpr (Element::Codes::kFormat == KvFormat::kQ8) {
        const std::uint8_t* codes = tile.k[run] + g * kKvGroup * stride + i;
        for (std::int32_t d = 0; d < dims; ++d, codes += stride, out += kTileTokens) {
          S::store(out, S::mul(S::load_bytes(codes), scale));
        }
      } else {
        const std::uint8_t* codes = tile.k[run] + g * kKvGroup / 2 * stride + i;
        for (std::int32_t d = 0; d < dims; d += 2, codes += stride, out += 2 * kTileTokens) {
          typename S::V low, high;
          S::load_nibbles(codes, low, high);
          S::store(out, S::mul(low, scale));
          if (d + 1 < dims) S::store(out + kTileTokens, S::mul(high, scale));
        }
      }
    }
    tile.fetch_keys(run, g * lines, lines);
  }
}

// Values of a run of tokens: `wide` + token * padded_dim.
template <class S, class Element>
TIDEMILL_INLINE void widen_values(const AttentionTile<Element>& tile, std::int32_t run, float* wide) {
  constexpr int kHalf = kKvGroup / 2;
  const std::int32_t groups = tile.groups;
  const std::int32_t padded = tile.padded_dim;
  const std::int32_t lines = tile.value_lines_per_token();
  alignas(64) float scales[kRunTokens * kMaxKvGroups];
  for (std::int32_t i = 0; i < kRunTokens * groups; i += S::kLanes) {
    S::store(scales + i, S::load_half(tile.v_scales[run] + i));
  }
  const std::uint8_t* codes = tile.v[run];
  const float* scale = scales;
  for (int t = 0; t < kRunTokens; ++t, wide += padded) {
    for (std::int32_t g = 0; g < groups; ++g, ++scale) {
      const std::int32_t left = padded - g * kKvGroup;
      float* out = wide + g * kKvGroup;
      if constexpr (Element::Codes::kFormat == KvFormat::kQ8) {
        for_head_vectors<S>(left < kKvGroup ? left : kKvGroup, [&](auto lanes, std::int32_t d) {
          using L = decltype(lanes);
          L::store(out + d, L::mul(L::load_bytes(codes + d), L::set(*scale)));
        });
        codes += kKvGroup;
      } else {
        for_head_vectors<S>(left < kHalf ? left : kHalf, [&](auto lanes, std::int32_t d) {
          using L = decltype(lanes);
          typename L::V low, high;
          L::load_nibbles(codes + d, low, high);
          L::store(out + d, L::mul(low, L::set(*scale)));
          if (d + kHalf < left) L::store(out + d + kHalf, L::mul(high, L::set(*scale)));
        });
        codes += kHalf;
      }
    }
    tile.fetch_values(run, t * lines, lines);
  }
}

// Codes of up to 7 bits times scales of 11: exact as well. Whoever reads the tile, and however many panels do, reads the
// same numbers.
template <class S, class Element>
  requires Element::kQuantized
AttentionTile<WideElement> wide_tile(const AttentionTile<Element>& tile, TileSpan span, float* buffer) {
  AttentionTile<WideElement> wide{{}, {}, kTileTokens, tile.head_dim, tile.padded_dim, {}, {}};
  float* values = buffer + kTileTokens * tile.padded_dim;
  wide.set_block(0, buffer, values);
  const std::int32_t end = (span.end + kRunTokens - 1) / kRunTokens;
  for (std::int32_t r = span.begin / kRunTokens; r < end; ++r) {
    widen_keys<S>(tile, r, buffer + kRunTokens * r);
    widen_values<S>(tile, r, values + kRunTokens * r * tile.padded_dim);
  }
  return wide;
}

}  // namespace tidemill
