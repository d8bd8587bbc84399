// Linear kernels for AMX with int8: blocks of 16 rows x 16 outputs. For one block or two see linear_amx_stream.h;
// fewer rows are left to the kernels for AVX-512, with which everything else is shared.
//
// A tile product takes 32 k, one group: its integer sums are exact in any order, and what follows is done in floats in the
// order of linear.h, so the bits are those of every instruction set. Converting and scaling 256 sums takes more than twice
// as long as multiplying them, so that is what everything else is fitted around.
#include <immintrin.h>

#include "kernels/linear_amx_operands.h"
#include "kernels/linear_amx_raise.h"
#include "kernels/linear_amx_stream.h"
#include "kernels/linear_amx_tiles.h"
#include "kernels/linear_avx512_store.h"
#include "kernels/linear_impl.h"
#include "kernels/scratch.h"

namespace tidemill {
namespace {

constexpr int kAhead = 3;  // groups that are multiplied before their sums are due
constexpr int kSlots = 4;  // groups whose sums are kept: the one that is added, and those ahead
constexpr int kLeastRows = 32;  // fewer do not pay for expanding the weights beforehand
constexpr int kLeastTail = 12;   // of a block's 16 rows; fewer are multiplied faster by vectors
constexpr std::size_t kPassBytes = std::size_t{512} << 10;  // expanded weights that stay near

// The tile products of 16 rows with one tile of outputs after the other, group by group. Each is a few steps that are mixed
// with other work. Products take turns with two registers for their sums, and those of one are stored during the next: a
// store right behind its product would hold that up.
template <Form F>
class TileProducts {
 public:
  static constexpr bool kHalves = F == Form::kHalves;
  static constexpr int kSlot = kHalves ? 512 : 256;  // sums of a group: [half][row][output]
  static constexpr int kOneProduct = 5;
  static constexpr int kSteps = kHalves ? 2 * kOneProduct : kOneProduct;

  // rows: the records of `groups` groups; columns: those of as many for each tile. sums: kSlots * kSlot.
  TileProducts(const std::uint8_t* rows, const std::uint8_t* columns, std::int32_t groups, std::int32_t* sums)
      : first_(rows), end_(rows + kRowRecord * static_cast<std::size_t>(groups)), rows_(rows), columns_(columns), sums_(sums) {}

  // A step of the next group, the number of which is odd or not. What the very first one stores is nobody's.
  template <bool Odd>
  void step(int number) const {
    if constexpr (kHalves) {
      if (number < kOneProduct) return half_step<kSums>(number, 0, slot(-1) + 256);
      half_step<kOtherSums>(number - kOneProduct, 1, slot(0));
    } else {
      half_step<Odd ? kOtherSums : kSums>(number, 0, slot(-1));
    }
  }

  // After all its steps.
  void next() {
    rows_ += kRowRecord;
    if (rows_ == end_) rows_ = first_;
    columns_ += column_record(F);
    ++group_;
  }

  // After all groups.
  void store_last() const {
    if (kHalves || group_ % 2 == 0) {
      store_tile_rows<kOtherSums>(slot(-1) + kSlot - 256, 64);
    } else {
      store_tile_rows<kSums>(slot(-1), 64);
    }
  }

 private:
  std::int32_t* slot(std::int64_t after) const { return sums_ + (group_ + kSlots + after) % kSlots * kSlot; }

  // `before`: where the sums of the product before go.
  template <int Sums>
  void half_step(int number, int half, std::int32_t* before) const {
    constexpr int kLeftTile = kHalves ? kLeftHalf : kLeft;
    constexpr int kRightTile = kHalves ? kRightHalf : kRight;
    switch (number) {
      case 0: return zero_tile<Sums>();
      case 1: return load_tile<kLeftTile>(rows_ + kGroup / 2 * half, kGroup);
      case 2: return load_tile<kRightTile>(columns_ + kCodeBytes / 2 * half, 64);
      case 3: return multiply_tiles<Sums, kLeftTile, kRightTile>();
      default: return store_tile_rows<kSums + kOtherSums - Sums>(before, 64);
    }
  }

  const std::uint8_t* first_;
  const std::uint8_t* end_;
  const std::uint8_t* rows_;
  const std::uint8_t* columns_;
  std::int32_t* sums_;
  std::int64_t group_ = 0;
};

inline __m512 raised(const std::int32_t* sums) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_load_si512(sums), _mm512_set1_epi32(kRaise)));
}

inline __m512 as_floats(const std::int32_t* sums) { return _mm512_sub_ps(raised(sums), _mm512_set1_ps(kRaised)); }

