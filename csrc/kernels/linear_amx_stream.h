// One block of up to 16 rows times a quantised matrix, with AMX: what a step of some decoding sequences needs. The weights
// pass once, so they are not expanded beforehand: the codes of a group are, a few groups before its product, while the sums
// of an earlier one are added. Those three and the fetches from memory are mixed, row by row.
//
//   Block    per group: codes [row][k] | scale [16] | scale_sum [16], where minimums want it
//
// Sums become floats with one integer addition, that of kRaise, which waits in a register: so the products have to be those
// of signed codes. That of linear.h is what comes out, bit by bit.
//
// For linear_amx.cpp alone: everything is in an anonymous namespace, and compiled for AVX-512.
#pragma once
#include <immintrin.h>

#include <utility>

#include "kernels/linear_amx_operands.h"
#include "kernels/linear_amx_raise.h"
#include "kernels/linear_amx_tiles.h"
#include "kernels/linear_avx512_store.h"
#include "kernels/stream.h"

namespace tidemill {
namespace {

// Whether codes are multiplied as they lie in memory.
template <Layout L>
inline constexpr bool kStored = L == Layout::kQ8;

// Whether codes stay in the upper half of their bytes, 16 times as large: there one operation makes signed numbers of those
// that are 8 too much. Scales are divided by 16, which is exact.
template <Layout L>
inline constexpr bool kUpperHalf = L == Layout::kQ4Symmetric;

template <Layout L>
inline constexpr bool kUnsignedCodes = !kSignedCodes<L> && !kShape<L>.subtracts();

constexpr std::size_t block_record(Form form) { return kCodeBytes + (form == Form::kMinimum ? 128 : 64); }

// The codes of quads `pair` * 2 and that + 1 of a group, for tiles.
template <Layout L>
inline void expand_pair(const std::uint8_t* group, int pair, std::uint8_t* codes) {
  codes += 128 * pair;
  if constexpr (kUpperHalf<L>) {
    const std::uint8_t* left = group + kShape<L>.group_header() + 32 * pair;
    const __m512i bytes = _mm512_inserti64x4(_mm512_castsi256_si512(load_half_vector(left)), load_half_vector(left + 128), 1);
    const __m512i upper = _mm512_set1_epi8(static_cast<char>(0xf0)), sign = _mm512_set1_epi8(static_cast<char>(0x80));
    constexpr int kAndXor = 0x6a;
    _mm512_store_si512(codes, _mm512_ternarylogic_epi32(_mm512_slli_epi16(bytes, 4), upper, sign, kAndXor));
    _mm512_store_si512(codes + 64, _mm512_ternarylogic_epi32(bytes, upper, sign, kAndXor));
  } else {
    TIDEMILL_UNROLL
    for (int quad = 2 * pair; quad < 2 * pair + 2; ++quad) {
      const __m512i made = kUnsignedCodes<L> ? codes_at<L>(group, quad) : signed_codes<L>(group, quad);
      _mm512_store_si512(codes + 64 * (quad % 2), made);
    }
  }
}

template <int Sums, int Left, int Right, bool Unsigned>
inline void multiply_codes() {
  if constexpr (Unsigned) {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Left), "i"(Right));
  } else {
    multiply_tiles<Sums, Left, Right>();
  }
}

// A panel of Count rows, which are rows row .. row + Count - 1 of a block.
template <Layout L, int Count>
inline void block_panel(const std::int8_t* values, const float* scales, std::int32_t groups, int row, std::uint8_t* out) {
  constexpr Form form = form_of(L);
  for (std::int32_t g = 0; g < groups; ++g, values += kGroup * Count, scales += kGroupScales * Count, out += block_record(form)) {
    std::uint8_t* codes = out + kGroup * row;
    if constexpr (Count == kPanelRows) {
      turn_panel(values, codes);
    } else {
      for (int i = 0; i < kGroup / 4 * Count; ++i) {
        __builtin_memcpy(codes + kGroup * (i % Count) + 4 * (i / Count), values + 4 * i, 4);
      }
    }
    std::uint8_t* words = out + kCodeBytes + 4 * row;
    __builtin_memcpy(words, scales, sizeof(float) * Count);
    if constexpr (form == Form::kMinimum) __builtin_memcpy(words + 64, scales + Count, sizeof(float) * Count);
  }
}

