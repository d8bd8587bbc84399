// One block of up to 16 rows times a quantised matrix, with AMX: what a step of some decoding sequences needs. The weights
// pass once, so they are not expanded beforehand: the codes of a group are, a few groups before its product, while the sums
// of an earlier one are added. Those three and the fetches from memory are mixed, row by row.
//
// Codes stay unsigned here; what they are too much is taken off the integer sums, exactly, with the number that raises those
// to floats. So the bits are those of linear.h again.
//
//   Block    per group: codes [row][k] | scale | scale_sum | raise of the first half, or of the whole | of the second
//            (each [16])
//
// For linear_amx.cpp alone: everything is in an anonymous namespace, and compiled for AVX-512.
#pragma once
#include <immintrin.h>

#include "kernels/linear_amx_operands.h"
#include "kernels/linear_amx_raise.h"
#include "kernels/linear_amx_tiles.h"
#include "kernels/linear_avx512_store.h"
#include "kernels/stream.h"

namespace tidemill {
namespace {

inline constexpr std::size_t kBlockRecord = kCodeBytes + 4 * 64;

// Whether codes are multiplied as they are: not those with a zero for each column.
template <Layout L>
inline constexpr bool kUnsignedCodes = kShape<L>.scales != Scales::kHalfZero;

template <Layout L>
inline constexpr int kTooMuch = !kUnsignedCodes<L> ? 0 : kSignedCodes<L> ? 128 : kShape<L>.offset;

template <Layout L>
inline __m512i stream_codes(const std::uint8_t* group, int quad) {
  if constexpr (kUnsignedCodes<L>) return codes_at<L>(group, quad);
  return signed_codes<L>(group, quad);
}

template <int Sums, int Left, int Right, bool Unsigned>
inline void multiply_codes() {
  if constexpr (Unsigned) {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Left), "i"(Right));
  } else {
    multiply_tiles<Sums, Left, Right>();
  }
}

// What raises the sums of the rows of a panel: of whole groups, or of their two halves; half_sums as QuantizedRows has them.
template <Layout L>
inline void store_raises(__m128i half_sums, std::uint8_t* first, std::uint8_t* second, __mmask8 rows) {
  const __m128i sums[2] = {_mm_srai_epi32(_mm_slli_epi32(half_sums, 16), 16), _mm_srai_epi32(half_sums, 16)};
  const auto raise = [](__m128i sum) {
    return _mm_sub_epi32(_mm_set1_epi32(kRaise), _mm_mullo_epi32(sum, _mm_set1_epi32(kTooMuch<L>)));
  };
  _mm_mask_storeu_epi32(first, rows, raise(kShape<L>.halves() ? sums[0] : _mm_add_epi32(sums[0], sums[1])));
  if constexpr (kShape<L>.halves()) _mm_mask_storeu_epi32(second, rows, raise(sums[1]));
}

// A panel of Count rows, which are rows row .. row + Count - 1 of a block.
template <Layout L, int Count>
inline void block_panel(const std::int8_t* values, const float* scales, std::int32_t groups, int row, std::uint8_t* out) {
  constexpr __mmask8 kRows = (1 << Count) - 1;
  for (std::int32_t g = 0; g < groups; ++g, values += kGroup * Count, scales += kGroupScales * Count, out += kBlockRecord) {
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
    __builtin_memcpy(words + 64, scales + Count, sizeof(float) * Count);
    store_raises<L>(_mm_maskz_loadu_epi32(kRows, scales + 2 * Count), words + 128, words + 192, kRows);
  }
}

