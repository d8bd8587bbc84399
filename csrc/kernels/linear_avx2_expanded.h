// Products of many rows, 256 k at a time: all panels multiply these, then the next follow.
//
// For linear_avx2.cpp alone: everything is in an anonymous namespace, and compiled for AVX2.
//
// A panel has four rows. In a product from packed weights, taking codes apart and turning scales into floats comes back
// every four rows, and with three vector ports that is an eighth to a third of its time; here it is done once, into the
// first-level cache. And where one panel after the other went over a whole tile, the first waited for memory and the others
// let it rest; here every panel asks for its share of the weights ahead.
#pragma once
#include <immintrin.h>

#include "kernels/linear_avx2_products.h"
#include "kernels/linear_avx2_weights.h"
#include "kernels/linear_impl.h"
#include "kernels/stream.h"

namespace tidemill {
namespace {

inline constexpr std::int32_t kExpandedRows = 8;  // from so many on it pays
inline constexpr std::int32_t kBlockGroups = 8;  // 256 k
inline constexpr std::int32_t kLine = 64;        // bytes that a fetch brings

// One group of a tile, taken apart. Arrays, for structs of vectors would be copied through the stack at each use.
template <Layout L>
struct alignas(32) ExpandedGroup {
  static constexpr int kOffsets = kShape<L>.scales == Scales::kHalfZero ? 2 : 1;
  static constexpr int kHalves = kShape<L>.halves() ? 2 : 1;

  std::uint8_t codes[kGroup * kTileColumns];  // [quad][16 columns][4]
  float d[kTileColumns], m[kTileColumns];
  std::int16_t offsets[kOffsets][16];  // what is left out where the layout has none
  std::int16_t first[kHalves][16], second[kHalves][16], minimums[kHalves][16];
};

inline void store(void* p, __m256i v) { _mm256_store_si256(static_cast<__m256i*>(p), v); }

template <Layout L>
inline void expand_group(const PackedGroups<L, false>& w, ExpandedGroup<L>& out) {
  TIDEMILL_UNROLL
  for (int c = 0; c < 2; ++c) {
    TIDEMILL_UNROLL
    for (int quad = 0; quad < 8; ++quad) store(out.codes + 64 * quad + 32 * c, w.codes(c, quad));
    const ColumnScales scales = w.scales(c);
    _mm256_store_ps(out.d + 8 * c, scales.d);
    if constexpr (kShape<L>.has_minimum()) _mm256_store_ps(out.m + 8 * c, scales.m);
    if constexpr (kShape<L>.scales == Scales::kHalfZero) store(out.offsets[c], w.offsets(c));
    if constexpr (kShape<L>.halves()) {
      const HalfScales half = w.half_scales(c);
      store(out.first[c], half.first);
      store(out.second[c], half.second);
      store(out.minimums[c], half.minimums);
    }
  }
}

// Expanded groups, one after another (see PackedGroups).
template <Layout L>
class ExpandedGroups {
 public:
  explicit ExpandedGroups(const ExpandedGroup<L>* first) : group_(first) {}

  void enter(std::int32_t) {}
  void leave() { ++group_; }

  __m256i codes(int c, int quad) const { return load(group_->codes + 64 * quad + 32 * c); }
  ColumnScales scales(int c) const {
    const __m256 d = _mm256_load_ps(group_->d + 8 * c);
    if constexpr (kShape<L>.has_minimum()) return {d, _mm256_load_ps(group_->m + 8 * c)};
    return {d, d};
  }
  __m256i offsets(int c) const {
    if constexpr (kShape<L>.scales == Scales::kHalfZero) return load(group_->offsets[c]);
    return _mm256_set1_epi16(kShape<L>.offset);
  }
  HalfScales half_scales(int c) const {
    const __m256i first = load(group_->first[c]);
    return {first, first, load(group_->second[c]), load(group_->minimums[c])};
  }

