// Tiles of paged KV, the parts of them that queries read, and the element types they are stored in.
#pragma once
#include "attention.h"
#include "simd.h"

namespace tidemill {

struct F16Element {
  using Type = std::uint16_t;
  static constexpr bool kStreamed = true;  // comes from memory: the next tile is fetched while one is computed
  static constexpr bool kWide = false;
  template <class S>
  static TIDEMILL_INLINE typename S::V load(const Type* p) {
    return S::load_half(p);
  }
};

struct F32Element {
  using Type = float;
  static constexpr bool kStreamed = true;
  static constexpr bool kWide = false;
  template <class S>
  static TIDEMILL_INLINE typename S::V load(const Type* p) {
    return S::load(p);
  }
};

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

// The tokens of a span's blocks in float32, as one block at `buffer`, so that many panels convert them once. Conversion
// is exact: bits stay the same.
template <class S, class Element>
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

}  // namespace tidemill
