// The loops of the linear kernels, shared by all instruction sets.
//
// Isa gives the inner parts (see linear_portable.cpp for the plainest ones). It must be a type of an anonymous
// namespace: then these templates stay inside the file that instantiates them, and code compiled for AVX2 cannot
// replace the portable copy at link time.
//
//   kCallPanels                                      whole panels that one call may compute: 1 or 2
//   kFloatRows                                       rows that one call of add_chunk may compute: 4 or more
//   kFloatTiles                                      most tiles that one call of add_tiles computes: 1 to 3
//   quantize_group(x, values, scale, scale_sum, half_sums)
//                                                    32 floats -> 32 int8
//   quantize_panel_group(x, stride, values, scales)  the same for all four rows of a panel, in its order; false, with nothing
//                                                    written, leaves it to quantize_group. An instruction set may have none
//   quantized_tile<L, R, S, Stream>(tile, x, scales, groups, acc)
//                                                    R rows of a panel of S rows, or R / S whole panels, x 16 outputs
//                                                    -> acc [R][16]
//   expand<L>(block, chunk, count, buffer)           `count` k of a tile as floats [count][16]; block: the header of 256
//   kDirect<L>                                       whether add_chunk reads this float layout as it is stored
//   add_chunk<L, R>(w, x, stride, count, acc)        acc [R][16] += product of one chunk; L is kF32 for expanded ones
//   add_tiles<T>(w, x, stride, count, acc)           kFloatRows rows of T expanded tiles at once, w one pointer each;
//                                                    acc [T][kTileSums]; none where kFloatTiles is 1
//   store_row(acc, columns, out, bias, residual)     the epilogue of one row of one tile
#pragma once
#include "kernels/layout.h"
#include "kernels/linear.h"
#include "kernels/stream.h"

#if defined(__clang__)
#define TIDEMILL_UNROLL _Pragma("unroll")
#else
#define TIDEMILL_UNROLL _Pragma("GCC unroll 16")
#endif

namespace tidemill {

struct GroupScale {
  float scale;
  float inverse;  // 0 where the whole group becomes 0
};

// Bits of the largest magnitude of a group.
inline constexpr std::int32_t kInfinitePeak = 0x7f800000;
inline constexpr std::int32_t kSmallestPeak = 0x0d800000;  // 2^-100: 127 / peak stays finite and normal

// From those bits (see linear.h, "quantize").
static inline GroupScale group_scale(std::int32_t peak_bits) {
  if (peak_bits >= kInfinitePeak) return {__builtin_nanf(""), 0.0f};
  if (peak_bits < kSmallestPeak) return {0.0f, 0.0f};
  const float peak = __builtin_bit_cast(float, peak_bits);
  return {peak / 127.0f, 127.0f / peak};
}

// Outputs of rows row .. row + rows - 1 in one tile, from acc [rows][16].
template <class Isa>
void store_tile(const float* acc, std::int32_t row, std::int32_t rows, std::int32_t tile, std::int32_t n,
                const LinearOutput& output) {
  const std::int32_t column = tile * kTileColumns;
  const std::int32_t columns = n - column < kTileColumns ? n - column : kTileColumns;
  const float* bias = output.bias != nullptr ? output.bias + column : nullptr;
  for (std::int32_t r = 0; r < rows; ++r) {
    const auto at = static_cast<std::size_t>(row + r);
    const float* residual =
        output.residual != nullptr ? output.residual + at * output.residual_stride + column : nullptr;
    Isa::store_row(acc + r * kTileColumns, columns, output.out + at * output.out_stride + column, bias, residual);
  }
}

template <class Isa>
void quantize_groups(const float* x, std::size_t stride, const QuantizedRows& out, std::int32_t group_begin,
                     std::int32_t group_end) {
  for (std::int32_t first = 0; first < out.rows; first += kPanelRows) {
    const std::int32_t rows = out.rows - first < kPanelRows ? out.rows - first : kPanelRows;
    const auto before = static_cast<std::size_t>(first) * static_cast<std::size_t>(out.k / kGroup) +
                        static_cast<std::size_t>(group_begin * rows);
    std::int8_t* values = out.values + before * kGroup;
    float* scales = out.scales + before * kGroupScales;
    const std::int32_t groups = group_end - group_begin;
    for (std::int32_t g = 0; g < groups; ++g, values += kGroup * rows, scales += kGroupScales * rows) {
      if constexpr (requires { &Isa::quantize_panel_group; }) {
        const float* group = x + static_cast<std::size_t>(first) * stride + g * kGroup;
        if (rows == kPanelRows && Isa::quantize_panel_group(group, stride, values, scales)) continue;
      }
      for (std::int32_t r = 0; r < rows; ++r) {
        alignas(32) std::int8_t group[kGroup];
        std::int16_t half_sums[2];
        Isa::quantize_group(x + static_cast<std::size_t>(first + r) * stride + g * kGroup, group, scales + r,
                            scales + rows + r, half_sums);
        __builtin_memcpy(scales + 2 * rows + r, half_sums, 4);
        for (int quad = 0; quad < kGroup / 4; ++quad) __builtin_memcpy(values + 4 * (quad * rows + r), group + 4 * quad, 4);
      }
    }
  }
}

template <class Isa, Layout L>
struct QuantizedTile {
  using Kernel = void (*)(const std::uint8_t* tile, const std::int8_t* x, const float* scales, std::int32_t groups,
                          float* acc);