// 16 rows from `first` on, a multiple of them. Those missing become zero.
template <Layout L>
void make_block(const QuantizedRows& x, std::int32_t first, std::uint8_t* out) {
  const std::int32_t groups = x.k / kGroup;
  const std::int32_t rows = x.rows - first < kTileRows ? x.rows - first : kTileRows;
  if (rows < kTileRows) __builtin_memset(out, 0, block_record(form_of(L)) * static_cast<std::size_t>(groups));
  for (std::int32_t row = 0; row < rows; row += kPanelRows) {
    const auto before = static_cast<std::size_t>(first + row) * static_cast<std::size_t>(groups);
    const std::int8_t* values = x.values + before * kGroup;
    const float* scales = x.scales + before * kGroupScales;
    switch (rows - row) {
      case 1: block_panel<L, 1>(values, scales, groups, row, out); break;
      case 2: block_panel<L, 2>(values, scales, groups, row, out); break;
      case 3: block_panel<L, 3>(values, scales, groups, row, out); break;
      default: block_panel<L, kPanelRows>(values, scales, groups, row, out); break;
    }
  }
}

// Goes through the groups of consecutive tiles.
template <Layout L>
class GroupsOf {
 public:
  explicit GroupsOf(const std::uint8_t* tile) : at_(tile) { enter(); }

  const std::uint8_t* group() const { return at_; }
  const std::uint8_t* header() const { return header_; }  // of the 256 k that it is in

  void next() {
    at_ += kShape<L>.group_bytes();
    ++number_;
    enter();
  }

 private:
  void enter() {
    if constexpr (kShape<L>.super()) {
      if (number_ % 8 != 0) return;
      header_ = at_;
      at_ += kShape<L>.block_header();
    }
  }

  const std::uint8_t* at_;
  const std::uint8_t* header_ = nullptr;
  std::uint32_t number_ = 0;
};

// f<R>() for each row of a block: constants, or GCC keeps what the rows sum up to in memory.
template <class F>
inline __attribute__((always_inline)) void each_row(const F& f) {
  [&]<int... R>(std::integer_sequence<int, R...>) __attribute__((always_inline)) {
    (f.template operator()<R>(), ...);
  }(std::make_integer_sequence<int, kTileRows>());
}

// The products of the groups of some tiles with the rows of a block: expanded some groups ahead, begun, and their sums
// stored. Each is a few steps that are mixed with other work.
template <Layout L>
class StreamProducts {
 public:
  static constexpr bool kHalves = form_of(L) == Form::kHalves;
  static constexpr int kSum = kHalves ? 512 : 256;
  static constexpr int kExpandAhead = 5;   // of the group that is added: a tile cannot be loaded from what is still being stored
  static constexpr int kNear = 4;         // groups ahead of those, in the nearest cache
  static constexpr std::size_t kFar = 3072;  // bytes, in the second level
  static constexpr int kProductAhead = 2;  // an even number, begun; the sums of one are stored during the next

  // What is kept of some groups. Apart from the rest: what a tile is loaded from cannot stay in registers.
  struct Kept {
    alignas(64) std::uint8_t codes[8][kCodeBytes];
    alignas(64) std::int32_t sums[4][kSum];
  };

  // rows: the records of a block; tiles: `all` groups, an even number for each tile.
  inline __attribute__((always_inline))
  StreamProducts(const std::uint8_t* tiles, std::uint64_t all, const std::uint8_t* rows, std::uint32_t groups, Kept& kept)
      : kept_(kept), expanded_(tiles), multiplied_(tiles), all_(all), rows_(rows), row_(rows), groups_(groups), left_(groups) {
    // Nobody has asked for the first ones.
    for (std::size_t line = 0; line < kShape<L>.group_bytes() * (kExpandAhead + kNear); line += 64) __builtin_prefetch(tiles + line);
    for (int i = 0; i < kExpandAhead; ++i) {
      for (int pair = 0; pair < kGroup / 8; ++pair) expand(pair);
      expand_done();
    }
    for (int i = 0; i < kProductAhead; ++i) {
      for (int number = 0; number < 8; ++number) i % 2 != 0 ? step<true>(number) : step<false>(number);
      step_done();
    }
  }

