// Linear kernels for AMX with int8: blocks of 16 rows x 16 outputs. Few rows are left to the kernels for AVX-512, with
// which everything else is shared.
//
// A tile product takes 32 k, one group: its integer sums are exact in any order, and what follows is done in floats in the
// order of linear.h, so the bits are those of every instruction set. Converting and scaling 256 sums takes twice as long
// as multiplying them; the tiles are therefore a few groups ahead.
#include <immintrin.h>

#include "kernels/linear_amx_operands.h"
#include "kernels/linear_amx_tiles.h"
#include "kernels/linear_avx512_store.h"
#include "kernels/linear_impl.h"
#include "kernels/scratch.h"

namespace tidemill {
namespace {

constexpr int kAhead = 3;  // groups
constexpr int kSlots = 4;
constexpr int kLeastRows = 32;  // fewer do not pay for expanding the weights
constexpr int kLeastTail = 12;   // of a block's 16 rows; fewer are multiplied faster by vectors
constexpr std::size_t kPassBytes = std::size_t{512} << 10;  // expanded weights that stay near

// The integer sums [half][16 rows][16 outputs] of one group, in steps that are mixed with other work.
template <Form F>
struct TileProduct {
  static constexpr int kStepsOfOne = 5;
  static constexpr int kSteps = F == Form::kHalves ? 2 * kStepsOfOne : kStepsOfOne;
  static constexpr int kLeftTile = F == Form::kHalves ? kLeftHalf : kLeft;
  static constexpr int kRightTile = F == Form::kHalves ? kRightHalf : kRight;

  const std::uint8_t* rows;
  const std::uint8_t* columns;
  std::int32_t* sums;

  void step(int number) const {
    const int half = number / kStepsOfOne;
    switch (number % kStepsOfOne) {
      case 0: return zero_tile<kSums>();
      case 1: return load_tile<kLeftTile>(rows + kGroup / 2 * half, kGroup);
      case 2: return load_tile<kRightTile>(columns + kCodeBytes / 2 * half, 64);
      case 3: return multiply_tiles<kSums, kLeftTile, kRightTile>();
      default: return store_tile_rows<kSums>(sums + 256 * half, 64);
    }
  }