  // The first panel of a tile brings the weights in, so it prefetches; the others find them in the cache.
  static constexpr Kernel kStream[kPanelRows] = {
      Isa::template quantized_tile<L, 1, 1, true>, Isa::template quantized_tile<L, 2, 2, true>,
      Isa::template quantized_tile<L, 3, 3, true>, Isa::template quantized_tile<L, 4, 4, true>};

  // [rows of the panel - 1][rows of the call - 1]
  static constexpr Kernel kResident[kPanelRows][kPanelRows] = {
      {Isa::template quantized_tile<L, 1, 1, false>, nullptr, nullptr, nullptr},
      {Isa::template quantized_tile<L, 1, 2, false>, Isa::template quantized_tile<L, 2, 2, false>, nullptr, nullptr},
      {Isa::template quantized_tile<L, 1, 3, false>, Isa::template quantized_tile<L, 2, 3, false>,
       Isa::template quantized_tile<L, 3, 3, false>, nullptr},
      {Isa::template quantized_tile<L, 1, 4, false>, Isa::template quantized_tile<L, 2, 4, false>,
       Isa::template quantized_tile<L, 3, 4, false>, Isa::template quantized_tile<L, 4, 4, false>}};

  // All the panels of one call, where this instruction set has registers for their sums.
  static constexpr int kWideRows = Isa::kCallPanels * kPanelRows;
  static constexpr Kernel kWide[2] = {Isa::template quantized_tile<L, kWideRows, kPanelRows, false>,
                                      Isa::template quantized_tile<L, kWideRows, kPanelRows, true>};