  inline __attribute__((always_inline)) void fetch() const {
    constexpr std::size_t kBytes = kShape<L>.group_bytes();
    fetch_ahead<kBytes, kNear * kBytes, kFar>(expanded_.group());
  }

  // Sums of the group that is kProductAhead before the next product: [half][row][output].
  const std::int32_t* sums() const { return sums_of(product_ - kProductAhead); }

  // A pair of quads, of kGroup / 8.
  inline __attribute__((always_inline)) void expand(int pair) {
    if constexpr (!kStored<L>) expand_pair<L>(expanded_.group(), pair, kept_.codes[expanded_count_ % 8]);
  }

  inline __attribute__((always_inline)) void expand_done() {
    if (++expanded_count_ < all_) expanded_.next();  // past the last one, that one again
  }

  // One of 8, of a group the number of which is odd or not.
  template <bool Odd>
  inline __attribute__((always_inline)) void step(int number) {
    const std::uint8_t* right = kept_.codes[product_ % 8];
    if constexpr (kStored<L>) right = multiplied_.group() + kShape<L>.group_header();
    std::int32_t* before = sums_of(product_ - 1);
    if constexpr (kHalves) {
      switch (number) {
        case 0: zero_tile<kSums>(); return load_tile<kLeftHalf>(row_, kGroup);
        case 1: return load_tile<kRightHalf>(right, 64);
        case 2: return multiply_codes<kSums, kLeftHalf, kRightHalf, kUnsignedCodes<L>>();
        case 3: return store_tile_rows<kOtherSums>(before + 256, 64);
        case 4: zero_tile<kOtherSums>(); return load_tile<kLeftHalf>(row_ + kGroup / 2, kGroup);
        case 5: return load_tile<kRightHalf>(right + kCodeBytes / 2, 64);
        case 6: return multiply_codes<kOtherSums, kLeftHalf, kRightHalf, kUnsignedCodes<L>>();
        default: return store_tile_rows<kSums>(sums_of(product_), 64);
      }
    } else {
      constexpr int kNow = Odd ? kOtherSums : kSums;
      switch (number) {
        case 0: return zero_tile<kNow>();
        case 2: return load_tile<kLeft>(row_, kGroup);
        case 3: return load_tile<kRight>(right, 64);
        case 4: return multiply_codes<kNow, kLeft, kRight, kUnsignedCodes<L>>();
        case 6: return store_tile_rows<kSums + kOtherSums - kNow>(before, 64);
        default: return;
      }
    }
  }

  inline __attribute__((always_inline)) void step_done() {
    if (++product_ < all_ && kStored<L>) multiplied_.next();
    row_ += block_record(form_of(L));
    if (--left_ == 0) {
      left_ = groups_;
      row_ = rows_;
    }
  }

 private:
  std::int32_t* sums_of(std::uint64_t product) const { return kept_.sums[product % 4]; }

  Kept& kept_;
  GroupsOf<L> expanded_, multiplied_;
  std::uint64_t expanded_count_ = 0, product_ = 0;
  const std::uint64_t all_;
  const std::uint8_t* const rows_;
  const std::uint8_t* row_;
  const std::uint32_t groups_;
  std::uint32_t left_;
};

// float(sums) * d, rounded once; minus_raised is -kRaised * d, which is exact.
inline __m512 scaled_sums(const std::int32_t* sums, __m512i raise, __m512 d, __m512 minus_raised) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_load_si512(sums), raise)), d, minus_raised);
}