  void all() const {
    TIDEMILL_UNROLL
    for (int i = 0; i < kSteps; ++i) step(i);
  }
};

// While tiles are in use the processor multiplies floats with one of its two units only, and conversions belong to that
// one too. Additions do not: with 1.5 * 2^23 added as an integer, the bits of a sum below 2^22 are those of a float.
inline __m512 as_floats(const std::int32_t* sums) {
  const __m512i raised = _mm512_add_epi32(_mm512_load_si512(sums), _mm512_set1_epi32(0x4b400000));
  return _mm512_sub_ps(_mm512_castsi512_ps(raised), _mm512_set1_ps(12582912.0f));
}

// total += a * b, where it stands: the compiler would copy each total once per group.
inline void add_product(__m512& total, __m512 a, __m512 b) {
  __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(total) : "v"(a), "v"(b));
}

inline void add_product(__m512& total, __m512 a, const float& b) {
  __asm__ volatile("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(total) : "v"(a), "m"(b));
}

// total[r] += the product of one group, from its integer sums; between(r) before each row.
template <Form F, class Between>
inline void add_sums(const TileProduct<F>& group, const Between& between, __m512 (&total)[16]) {
  const float* scale = floats_of(group.rows, 0);
  const float* scale_sum = floats_of(group.rows, 1);
  const auto column = [&](int vector) { return _mm512_load_ps(floats_of(group.columns, vector)); };
  const __m512 d = column(0);
  TIDEMILL_UNROLL
  for (int r = 0; r < 16; ++r) {
    between(r);
    __m512 s = as_floats(group.sums + 16 * r);
    if constexpr (F == Form::kHalves) {
      s = _mm512_mul_ps(column(1), s);
      add_product(s, column(2), as_floats(group.sums + 256 + 16 * r));
    }
    add_product(total[r], s, _mm512_mul_ps(d, _mm512_set1_ps(scale[r])));
    if constexpr (F == Form::kMinimum) add_product(total[r], column(1), scale_sum[r]);
  }
}

// 16 rows x 16 outputs -> acc [16][16].
template <Form F>
void multiply_block(const std::uint8_t* rows, const std::uint8_t* columns, std::int32_t groups, float* acc) {
  constexpr int kSlot = F == Form::kHalves ? 512 : 256;
  alignas(64) std::int32_t sums[kSlots * kSlot];
  const auto product = [&](std::int32_t g) {
    const auto at = static_cast<std::size_t>(g);
    return TileProduct<F>{rows + at * kRowRecord, columns + at * column_record(F), sums + g % kSlots * kSlot};
  };
  __m512 total[16];
  TIDEMILL_UNROLL
  for (int r = 0; r < 16; ++r) total[r] = _mm512_setzero_ps();
  for (std::int32_t g = 0; g < kAhead && g < groups; ++g) product(g).all();
  std::int32_t g = 0;
  for (; g + kAhead < groups; ++g) {
    const TileProduct<F> next = product(g + kAhead);
    constexpr int kEvery = 16 / TileProduct<F>::kSteps;
    add_sums<F>(product(g), [&](int r) {
      if (r % kEvery == 0 && r / kEvery < TileProduct<F>::kSteps) next.step(r / kEvery);
    }, total);
  }
  for (; g < groups; ++g) add_sums<F>(product(g), [](int) {}, total);
  TIDEMILL_UNROLL
  for (int r = 0; r < 16; ++r) _mm512_store_ps(acc + 16 * r, total[r]);
}

// In equal passes whose expanded weights fit kPassBytes, but of two tiles at least.
std::int32_t tiles_per_pass(std::int32_t tiles, std::size_t tile_bytes) {
  const auto fitting = static_cast<std::int32_t>(kPassBytes / tile_bytes);
  const std::int32_t most = fitting < 2 ? 2 : fitting;
  const std::int32_t passes = (tiles + most - 1) / most;
  return (tiles + passes - 1) / passes;
}

// Rows [0, rows) of tiles [tile_begin, tile_end). False, with nothing done, where there is no memory.
template <Layout L>
bool multiply_rows(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t rows, std::int32_t tile_begin,
                   std::int32_t tile_end, const LinearOutput& output) {
  constexpr Form form = form_of(L);
  const std::int32_t groups = x.k / kGroup;
  const std::size_t tile_bytes = column_record(form) * static_cast<std::size_t>(groups);
  const std::size_t block_bytes = kRowRecord * static_cast<std::size_t>(groups);
  const std::int32_t per_pass = tiles_per_pass(tile_end - tile_begin, tile_bytes);
  std::uint8_t* columns = thread_scratch(block_bytes + tile_bytes * static_cast<std::size_t>(per_pass));
  if (columns == nullptr) return false;
  std::uint8_t* block = columns + tile_bytes * static_cast<std::size_t>(per_pass);
  configure_tiles();
  for (std::int32_t begin = tile_begin; begin < tile_end; begin += per_pass) {
    const std::int32_t end = tile_end - begin < per_pass ? tile_end : begin + per_pass;
    for (std::int32_t t = begin; t < end; ++t) {
      expand_columns<L>(weight.data + weight.tile_bytes * static_cast<std::size_t>(t), groups,
                        columns + tile_bytes * static_cast<std::size_t>(t - begin));
    }
    for (std::int32_t row = 0; row < rows; row += kTileRows) {
      const std::int32_t count = rows - row < kTileRows ? rows - row : kTileRows;
      expand_rows(x, row, block);
      for (std::int32_t t = begin; t < end; ++t) {
        alignas(64) float acc[kTileRows * kTileColumns];
        multiply_block<form>(block, columns + tile_bytes * static_cast<std::size_t>(t - begin), groups, acc);
        store_tile<Avx512Store>(acc, row, count, t, weight.n, output);
      }
    }
  }
  release_tiles();
  return true;
}

// Rows from `first` on, a multiple of kPanelRows.
QuantizedRows rows_from(const QuantizedRows& x, std::int32_t first) {
  const auto at = static_cast<std::size_t>(first);
  const auto k = static_cast<std::size_t>(x.k);
  return {x.rows - first, x.k, x.values + at * k, x.scales + at * (k / kGroup) * kGroupScales};
}

LinearOutput rows_from(LinearOutput output, std::int32_t first) {
  const auto at = static_cast<std::size_t>(first);
  output.out += at * output.out_stride;
  if (output.residual != nullptr) output.residual += at * output.residual_stride;
  return output;
}

// The rows that tiles multiply; the others come after them.
std::int32_t rows_for_tiles(Layout layout, std::int32_t rows) {
  if (rows < kLeastRows || !has_form(layout)) return 0;
  const std::int32_t tail = rows % kTileRows;
  return tail < kLeastTail ? rows - tail : rows;
}

void linear_quantized_amx(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t tile_begin,
                          std::int32_t tile_end, const LinearOutput& output, int variant) {
  if (tile_begin == tile_end) return;
  std::int32_t rows = variant > 0 ? 0 : rows_for_tiles(weight.layout, x.rows);
  const bool done = rows > 0 && with_quantized_layout(weight.layout, [&]<Layout L>() {
    if constexpr (has_form(L)) return multiply_rows<L>(weight, x, rows, tile_begin, tile_end, output);
    return false;
  });
  if (!done) rows = 0;
  if (rows == x.rows) return;
  linear_kernels_avx512().linear_quantized(weight, rows_from(x, rows), tile_begin, tile_end, rows_from(output, rows),
                                           variant);
}

void quantize(const float* x, std::size_t stride, QuantizedRows out, std::int32_t panel_begin, std::int32_t panel_end) {
  linear_kernels_avx512().quantize(x, stride, out, panel_begin, panel_end);
}

void linear_float_avx512(const PackedMatrix& weight, const float* x, std::size_t stride, std::int32_t rows,
                         std::int32_t tile_begin, std::int32_t tile_end, const LinearOutput& output, int variant) {
  linear_kernels_avx512().linear_float(weight, x, stride, rows, tile_begin, tile_end, output, variant);
}

}  // namespace

const LinearKernels& linear_kernels_amx() {
  static constexpr LinearKernels kernels = {"amx", quantize, linear_quantized_amx, linear_float_avx512};
  return kernels;
}

}  // namespace tidemill