 private:
  const ExpandedGroup<L>* group_;
};

// Up to kBlockGroups groups of a tile, as their products read them. kQ8's are ready as they are packed.
template <Layout L>
class GroupBlock {
 public:
  void read(const std::uint8_t* w, std::int32_t groups) {
    packed_ = w;
    if constexpr (kExpands) {
      PackedGroups<L, false> packed(w);
      for (std::int32_t g = 0; g < groups; ++g) {
        packed.enter(g);
        expand_group<L>(packed, expanded_[g]);
        packed.leave();
      }
    }
  }

  // acc [rows][16] += `rows` rows, a whole panel, times `groups` groups.
  void add_panel(std::int32_t rows, const std::int8_t* x, const float* scales, std::int32_t groups, float* acc) const {
    switch (rows) {
      case 1: return add<1>(x, scales, groups, acc);
      case 2: return add<2>(x, scales, groups, acc);
      case 3: return add<3>(x, scales, groups, acc);
      default: return add<4>(x, scales, groups, acc);
    }
  }

 private:
  static constexpr bool kExpands = L != Layout::kQ8;

  template <int R>
  void add(const std::int8_t* x, const float* scales, std::int32_t groups, float* acc) const {
    if constexpr (kExpands) {
      add_product<L, R, R>(ExpandedGroups<L>(expanded_), x, scales, groups, acc);
    } else {
      add_product<L, R, R>(PackedGroups<L, false>(packed_), x, scales, groups, acc);
    }
  }

  const std::uint8_t* packed_;
  ExpandedGroup<L> expanded_[kExpands ? kBlockGroups : 1];
};

// Asks for `lines` lines of the weights from w on, and for as many that lie farther on.
inline void fetch_lines(const std::uint8_t* w, std::int32_t lines) {
  for (std::int32_t i = 0; i < lines; ++i, w += kLine) {
    __builtin_prefetch(w);
    __builtin_prefetch(w + kFarAhead, 0, 2);  // into the second level
  }
}

// Tile t, for `rows` rows, at most kBlockRows, from row `begin` on: acc [rows][16].
template <Layout L>
void expanded_tile(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t begin, std::int32_t rows, std::int32_t t,
                   float* acc) {
  const std::int32_t groups = x.k / kGroup;
  const std::int32_t panels = (rows + kPanelRows - 1) / kPanelRows;
  const std::uint8_t* w = weight.data + weight.tile_bytes * static_cast<std::size_t>(t);
  for (std::int32_t r = 0; r < rows; ++r) clear<1>(acc + r * kTileColumns);
  constexpr std::int32_t kBytes = kShape<L>.block_header() + kBlockGroups * kShape<L>.group_bytes();
  const std::int32_t share = (kBytes / kLine + panels) / panels;  // lines of the next block that each panel asks for
  GroupBlock<L> block;
  for (std::int32_t g = 0; g < groups; g += kBlockGroups) {
    const std::int32_t count = groups - g < kBlockGroups ? groups - g : kBlockGroups;
    block.read(w, count);
    for (std::int32_t p = 0; p < panels; ++p) {
      fetch_lines(w + kBytes + p * share * kLine, share);
      const std::int32_t row = p * kPanelRows;
      const std::int32_t here = rows - row < kPanelRows ? rows - row : kPanelRows;
      const std::size_t before = static_cast<std::size_t>(begin + row) * static_cast<std::size_t>(groups) +
                                 static_cast<std::size_t>(g * here);  // groups of single rows
      block.add_panel(here, x.values + before * kGroup, x.scales + before * kGroupScales, count, acc + row * kTileColumns);
    }
    w += kBytes;
  }
}

template <class Isa, Layout L>
void expanded_tiles(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t tile_begin, std::int32_t tile_end,
                    const LinearOutput& output) {
  alignas(64) float acc[kBlockRows * kTileColumns];
  for (std::int32_t begin = 0; begin < x.rows; begin += kBlockRows) {
    const std::int32_t rows = x.rows - begin < kBlockRows ? x.rows - begin : kBlockRows;
    for (std::int32_t t = tile_begin; t < tile_end; ++t) {
      expanded_tile<L>(weight, x, begin, rows, t, acc);
      store_tile<Isa>(acc, begin, rows, t, weight.n, output);
    }
  }
}

}  // namespace
}  // namespace tidemill