// float(sum) * d, rounded once: kRaised * d, of which the second argument is the negative, is exact if d has 22 bits at most.
inline __m512 scaled(const std::int32_t* sums, __m512 d, __m512 minus_raised) {
  return _mm512_fmadd_ps(raised(sums), d, minus_raised);
}

// total += a * b, where it stands: the compiler would copy each total once per group.
inline void add_product(__m512& total, __m512 a, const float& b) {
  __asm__ volatile("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(total) : "v"(a), "m"(b));
}

// total[r] += the product of one group, from its integer sums; between(r) before each row.
template <Form F, class Between>
inline __attribute__((always_inline)) void add_sums(const std::uint8_t* rows, const std::uint8_t* columns, const std::int32_t* sums,
                     const Between& between, __m512 (&total)[16]) {
  const float* scale = floats_of(rows, 0);
  const float* scale_sum = floats_of(rows, 1);
  const auto column = [&](int vector) { return _mm512_load_ps(floats_of(columns, vector)); };
  const __m512 d = column(0);
  const __m512 first = F == Form::kHalves ? column(1) : d;
  const __m512 minus_raised = _mm512_mul_ps(first, _mm512_set1_ps(-kRaised));
  TIDEMILL_UNROLL
  for (int r = 0; r < 16; ++r, sums += 16) {
    between(r);
    __m512 s;
    if constexpr (F == Form::kPower) {
      s = _mm512_mul_ps(as_floats(sums), d);
    } else {
      s = scaled(sums, first, minus_raised);
    }
    if constexpr (F == Form::kHalves) s = _mm512_mul_ps(_mm512_fmadd_ps(as_floats(sums + 256), column(2), s), d);
    add_product(total[r], s, scale[r]);
    if constexpr (F == Form::kMinimum) add_product(total[r], column(1), scale_sum[r]);
  }
}

// 16 rows x `tiles` tiles of outputs, one after the other: emit(tile, acc [16][16]). The products of a tile begin before the
// sums of the one before it are added.
template <Form F, class Emit>
void multiply_tiles_of_rows(const std::uint8_t* rows, const std::uint8_t* columns, std::int32_t groups, std::int32_t tiles,
                            const Emit& emit) {
  using Products = TileProducts<F>;
  alignas(64) std::int32_t sums[kSlots * Products::kSlot];
  alignas(64) float acc[kTileRows * kTileColumns];
  Products products(rows, columns, groups, sums);
  const std::int64_t all = std::int64_t{groups} * tiles;
  const std::int64_t ahead = all < kAhead ? all : std::int64_t{kAhead};
  for (std::int64_t i = 0; i < ahead; ++i, products.next()) {
    for (int step = 0; step < Products::kSteps; ++step) {
      i % 2 != 0 ? products.template step<true>(step) : products.template step<false>(step);
    }
  }
  std::int64_t number = 0;
  for (std::int32_t t = 0; t < tiles; ++t) {
    __m512 total[16];
    TIDEMILL_UNROLL
    for (int r = 0; r < 16; ++r) total[r] = _mm512_setzero_ps();
    for (std::int32_t g = 0; g < groups; ++g, ++number, columns += column_record(F)) {
      const std::uint8_t* row = rows + kRowRecord * static_cast<std::size_t>(g);
      const std::int32_t* group = sums + number % kSlots * Products::kSlot;
      const auto with_products = [&]<bool Odd>() __attribute__((always_inline)) {
        constexpr int kEvery = 16 / Products::kSteps;
        add_sums<F>(row, columns, group, [&](int r) __attribute__((always_inline)) {
          if (r % kEvery == 0 && r / kEvery < Products::kSteps) products.template step<Odd>(r / kEvery);
        }, total);
        products.next();
      };
      if (number + ahead < all) {
        (number + ahead) % 2 != 0 && !Products::kHalves ? with_products.template operator()<true>()
                                                        : with_products.template operator()<false>();
      } else {
        if (number + ahead == all) products.store_last();
        add_sums<F>(row, columns, group, [](int) {}, total);
      }
    }
    TIDEMILL_UNROLL
    for (int r = 0; r < 16; ++r) _mm512_store_ps(acc + 16 * r, total[r]);
    emit(t, acc);
  }
}

// In equal passes whose expanded weights fit kPassBytes, but of two tiles at least.
std::int32_t tiles_per_pass(std::int32_t tiles, std::size_t tile_bytes) {
  const auto fitting = static_cast<std::int32_t>(kPassBytes / tile_bytes);
  const std::int32_t most = fitting < 2 ? 2 : fitting;
  const std::int32_t passes = (tiles + most - 1) / most;
  return (tiles + passes - 1) / passes;
}

// One product of some rows and tiles of a weight of layout L.
template <Layout L>
struct TiledProduct {
  static constexpr Form kForm = form_of(L);
  const PackedMatrix& weight;
  const QuantizedRows& x;
  std::int32_t rows;  // of x, from its first on
  const LinearOutput& output;

  std::int32_t groups() const { return x.k / kGroup; }
  std::size_t tile_bytes() const { return column_record(kForm) * static_cast<std::size_t>(groups()); }
  std::size_t block_bytes() const { return kRowRecord * static_cast<std::size_t>(groups()); }

  // False where a scale is infinite.
  bool expand(std::int32_t begin, std::int32_t end, std::uint8_t* columns) const {
    bool finite = true;
    for (std::int32_t t = begin; t < end; ++t, columns += tile_bytes()) {
      finite &= expand_columns<L>(weight.data + weight.tile_bytes * static_cast<std::size_t>(t), groups(), columns);
    }
    return finite;
  }

  // All rows times tiles [begin, end), which lie expanded at `columns`. block: room for 16 expanded rows.
  void multiply(std::int32_t begin, std::int32_t end, const std::uint8_t* columns, std::uint8_t* block) const {
    for (std::int32_t row = 0; row < rows; row += kTileRows) {
      const std::int32_t count = rows - row < kTileRows ? rows - row : kTileRows;
      expand_rows(x, row, block);
      multiply_tiles_of_rows<kForm>(block, columns, groups(), end - begin, [&](std::int32_t t, const float* acc) {
        store_tile<Avx512Store>(acc, row, count, begin + t, weight.n, output);
      });
    }
  }
};

// Rows [0, rows) of tiles [tile_begin, tile_end): with the tiles that are kept, where there is room for all of them, else
// pass by pass. False, with nothing done, where there is no memory.
template <Layout L>
bool multiply_rows(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t rows, std::int32_t tile_begin,
                   std::int32_t tile_end, const LinearOutput& output, ExpandedTiles* kept) {
  const TiledProduct<L> product{weight, x, rows, output};
  const std::int32_t tiles = tile_end - tile_begin;
  std::uint8_t* block = thread_scratch(product.block_bytes());
  if (block == nullptr) return false;
  ExpandedTiles::Place place{nullptr, false};
  if (kept != nullptr) {
    place = kept->of(weight.data + weight.tile_bytes * static_cast<std::size_t>(tile_begin),
                     product.tile_bytes() * static_cast<std::size_t>(tiles));
  }
  std::int32_t per_pass = tiles;
  std::uint8_t* columns = place.bytes;
  if (columns == nullptr) {
    per_pass = tiles_per_pass(tiles, product.tile_bytes());
    block = thread_scratch(product.block_bytes() + product.tile_bytes() * static_cast<std::size_t>(per_pass));
    if (block == nullptr) return false;
    columns = block + product.block_bytes();
  }
  configure_tiles();
  for (std::int32_t begin = tile_begin; begin < tile_end; begin += per_pass) {
    const std::int32_t end = tile_end - begin < per_pass ? tile_end : begin + per_pass;
    if (!place.filled && !product.expand(begin, end, columns)) {
      if (place.bytes != nullptr) kept->take_back();
      linear_kernels_avx512().linear_quantized(weight, {rows, x.k, x.values, x.scales}, begin, end, output, 0, nullptr);
      continue;
    }
    product.multiply(begin, end, columns, block);
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

// The outputs of up to 16 rows, tile after tile, beside weights that come from memory. Every row has its outputs, and what is
// added to them, in a line and a page of its own. Going through 16 of those after each tile makes the processor lose the
// weights that it fetches ahead on its own, which costs up to a quarter of the product. So outputs go past the caches, and
// where something is added some tiles wait for each other.
class StreamOutput {
 public:
  StreamOutput(const PackedMatrix& weight, const LinearOutput& output, std::int32_t row, std::int32_t rows, std::int32_t first)
      : output_(output), n_(weight.n), row_(row), rows_(rows), first_(first), past_caches_(weight.bytes() >= kLeastBytes) {}

  // Sums [16][16] of the tile behind the one before.
  void add(const float* acc) {
    if (past_caches_ && output_.residual == nullptr) return store(acc, 1);
    __builtin_memcpy(kept_[count_], acc, sizeof(kept_[0]));
    if (++count_ == kKept) flush();
  }

  // What was added so far is written, and the next tile is this one.
  void flush(std::int32_t next) {
    flush();
    first_ = next;
  }

  static void finish() { Avx512PastCaches::finish(); }

 private:
  static constexpr std::int32_t kKept = 16;
  static constexpr std::size_t kLeastBytes = std::size_t{4} << 20;  // of a weight: the outputs of others are still near when they are read

  void flush() {
    const std::int32_t count = count_;
    count_ = 0;
    store(kept_[0], count);
  }

  void store(const float* sums, std::int32_t count) {
    past_caches_ ? store_rows<Avx512PastCaches>(sums, count) : store_rows<Avx512Store>(sums, count);
    first_ += count;
  }

  template <class Store>
  void store_rows(const float* sums, std::int32_t count) const {
    for (std::int32_t r = 0; r < rows_; ++r) {
      LinearOutput one = output_;
      one.out += static_cast<std::size_t>(row_ + r) * output_.out_stride;
      if (one.residual != nullptr) one.residual += static_cast<std::size_t>(row_ + r) * output_.residual_stride;
      for (std::int32_t t = 0; t < count; ++t) {
        store_tile<Store>(sums + (t * kTileRows + r) * kTileColumns, 0, 1, first_ + t, n_, one);
      }
    }
  }

  const LinearOutput& output_;
  const std::int32_t n_, row_, rows_;
  std::int32_t first_;  // tile of the sums that are kept
  std::int32_t count_ = 0;
  const bool past_caches_;
  alignas(64) float kept_[kKept][kTileRows * kTileColumns];
};

// Rows [0, rows) of some tiles, which are not expanded beforehand. False, with nothing done, where there is no memory.
template <Layout L>
bool stream_rows(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t rows, std::int32_t tile_begin,
                 std::int32_t tile_end, const LinearOutput& output) {
  const std::size_t block_bytes = block_record(form_of(L)) * static_cast<std::size_t>(x.k / kGroup);
  const std::int32_t blocks = (rows + kTileRows - 1) / kTileRows;
  std::uint8_t* const records = thread_scratch(block_bytes * static_cast<std::size_t>(blocks));
  if (records == nullptr) return false;
  for (std::int32_t b = 0; b < blocks; ++b) {
    make_block<L>(x, b * kTileRows, records + block_bytes * static_cast<std::size_t>(b));
  }
  // A second block finds the tiles of the first in the cache.
  const std::int32_t tiles = tile_end - tile_begin;
  const std::int32_t per_pass = blocks == 1 ? tiles : tiles_per_pass(tiles, weight.tile_bytes);
  configure_tiles();
  for (std::int32_t begin = tile_begin; begin < tile_end; begin += per_pass) {
    const std::int32_t end = tile_end - begin < per_pass ? tile_end : begin + per_pass;
    for (std::int32_t b = 0; b < blocks; ++b) {
      const std::int32_t row = b * kTileRows;
      const std::int32_t count = rows - row < kTileRows ? rows - row : kTileRows;
      StreamOutput sums(weight, output, row, count, begin);
      stream_tiles<L>(weight, records + block_bytes * static_cast<std::size_t>(b), begin, end,
                      [&](std::int32_t t, const float* acc, bool finite) {
        if (finite) return sums.add(acc);
        sums.flush(t + 1);
        QuantizedRows own = rows_from(x, row);
        own.rows = count;
        linear_kernels_avx512().linear_quantized(weight, own, t, t + 1, rows_from(output, row), 0, nullptr);
      });
      sums.flush(end);
    }
  }
  StreamOutput::finish();
  release_tiles();
  return true;
}

// The rows that tiles multiply; the others come after them.
std::int32_t rows_for_tiles(const PackedMatrix& weight, std::int32_t rows) {
  if (!has_form(weight.layout) || (rows < kLeastRows && weight.k % (2 * kGroup) != 0)) return 0;
  const std::int32_t tail = rows % kTileRows;
  return tail < kLeastTail ? rows - tail : rows;
}

void linear_quantized_amx(const PackedMatrix& weight, const QuantizedRows& x, std::int32_t tile_begin,
                          std::int32_t tile_end, const LinearOutput& output, int variant, ExpandedTiles* kept) {
  if (tile_begin == tile_end) return;
  std::int32_t rows = variant > 0 ? 0 : rows_for_tiles(weight, x.rows);
  const bool done = rows > 0 && with_quantized_layout(weight.layout, [&]<Layout L>() {
    if constexpr (has_form(L)) {
      return x.rows < kLeastRows ? stream_rows<L>(weight, x, rows, tile_begin, tile_end, output)
                                 : multiply_rows<L>(weight, x, rows, tile_begin, tile_end, output, kept);
    }
    return false;
  });
  if (!done) rows = 0;
  if (rows == x.rows) return;
  linear_kernels_avx512().linear_quantized(weight, rows_from(x, rows), tile_begin, tile_end, rows_from(output, rows),
                                           variant, nullptr);
}

void quantize(const float* x, std::size_t stride, const QuantizedRows& out, std::int32_t group_begin, std::int32_t group_end) {
  linear_kernels_avx512().quantize(x, stride, out, group_begin, group_end);
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