  // One panel of `rows` rows, in calls of at most `step` rows; or kWideRows rows in one call.
  static void panel(const std::uint8_t* tile, const std::int8_t* x, const float* scales, std::int32_t groups,
                    std::int32_t rows, std::int32_t step, bool stream, float* acc) {
    if (rows > kPanelRows) {
      kWide[stream](tile, x, scales, groups, acc);
      return;
    }
    if (step >= rows) {
      (stream ? kStream[rows - 1] : kResident[rows - 1][rows - 1])(tile, x, scales, groups, acc);
      return;
    }
    for (std::int32_t r = 0; r < rows; r += step) {
      const std::int32_t count = rows - r < step ? rows - r : step;
      kResident[rows - 1][count - 1](tile, x + 4 * r, scales + r, groups, acc + r * kTileColumns);
    }
  }
};

// Rows per pass over the tiles: activations of one pass stay in the nearer caches, weights are read once per pass.
inline constexpr std::int32_t kBlockRows = 64;

// Floats between the sums of two tiles. At 4 KiB exactly, reading those of one would wait for writing those of the other.
inline constexpr std::int32_t kTileSums = (kBlockRows + 12) * kTileColumns;

template <class Isa, Layout L>
void quantized_tiles(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t tile_begin, std::int32_t tile_end,
                     const LinearOutput& output, std::int32_t variant) {
  constexpr std::int32_t kWideRows = QuantizedTile<Isa, L>::kWideRows;
  const std::int32_t step = variant > 0 ? variant : kPanelRows;
  const std::int32_t groups = x.k / kGroup;
  for (std::int32_t begin = 0; begin < x.rows; begin += kBlockRows) {
    const std::int32_t end = x.rows - begin < kBlockRows ? x.rows : begin + kBlockRows;
    for (std::int32_t t = tile_begin; t < tile_end; ++t) {
      const std::uint8_t* tile = weight.data + weight.tile_bytes * static_cast<std::size_t>(t);
      for (std::int32_t row = begin, rows; row < end; row += rows) {
        rows = variant == 0 && end - row >= kWideRows ? kWideRows : std::int32_t{kPanelRows};
        if (end - row < rows) rows = end - row;
        const auto at = static_cast<std::size_t>(row);
        alignas(64) float acc[kWideRows * kTileColumns];
        QuantizedTile<Isa, L>::panel(tile, x.values + at * static_cast<std::size_t>(x.k),
                                     x.scales + at * static_cast<std::size_t>(groups) * kGroupScales, groups, rows, step,
                                     row == begin, acc);
        store_tile<Isa>(acc, row, rows, t, weight.n, output);
      }
    }
  }
}

// run.operator()<L>() for a layout that has a product with 8-bit activations.
template <class Run>
auto with_quantized_layout(Layout layout, const Run& run) {
  switch (layout) {
    case Layout::kQ4Symmetric: return run.template operator()<Layout::kQ4Symmetric>();
    case Layout::kQ4Affine: return run.template operator()<Layout::kQ4Affine>();
    case Layout::kQ8: return run.template operator()<Layout::kQ8>();
    case Layout::kQ4Super: return run.template operator()<Layout::kQ4Super>();
    case Layout::kQ5Super: return run.template operator()<Layout::kQ5Super>();
    case Layout::kQ6Halves: return run.template operator()<Layout::kQ6Halves>();
    case Layout::kQ5Symmetric: return run.template operator()<Layout::kQ5Symmetric>();
    case Layout::kQ5Affine: return run.template operator()<Layout::kQ5Affine>();
    case Layout::kQ3Halves: return run.template operator()<Layout::kQ3Halves>();
    case Layout::kQ2Halves: return run.template operator()<Layout::kQ2Halves>();
    case Layout::kQ4Table: return run.template operator()<Layout::kQ4Table>();
    case Layout::kFloat4Table: return run.template operator()<Layout::kFloat4Table>();
    case Layout::kQ4Zero: return run.template operator()<Layout::kQ4Zero>();
    case Layout::kFloat8:
    case Layout::kF16:
    case Layout::kBF16:
    case Layout::kF32: break;
  }
  __builtin_trap();
}

template <class Isa>
void linear_quantized(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t tile_begin,
                      std::int32_t tile_end, const LinearOutput& output, int variant, ExpandedTiles*) {
  with_quantized_layout(weight.layout, [&]<Layout L>() {
    quantized_tiles<Isa, L>(weight, x, tile_begin, tile_end, output, variant);
  });
}

// Bytes of 32 k of one tile, without the header of 256.
template <Layout L>
inline constexpr std::size_t kChunkBytes = L == Layout::kF32      ? 2048
                                           : L >= Layout::kF16    ? 1024
                                                                  : static_cast<std::size_t>(kShape<L>.group_bytes());

// acc [rows][16] += chunk product, in calls of at most `step` rows.
template <class Isa, Layout L>
void add_chunk_rows(const std::uint8_t* w, const float* x, std::size_t stride, std::int32_t rows, std::int32_t step,
                    std::int32_t count, float* acc) {
  for (std::int32_t r = 0; r < rows;) {
    std::int32_t left = rows - r < step ? rows - r : step;
    const float* first = x + static_cast<std::size_t>(r) * stride;
    float* total = acc + r * kTileColumns;
    switch (left) {
      case 1: Isa::template add_chunk<L, 1>(w, first, stride, count, total); break;
      case 2: Isa::template add_chunk<L, 2>(w, first, stride, count, total); break;
      case 3: Isa::template add_chunk<L, 3>(w, first, stride, count, total); break;
      case Isa::kFloatRows: Isa::template add_chunk<L, Isa::kFloatRows>(w, first, stride, count, total); break;
      default:
        left = 4;
        Isa::template add_chunk<L, 4>(w, first, stride, count, total);
        break;
    }
    r += left;
  }
}

// Asks for 32 k of R rows of activations. Rows lie too far apart for the processor to foresee the next.
template <int R>
inline void fetch_rows(const float* x, std::size_t stride) {
  for (int r = 0; r < R; ++r, x += stride) {
    __builtin_prefetch(x);
    __builtin_prefetch(x + kGroup / 2);
  }
}

// The same for `Tiles` expanded tiles, acc [tile][kTileSums]: whole calls of kFloatRows rows do all tiles at once.
template <class Isa, int Tiles>
void add_tiles_rows(const float* const (&w)[Tiles], const float* x, std::size_t stride, std::int32_t rows,
                    std::int32_t step, std::int32_t count, float* acc) {
  std::int32_t r = 0;
  if constexpr (Tiles > 1) {
    for (; r + Isa::kFloatRows <= rows; r += Isa::kFloatRows) {
      const std::int32_t next = r + 2 * Isa::kFloatRows <= rows ? r + Isa::kFloatRows : 0;
      fetch_rows<Isa::kFloatRows>(x + static_cast<std::size_t>(next) * stride + (next == 0 ? kGroup : 0), stride);
      Isa::template add_tiles<Tiles>(w, x + static_cast<std::size_t>(r) * stride, stride, count, acc + r * kTileColumns);
    }
  }
  const float* rest = x + static_cast<std::size_t>(r) * stride;
  for (int t = 0; t < Tiles && r < rows; ++t) {
    add_chunk_rows<Isa, Layout::kF32>(reinterpret_cast<const std::uint8_t*>(w[t]), rest, stride, rows - r, step, count,
                                      acc + t * kTileSums + r * kTileColumns);
  }
}

// `Tiles` neighbouring tiles for up to kBlockRows rows, acc [tile][kTileSums]. They are expanded 32 k at a time into
// 2 KiB each that stay in the first-level cache, unless one is used only once.
template <class Isa, Layout L, int Tiles>
void float_tiles_rows(const std::uint8_t* tile, std::size_t tile_bytes, std::int32_t k, const float* x,
                      std::size_t stride, std::int32_t rows, std::int32_t step, float* acc) {
  constexpr std::size_t kNear = 2048;  // bytes
  alignas(64) float buffer[Tiles][kGroup * kTileColumns];
  std::size_t block = 0, chunk = 0;  // bytes from the start of each tile
  for (std::int32_t begin = 0; begin < k; begin += kGroup, chunk += kChunkBytes<L>) {
    if (kShape<L>.super() && begin % 256 == 0) {
      block = chunk;
      chunk += kShape<L>.block_header();
    }
    const std::int32_t count = k - begin < kGroup ? k - begin : kGroup;
    for (int t = 0; t < Tiles; ++t) {
      fetch_ahead<kChunkBytes<L>, kNear>(tile + static_cast<std::size_t>(t) * tile_bytes + chunk);
    }
    if constexpr (Isa::template kDirect<L> && Tiles == 1) {
      if (rows <= step) {
        add_chunk_rows<Isa, L>(tile + chunk, x + begin, stride, rows, step, count, acc);
        continue;
      }
    }
    const float* w[Tiles];
    for (int t = 0; t < Tiles; ++t) {
      const std::uint8_t* one = tile + static_cast<std::size_t>(t) * tile_bytes;
      if constexpr (L == Layout::kF32) {
        w[t] = reinterpret_cast<const float*>(one + chunk);
      } else {
        Isa::template expand<L>(one + block, one + chunk, count, buffer[t]);
        w[t] = buffer[t];
      }
    }
    add_tiles_rows<Isa, Tiles>(w, x + begin, stride, rows, step, count, acc);
  }
}

template <class Isa, Layout L>
void float_tiles(const PackedMatrix& weight, const float* x, std::size_t stride, std::int32_t rows,
                 std::int32_t tile_begin, std::int32_t tile_end, const LinearOutput& output, std::int32_t variant) {
  const std::int32_t step = variant > 0 ? variant : Isa::kFloatRows;
  alignas(64) float acc[Isa::kFloatTiles * kTileSums];
  for (std::int32_t begin = 0; begin < rows; begin += kBlockRows) {
    const std::int32_t count = rows - begin < kBlockRows ? rows - begin : kBlockRows;
    const std::int32_t most = variant == 0 && count > Isa::kFloatRows ? Isa::kFloatTiles : 1;
    const float* block = x + static_cast<std::size_t>(begin) * stride;
    const auto run = [&]<int Tiles>(std::int32_t first) {
      for (int t = 0; t < Tiles; ++t) {
        float* one = acc + t * kTileSums;
        for (std::int32_t i = 0; i < count * kTileColumns; ++i) one[i] = 0.0f;
      }
      float_tiles_rows<Isa, L, Tiles>(weight.data + weight.tile_bytes * static_cast<std::size_t>(first), weight.tile_bytes,
                                      weight.k, block, stride, count, step, acc);
      for (int t = 0; t < Tiles; ++t) {
        store_tile<Isa>(acc + t * kTileSums, begin, count, first + t, weight.n, output);
      }
      return Tiles;
    };
    for (std::int32_t t = tile_begin; t < tile_end;) {
      const std::int32_t left = tile_end - t;
      if constexpr (Isa::kFloatTiles == 3) {
        if (most == 3 && left >= 3 && left != 4) {  // 4 are twice 2
          t += run.template operator()<3>(t);
          continue;
        }
      }
      if constexpr (Isa::kFloatTiles >= 2) {
        if (most >= 2 && left >= 2) {
          t += run.template operator()<2>(t);
          continue;
        }
      }
      t += run.template operator()<1>(t);
    }
  }
}

template <class Isa>
void linear_float(const PackedMatrix& weight, const float* x, std::size_t stride, std::int32_t rows,
                  std::int32_t tile_begin, std::int32_t tile_end, const LinearOutput& output, int variant) {
  const auto run = [&]<Layout L>() {
    float_tiles<Isa, L>(weight, x, stride, rows, tile_begin, tile_end, output, variant);
  };
  switch (weight.layout) {
    case Layout::kQ4Symmetric: return run.template operator()<Layout::kQ4Symmetric>();
    case Layout::kQ4Affine: return run.template operator()<Layout::kQ4Affine>();
    case Layout::kQ8: return run.template operator()<Layout::kQ8>();
    case Layout::kQ4Super: return run.template operator()<Layout::kQ4Super>();
    case Layout::kQ5Super: return run.template operator()<Layout::kQ5Super>();
    case Layout::kQ6Halves: return run.template operator()<Layout::kQ6Halves>();
    case Layout::kQ5Symmetric: return run.template operator()<Layout::kQ5Symmetric>();
    case Layout::kQ5Affine: return run.template operator()<Layout::kQ5Affine>();
    case Layout::kQ3Halves: return run.template operator()<Layout::kQ3Halves>();
    case Layout::kQ2Halves: return run.template operator()<Layout::kQ2Halves>();
    case Layout::kQ4Table: return run.template operator()<Layout::kQ4Table>();
    case Layout::kFloat4Table: return run.template operator()<Layout::kFloat4Table>();
    case Layout::kQ4Zero: return run.template operator()<Layout::kQ4Zero>();
    case Layout::kFloat8: return run.template operator()<Layout::kFloat8>();
    case Layout::kF16: return run.template operator()<Layout::kF16>();
    case Layout::kBF16: return run.template operator()<Layout::kBF16>();
    case Layout::kF32: return run.template operator()<Layout::kF32>();
  }
}

}  // namespace tidemill
