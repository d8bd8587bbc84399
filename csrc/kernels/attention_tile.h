// Tiles of paged KV, the parts of them that queries read, and the element types they are stored in.
#pragma once
#include "attention.h"
#include "simd.h"

namespace tidemill {

struct F16Element {
  using Type = std::uint16_t;
  static constexpr bool kStreamed = true;  // comes from memory: the next tile is fetched while one is computed
  template <class S>
  static TIDEMILL_INLINE typename S::V load(const Type* p) {
    return S::load_half(p);
  }
};

struct F32Element {
  using Type = float;
  static constexpr bool kStreamed = true;
  template <class S>
  static TIDEMILL_INLINE typename S::V load(const Type* p) {
    return S::load(p);
  }
};

// The same without fetching ahead.
template <class Element>
struct OnceElement : Element {
  static constexpr bool kStreamed = false;
};

// Float32 in a cache: a tile that many panels read.
using CachedElement = OnceElement<F32Element>;

TIDEMILL_INLINE void store_element(std::uint16_t* p, float x) { *p = float_to_half(x); }
TIDEMILL_INLINE void store_element(float* p, float x) { *p = x; }

constexpr int kTileBlocks = kTileTokens / 16;

template <class Element>
struct AttentionTile {
  using Type = typename Element::Type;
  const Type* k[kTileBlocks];  // one per block of the tile
  const Type* v[kTileBlocks];
  std::int32_t block_size;
  std::int32_t head_dim;
  std::int32_t padded_dim;
  const Type* next_k[kTileBlocks];  // of the tile to fetch meanwhile; where it has no such block, this tile's own
  const Type* next_v[kTileBlocks];

  TIDEMILL_INLINE void fetch_meanwhile(const AttentionTile& next) {
    for (int b = 0; b < kTileBlocks; ++b) {
      next_k[b] = next.k[b] == nullptr ? k[b] : next.k[b];
      next_v[b] = next.v[b] == nullptr ? v[b] : next.v[b];
    }
  }

  // Fetches the part of the next tile that falls to parts [begin, end) of `parts`, for work that does not pass over this
  // tile itself.
  template <class S>
  TIDEMILL_INLINE void fetch_share(std::int32_t begin, std::int32_t end, std::int32_t parts) const {
    constexpr std::int32_t kLine = 64 / static_cast<std::int32_t>(sizeof(Type));
    const std::int32_t lines = block_size * padded_dim / kLine;
    const std::int32_t from = lines * begin / parts * kLine;
    const std::int32_t to = lines * end / parts * kLine;
    for (std::int32_t b = 0; b < kTileTokens / block_size; ++b) {
      if (next_k[b] == nullptr) continue;
      for (std::int32_t i = from; i < to; i += kLine) {
        S::prefetch(next_k[b] + i);
        S::prefetch(next_v[b] + i);
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

// The part of a tile that tokens at positions first to last read together.
TIDEMILL_INLINE TileSpan span_read(const AttentionCall& call, std::int32_t first, std::int32_t last,
                                   std::int32_t tile_start) {
  const std::int32_t begin = call.first_read(first) - tile_start;
  const std::int32_t end = last + 1 - tile_start;
  return {begin > 0 ? begin : 0, end < kTileTokens ? end : kTileTokens};
}

// The blocks that hold a span of the tile at tile_start; the others are null.
template <class Element>
TIDEMILL_INLINE AttentionTile<Element> tile_of(const KvLayer& kv, const std::int32_t* table, std::int32_t kv_head,
                                               std::int32_t tile_start, TileSpan span) {
  using Type = typename Element::Type;
  AttentionTile<Element> tile{{}, {}, kv.block_size, kv.head_dim, kv.padded_dim(), {}, {}};
  const std::int32_t first = tile_start / kv.block_size;
  const std::int32_t blocks = (span.end + kv.block_size - 1) / kv.block_size;
  for (std::int32_t b = span.begin / kv.block_size; b < blocks; ++b) {
    tile.k[b] = reinterpret_cast<const Type*>(kv.keys(table[first + b], kv_head));
    tile.v[b] = reinterpret_cast<const Type*>(kv.values(table[first + b], kv_head));
  }
  return tile;
}

// A tile's K and V in float32, so that many panels convert them once. Conversion is exact: bits stay the same.
template <class S>
AttentionTile<CachedElement> cached_tile(const AttentionTile<F16Element>& tile, TileSpan span, float* buffer) {
  AttentionTile<CachedElement> wide{{}, {}, tile.block_size, tile.head_dim, tile.padded_dim, {}, {}};
  const std::int32_t blocks = (span.end + tile.block_size - 1) / tile.block_size;
  const std::int32_t size = tile.block_size * tile.padded_dim;  // a multiple of 128
  for (std::int32_t b = span.begin / tile.block_size; b < blocks; ++b) {
    float* k = buffer + static_cast<std::size_t>(2 * b) * static_cast<std::size_t>(size);
    float* v = k + size;
    for (std::int32_t i = 0; i < size; i += S::kLanes) {
      S::store(k + i, S::load_half(tile.k[b] + i));
      S::store(v + i, S::load_half(tile.v[b] + i));
    }
    wide.k[b] = k;
    wide.v[b] = v;
  }
  return wide;
}

template <class S>
AttentionTile<CachedElement> cached_tile(const AttentionTile<F32Element>& tile, TileSpan, float*) {
  AttentionTile<CachedElement> same{{}, {}, tile.block_size, tile.head_dim, tile.padded_dim, {}, {}};
  for (int b = 0; b < kTileBlocks; ++b) {
    same.k[b] = tile.k[b];
    same.v[b] = tile.v[b];
  }
  return same;
}

}  // namespace tidemill