// 16 rows from `first` on, a multiple of them. Those missing become zero.
template <Layout L>
void make_block(const QuantizedRows& x, std::int32_t first, std::uint8_t* out) {
  const std::int32_t groups = x.k / kGroup;
  const std::int32_t rows = x.rows - first < kTileRows ? x.rows - first : kTileRows;
  if (rows < kTileRows) __builtin_memset(out, 0, kBlockRecord * static_cast<std::size_t>(groups));
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

// total = raised(sums) * d + minus, and similar, need the sums as floats: with the raise of the row added, their bits are
// those of kRaised + sum.
inline __m512 raised_by(const std::int32_t* sums, const std::uint8_t* raise) {
  int word;
  __builtin_memcpy(&word, raise, 4);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_load_si512(sums), _mm512_set1_epi32(word)));
}

inline void add_scaled(__m512& total, __m512 a, const std::uint8_t* b) {
  __asm__ volatile("vfmadd231ps (%2)%{1to16%}, %1, %0" : "+v"(total) : "v"(a), "r"(b));
}

// Rows of a block x tiles [begin, end), of an even number of groups: emit(tile, acc [16][16], finite). Where a scale is not
// finite the sums are NaN, which those of linear.h need not be.
template <Layout L, class Emit>
void stream_tiles(const PackedMatrix& weight, const std::uint8_t* rows, std::int32_t begin, std::int32_t end, const Emit& emit) {
  constexpr Form form = form_of(L);
  constexpr bool kHalves = form == Form::kHalves;
  constexpr int kSum = kHalves ? 512 : 256;
  constexpr int kCodesKept = 8, kSumsKept = 4;
  constexpr int kExpandAhead = 5;   // of the group that is added: a tile cannot be loaded from what is still being stored
  constexpr int kProductAhead = 2;  // an even number, begun; the sums of one are stored during the next
  constexpr std::size_t kBytes = kShape<L>.group_bytes();
  const std::int32_t groups = weight.k / kGroup;
  const std::int64_t all = std::int64_t{groups} * (end - begin);
  alignas(64) std::uint8_t codes[kCodesKept][kCodeBytes];
  alignas(64) std::int32_t sums[kSumsKept][kSum];
  alignas(64) float acc[kTileRows * kTileColumns];
  const std::uint8_t* first = weight.data + weight.tile_bytes * static_cast<std::size_t>(begin);
  GroupsOf<L> expanded(first), added(first);
  std::int64_t expanded_count = 0, product_count = 0;
  const std::uint8_t* product_row = rows;
  std::int32_t product_left = groups;

  const auto expand_quad = [&](int quad) __attribute__((always_inline)) {
    _mm512_store_si512(codes[expanded_count % kCodesKept] + 64 * quad, stream_codes<L>(expanded.group(), quad));
  };
  const auto expand_done = [&]() __attribute__((always_inline)) {
    if (++expanded_count < all) expanded.next();  // past the last one, that one again
  };
  const auto product_step = [&]<bool Odd>(int step) __attribute__((always_inline)) {
    const std::uint8_t* right = codes[product_count % kCodesKept];
    std::int32_t* sum = sums[(product_count + kSumsKept - 1) % kSumsKept];  // of the one before
    if constexpr (kHalves) {
      switch (step) {
        case 0: zero_tile<kSums>(); return load_tile<kLeftHalf>(product_row, kGroup);
        case 1: load_tile<kRightHalf>(right, 64); return;
        case 2: return multiply_codes<kSums, kLeftHalf, kRightHalf, kUnsignedCodes<L>>();
        case 3: return store_tile_rows<kOtherSums>(sum + 256, 64);
        case 4: zero_tile<kOtherSums>(); return load_tile<kLeftHalf>(product_row + kGroup / 2, kGroup);
        case 5: load_tile<kRightHalf>(right + kCodeBytes / 2, 64); return;
        case 6: return multiply_codes<kOtherSums, kLeftHalf, kRightHalf, kUnsignedCodes<L>>();
        default: return store_tile_rows<kSums>(sums[product_count % kSumsKept], 64);
      }
    } else {
      constexpr int kNow = Odd ? kOtherSums : kSums;
      switch (step) {
        case 0: return zero_tile<kNow>();
        case 2: return load_tile<kLeft>(product_row, kGroup);
        case 3: return load_tile<kRight>(right, 64);
        case 4: return multiply_codes<kNow, kLeft, kRight, kUnsignedCodes<L>>();
        case 6: return store_tile_rows<kSums + kOtherSums - kNow>(sum, 64);
        default: return;
      }
    }
  };
  const auto product_done = [&]() __attribute__((always_inline)) {
    ++product_count;
    product_row += kBlockRecord;
    if (--product_left == 0) {
      product_left = groups;
      product_row = rows;
    }
  };
  for (int i = 0; i < kExpandAhead; ++i) {
    TIDEMILL_UNROLL
    for (int quad = 0; quad < kGroup / 4; ++quad) expand_quad(quad);
    expand_done();
  }
  for (int i = 0; i < kProductAhead; ++i, product_done()) {
    for (int step = 0; step < 8; ++step) {
      i % 2 != 0 ? product_step.template operator()<true>(step) : product_step.template operator()<false>(step);
    }
  }
  std::int64_t number = 0;
  BlockScales block{_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (std::int32_t t = begin; t < end; ++t) {
    __m512 total[16];
    TIDEMILL_UNROLL
    for (int r = 0; r < 16; ++r) total[r] = _mm512_setzero_ps();
    const std::uint8_t* row = rows;
    __mmask16 infinite = 0;
    const auto add_group = [&]<bool Odd>(std::int32_t g) __attribute__((always_inline)) {
      fetch_ahead<kBytes, 4 * kBytes>(expanded.group());
      if constexpr (kShape<L>.super()) {
        if (g % 8 == 0) block = load_block<L>(added.header());
      }
      alignas(64) float columns[3 * 16];
      expand_scales<L>(block, added.group(), columns);
      const __m512 d = _mm512_load_ps(columns);
      const __m512 one = kHalves ? _mm512_load_ps(columns + 16) : d;
      if constexpr (form == Form::kScale || form == Form::kMinimum) {
        constexpr int kInfinities = 0x18;
        infinite |= _mm512_fpclass_ps_mask(one, kInfinities);
      }
      const __m512 minus_raised = _mm512_mul_ps(one, _mm512_set1_ps(-kRaised));
      const std::int32_t* sum = sums[number % kSumsKept];
      const std::uint8_t* words = row + kCodeBytes;
      TIDEMILL_UNROLL
      for (int r = 0; r < 16; ++r, sum += 16, words += 4) {
        if (r % 2 == 0) {
          expand_quad(r / 2);
        } else {
          product_step.template operator()<Odd>(r / 2);
        }
        __m512 s;
        if constexpr (form == Form::kPower) {
          s = _mm512_mul_ps(_mm512_sub_ps(raised_by(sum, words + 128), _mm512_set1_ps(kRaised)), d);
        } else {
          s = _mm512_fmadd_ps(raised_by(sum, words + 128), one, minus_raised);
        }
        if constexpr (kHalves) {
          const __m512 second = _mm512_sub_ps(raised_by(sum + 256, words + 192), _mm512_set1_ps(kRaised));
          s = _mm512_mul_ps(_mm512_fmadd_ps(second, _mm512_load_ps(columns + 32), s), d);
        }
        add_scaled(total[r], s, words);
        if constexpr (form == Form::kMinimum) add_scaled(total[r], _mm512_load_ps(columns + 16), words + 64);
      }
      expand_done();
      product_done();
      added.next();
      ++number;
      row += kBlockRecord;
    };
    for (std::int32_t g = 0; g < groups; g += 2) {
      add_group.template operator()<false>(g);
      add_group.template operator()<true>(g + 1);
    }
    TIDEMILL_UNROLL
    for (int r = 0; r < 16; ++r) _mm512_store_ps(acc + 16 * r, total[r]);
    emit(t, acc, infinite == 0);
  }
}

}  // namespace
}  // namespace tidemill