inline __m512 float_sums(const std::int32_t* sums, __m512i raise) {
  return _mm512_sub_ps(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_load_si512(sums), raise)), _mm512_set1_ps(kRaised));
}

// Rows of a block x tiles [begin, end), of an even number of groups: emit(tile, acc [16][16], finite). Where a scale is not
// finite the sums are NaN, which those of linear.h need not be.
template <Layout L, class Emit>
void stream_tiles(const PackedMatrix& weight, const std::uint8_t* rows, std::int32_t begin, std::int32_t end, const Emit& emit) {
  constexpr Form form = form_of(L);
  constexpr bool kHalves = form == Form::kHalves;
  const std::int32_t groups = weight.k / kGroup;
  const std::uint8_t* first = weight.data + weight.tile_bytes * static_cast<std::size_t>(begin);
  const auto all = static_cast<std::uint64_t>(groups) * static_cast<std::uint64_t>(end - begin);
  typename StreamProducts<L>::Kept kept;
  StreamProducts<L> products(first, all, rows, static_cast<std::uint32_t>(groups), kept);
  GroupsOf<L> added(first);
  alignas(64) float acc[kTileRows * kTileColumns];
  BlockScales block{_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (std::int32_t t = begin; t < end; ++t) {
    __m512 total[kTileRows];
    each_row([&]<int R>() __attribute__((always_inline)) { total[R] = _mm512_setzero_ps(); });
    const std::uint8_t* row = rows;
    __mmask16 infinite = 0;
    const auto add_group = [&]<bool Odd>(std::int32_t g) __attribute__((always_inline)) {
      products.fetch();
      if constexpr (kShape<L>.super()) {
        if (g % 8 == 0) block = load_block<L>(added.header());
      }
      alignas(64) float columns[3 * 16];
      expand_scales<L>(block, added.group(), columns);
      __m512 d = _mm512_load_ps(columns);
      if constexpr (kUpperHalf<L>) d = _mm512_mul_ps(d, _mm512_set1_ps(0x1p-4f));
      const __m512 one = kHalves ? _mm512_load_ps(columns + 16) : d;
      if constexpr (form == Form::kScale || form == Form::kMinimum) {
        constexpr int kInfinities = 0x18;
        infinite |= _mm512_fpclass_ps_mask(one, kInfinities);
      }
      const __m512 minus_raised = _mm512_mul_ps(one, _mm512_set1_ps(-kRaised));
      const __m512i raise = _mm512_set1_epi32(kRaise);
      const std::int32_t* sums = products.sums();
      const auto* scales = reinterpret_cast<const float*>(row + kCodeBytes);
      each_row([&]<int R>() __attribute__((always_inline)) {
        if constexpr (R % 4 == 0) products.expand(R / 4);
        if constexpr (R % 2 == 1) products.template step<Odd>(R / 2);
        __m512 s;
        if constexpr (form == Form::kPower) {
          s = _mm512_mul_ps(float_sums(sums + 16 * R, raise), d);
        } else {
          s = scaled_sums(sums + 16 * R, raise, one, minus_raised);
        }
        if constexpr (kHalves) {
          s = _mm512_mul_ps(_mm512_fmadd_ps(float_sums(sums + 256 + 16 * R, raise), _mm512_load_ps(columns + 32), s), d);
        }
        total[R] = _mm512_fmadd_ps(s, _mm512_set1_ps(scales[R]), total[R]);
        if constexpr (form == Form::kMinimum) {
          total[R] = _mm512_fmadd_ps(_mm512_load_ps(columns + 16), _mm512_set1_ps(scales[16 + R]), total[R]);
        }
      });
      products.expand_done();
      products.step_done();
      added.next();
      row += block_record(form);
    };
    for (std::int32_t g = 0; g < groups; g += 2) {
      add_group.template operator()<false>(g);
      add_group.template operator()<true>(g + 1);
    }
    each_row([&]<int R>() __attribute__((always_inline)) { _mm512_store_ps(acc + 16 * R, total[R]); });
    emit(t, acc, infinite == 0);
  }
}

}  // namespace
}  // namespace tidemill
