// Linear kernels in plain C++: any processor, and the plainest form of what the vector versions do.
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/linear_impl.h"

namespace tidemill {
namespace {

// Fused where the target fuses in hardware. The quantised kernels call std::fma instead, once per 32 products, and so
// agree with every other instruction set.
inline float multiply_add(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// Eight 16-bit lanes: SSE2 or NEON, whatever the target has (a vector extension of GCC and Clang).
typedef std::int16_t Lanes __attribute__((vector_size(16)));
typedef std::int32_t WideLanes __attribute__((vector_size(32)));
typedef std::int32_t Words __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
typedef std::uint8_t Bytes __attribute__((vector_size(8)));
typedef std::int8_t SignedBytes __attribute__((vector_size(8)));

constexpr int kQuads = kGroup / 4;
constexpr int kQuadLanes = 4 * kTileColumns / 8;  // vectors for one quad of 16 columns; lane 4c + j of them is k = j

// The codes of one group of a tile, widened, in the order of the tile.
struct alignas(64) Codes {
  Lanes quads[kQuads][kQuadLanes];

  std::int16_t at(int k, int column) const { return quads[k / 4][column / 2][column % 2 * 4 + k % 4]; }
};

// One number in every lane.
inline Lanes same(int number) {
  const auto lane = static_cast<std::int16_t>(number);
  return Lanes{lane, lane, lane, lane, lane, lane, lane, lane};
}

Lanes widen_bytes(const std::uint8_t* p) {
  Bytes bytes;
  std::memcpy(&bytes, p, 8);
  return __builtin_convertvector(bytes, Lanes);
}

Lanes look_up(const std::int8_t (&table)[16], Lanes codes) {
  for (int i = 0; i < 8; ++i) codes[i] = table[codes[i]];
  return codes;
}

// The codes of quad q of two columns; `i` is the pair of columns of 8 (linear.h has the planes).
template <Layout L>
inline Lanes plane_codes(const std::uint8_t* planes, int columns, int i, int q) {
  constexpr LayoutShape shape = kShape<L>;
  constexpr int base = shape.base_bits();
  constexpr int extra = shape.bits - base;
  const auto field = [&](const std::uint8_t* plane, int bits) {
    const int per_byte = 8 / bits;
    const Lanes lanes = widen_bytes(plane + 32 * bits * columns + 32 * (q / per_byte) + 8 * i);
    return lanes >> same(q % per_byte * bits) & same((1 << bits) - 1);
  };
  Lanes codes = field(planes, base);
  if constexpr (extra > 0) codes |= field(planes + shape.extra_plane(), extra) << same(base);
  if constexpr (L == Layout::kQ4Table) codes = look_up(kQ4Codes, codes);
  if constexpr (L == Layout::kFloat4Table) codes = look_up(kFloat4Codes, codes);
  return codes;
}

template <Layout L>
void unpack_codes(const std::uint8_t* w, Codes& codes) {
  const std::uint8_t* next = w + kShape<L>.group_header();
  if constexpr (L == Layout::kQ8) {
    for (auto& quad : codes.quads) {
      for (Lanes& lanes : quad) {
        SignedBytes bytes;
        std::memcpy(&bytes, next, 8);
        lanes = __builtin_convertvector(bytes, Lanes);
        next += 8;
      }
    }
  } else {
    for (int columns = 0; columns < 2; ++columns) {
      for (int i = 0; i < 4; ++i) {
        TIDEMILL_UNROLL
        for (int q = 0; q < kQuads; ++q) codes.quads[q][4 * columns + i] = plane_codes<L>(next, columns, i, q);
      }
    }
  }
}

// One row's group of activations in the same order: each quad twice, because one vector serves two columns.
template <int S>
void repeat_quads(const std::int8_t* x, Lanes* out) {
  for (int q = 0; q < kQuads; ++q) {
    std::int32_t quad;
    std::memcpy(&quad, x + 4 * q * S, 4);
    const std::int32_t twice[2] = {quad, quad};
    SignedBytes bytes;
    std::memcpy(&bytes, twice, 8);
    out[q] = __builtin_convertvector(bytes, Lanes);
  }
}

// Sums of two columns' products over `Count` quads from q on, one sum per lane. 16 bits hold 8 products of at most
// 31 * 127 or 4 of at most 63 * 127.
template <int Count>
inline Lanes narrow_products(const Codes& codes, const Lanes* x, int q, int i) {
  Lanes sum = {};
  TIDEMILL_UNROLL
  for (int j = 0; j < Count; ++j) sum += codes.quads[q + j][i] * x[q + j];
  return sum;
}

// Stores the sums of four lanes each.
inline void store_columns(const WideLanes& lanes, int i, std::int32_t* sum) {
  sum[2 * i] = lanes[0] + lanes[1] + lanes[2] + lanes[3];
  sum[2 * i + 1] = lanes[4] + lanes[5] + lanes[6] + lanes[7];
}

// sum[c] = sum over k of codes * activations, of quads begin .. begin + Quads - 1.
template <Layout L, int Quads>
void multiply_codes(const Codes& codes, const Lanes* x, int begin, std::int32_t* sum) {
  constexpr bool kSigned = L == Layout::kQ8 || L == Layout::kQ4Table;
  for (int i = 0; i < kQuadLanes; ++i) {
    WideLanes total = {};
    if constexpr (kSigned) {
      TIDEMILL_UNROLL
      for (int q = 0; q < Quads; q += 2) {  // two products of at most 128 * 127 fit 16 bits
        total += __builtin_convertvector(narrow_products<2>(codes, x, begin + q, i), WideLanes);
      }
    } else {
      total = __builtin_convertvector(narrow_products<Quads>(codes, x, begin, i), WideLanes);
    }
    store_columns(total, i, sum);
  }
}

// 16 halves as floats: half_to_float (half.h), four lanes at a time.
void load_halves(const std::uint8_t* bytes, float* out) {
  constexpr std::int32_t kBias = (127 - 15) << 23;
  std::uint16_t halves[kTileColumns];
  std::memcpy(halves, bytes, sizeof halves);
  for (int i = 0; i < kTileColumns; i += 4) {
    const Words bits = {halves[i], halves[i + 1], halves[i + 2], halves[i + 3]};
    const Words magnitude = (bits & 0x7fff) << 13;
    const Words infinite = magnitude >= (0x1f << 23);
    const Words tiny = magnitude < (1 << 23);
    const Words normal = magnitude + kBias + (infinite & kBias);
    const Floats subnormal = __builtin_convertvector(bits & 0x3ff, Floats) * 0x1p-24f;
    const Words value = (tiny & (Words)subnormal) | (~tiny & normal) | ((bits & 0x8000) << 16);
    std::memcpy(out + i, &value, sizeof value);
  }
}

float exponent_scale(int exponent) {  // 2^(exponent - 128)
  const std::uint32_t bits = exponent < 2 ? 0x00200000u << exponent : static_cast<std::uint32_t>(exponent - 1) << 23;
  return std::bit_cast<float>(bits);
}

float float8(std::uint8_t code) {  // blocks.h, without branches: exponents of 0 are what 2^-6 is too much of
  const std::uint32_t magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
  const std::uint32_t normal = (magnitude << 20) + (120u << 23);
  const float tiny = static_cast<float>(magnitude) * 0x1p-9f;
  return std::bit_cast<float>((magnitude < 8 ? std::bit_cast<std::uint32_t>(tiny) : normal) | sign);
}

// What the integers of one group are multiplied with.
struct GroupScales {
  float d[kTileColumns];
  float m[kTileColumns];             // multiplied with the sum of the activations
  std::int32_t zero[kTileColumns];   // subtracted from codes
  std::int32_t sc[2][kTileColumns];  // layouts of half groups only
  std::int32_t mn[2][kTileColumns];
};

template <Layout L>
void load_half_scales(const std::uint8_t* block, const std::uint8_t* group, GroupScales& scales) {
  constexpr bool kMinimum = kShape<L>.has_minimum();
  load_halves(block, scales.d);
  if constexpr (kMinimum) load_halves(block + 32, scales.m);
  for (int c = 0; c < kTileColumns; ++c) {
    for (int h = 0; h < 2; ++h) {
      const std::uint8_t byte = group[2 * c + h];
      scales.sc[h][c] = kMinimum ? byte & 15 : static_cast<std::int8_t>(byte);
      scales.mn[h][c] = kMinimum ? byte >> 4 : kShape<L>.offset * scales.sc[h][c];
    }
  }
}

template <Layout L>
void load_scales(const std::uint8_t* block, const std::uint8_t* group, GroupScales& scales) {
  constexpr LayoutShape shape = kShape<L>;
  if constexpr (shape.halves()) {
    load_half_scales<L>(block, group, scales);
  } else if constexpr (shape.scales == Scales::kSuper) {
    load_halves(block, scales.d);
    load_halves(block + 32, scales.m);
    for (int c = 0; c < kTileColumns; ++c) {
      scales.d[c] = scales.d[c] * group[c];
      scales.m[c] = -(scales.m[c] * group[kTileColumns + c]);
    }
  } else {
    if constexpr (shape.scales == Scales::kExponent) {
      for (int c = 0; c < kTileColumns; ++c) scales.d[c] = exponent_scale(group[c]);
    } else {
      load_halves(group, scales.d);
    }
    if constexpr (shape.scales == Scales::kHalfPair) load_halves(group + 32, scales.m);
    for (int c = 0; c < kTileColumns; ++c) scales.zero[c] = shape.offset;
    if constexpr (shape.scales == Scales::kHalfZero) {
      for (int c = 0; c < kTileColumns; ++c) {
        scales.zero[c] = group[32 + c];
        scales.m[c] = -(scales.d[c] * group[32 + c]);
      }
    }
  }
}

// total[c] += one group's product; x are the scale and the sums of one row.
template <Layout L>
void add_group(const GroupScales& w, const Codes& codes, const Lanes* quads, const float* x, int stride, float* total) {
  std::int32_t sum[kTileColumns];
  std::int16_t half_sums[2];
  std::memcpy(half_sums, x + 2 * stride, 4);
  multiply_codes<L, kQuads>(codes, quads, 0, sum);
  for (int c = 0; c < kTileColumns; ++c) {
    std::int32_t s = sum[c];
    if constexpr (kShape<L>.subtracts()) s -= w.zero[c] * (half_sums[0] + half_sums[1]);
    total[c] = std::fma(static_cast<float>(s) * w.d[c], x[0], total[c]);
    if constexpr (kShape<L>.adds_minimum()) total[c] = std::fma(w.m[c], x[stride], total[c]);
  }
}

template <Layout L>
void add_half_groups(const GroupScales& w, const Codes& codes, const Lanes* quads, const float* x, int stride,
                     float* total) {
  std::int32_t sum[2][kTileColumns];
  std::int16_t half_sums[2];
  std::memcpy(half_sums, x + 2 * stride, 4);
  for (int h = 0; h < 2; ++h) multiply_codes<L, kQuads / 2>(codes, quads, h * kQuads / 2, sum[h]);
  for (int c = 0; c < kTileColumns; ++c) {
    const std::int32_t s = w.sc[0][c] * sum[0][c] + w.sc[1][c] * sum[1][c];
    const std::int32_t t = w.mn[0][c] * half_sums[0] + w.mn[1][c] * half_sums[1];
    if constexpr (kShape<L>.has_minimum()) {
      total[c] = std::fma(static_cast<float>(s) * w.d[c], x[0], total[c]);
      total[c] = std::fma(-(static_cast<float>(t) * w.m[c]), x[0], total[c]);
    } else {
      total[c] = std::fma(static_cast<float>(s - t) * w.d[c], x[0], total[c]);
    }
  }
}

struct Portable {
  static constexpr int kCallPanels = 1;
  static constexpr int kFloatRows = kPanelRows;
  static constexpr int kFloatTiles = 1;

  static void quantize_group(const float* x, std::int8_t* values, float* scale, float* scale_sum,
                             std::int16_t* half_sums) {
    std::int32_t peak = 0;
    for (int i = 0; i < kGroup; ++i) {
      // Without its sign a float orders like its bits, and infinity and NaN come last.
      const auto bits = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
      peak = bits > peak ? bits : peak;
    }
    const GroupScale s = group_scale(peak);
    std::int32_t sum[2] = {};
    for (int i = 0; i < kGroup; ++i) {
      float value = s.inverse == 0.0f ? 0.0f : x[i] * s.inverse;
      value = value < 127.0f ? value : 127.0f;
      value = value > -127.0f ? value : -127.0f;
      // Adding 1.5 * 2^23 leaves no bits below one: rounds to nearest, ties to even.
      const float rounded = (value + 0x1.8p23f) - 0x1.8p23f;
      values[i] = static_cast<std::int8_t>(rounded);
      sum[i / 16] += values[i];
    }
    *scale = s.scale;
    *scale_sum = s.scale * static_cast<float>(sum[0] + sum[1]);
    for (int h = 0; h < 2; ++h) half_sums[h] = static_cast<std::int16_t>(sum[h]);
  }

  template <Layout L, int R, int S, bool Stream>
  static void quantized_tile(const std::uint8_t* w, const std::int8_t* x, const float* scales, std::int32_t groups,
                             float* acc) {
    std::memset(acc, 0, sizeof(float) * R * kTileColumns);
    const std::uint8_t* block = w;
    for (std::int32_t g = 0; g < groups; ++g, w += kChunkBytes<L>, x += kGroup * S, scales += kGroupScales * S) {
      if (kShape<L>.super() && g % 8 == 0) {
        block = w;
        w += kShape<L>.block_header();
      }
      Codes codes;
      GroupScales group;
      unpack_codes<L>(w, codes);
      load_scales<L>(block, w, group);
      for (int r = 0; r < R; ++r) {
        Lanes quads[kQuads];
        repeat_quads<S>(x + 4 * r, quads);
        if constexpr (kShape<L>.halves()) {
          add_half_groups<L>(group, codes, quads, scales + r, S, acc + r * kTileColumns);
        } else {
          add_group<L>(group, codes, quads, scales + r, S, acc + r * kTileColumns);
        }
      }
    }
  }

  template <Layout L>
  static void expand(const std::uint8_t* block, const std::uint8_t* w, std::int32_t count, float* buffer) {
    if constexpr (L == Layout::kF16) {
      for (std::int32_t k = 0; k < count; ++k) load_halves(w + 32 * k, buffer + kTileColumns * k);
    } else if constexpr (L == Layout::kBF16) {
      for (std::int32_t i = 0; i < count * kTileColumns; ++i) {
        std::uint16_t half;
        std::memcpy(&half, w + 4 * (i / 32 * kTileColumns + i % kTileColumns) + i / kTileColumns % 2 * 2, 2);
        buffer[i] = std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
      }
    } else if constexpr (L == Layout::kFloat8) {
      float d[kTileColumns];
      std::memcpy(d, w, sizeof d);
      const std::uint8_t* codes = w + kShape<L>.group_header();
      for (int i = 0; i < kGroup * kTileColumns; ++i) buffer[i] = float8(codes[i]) * d[i % kTileColumns];
    } else {
      expand_codes<L>(block, w, buffer);
    }
  }

  template <Layout L>
  static void expand_codes(const std::uint8_t* block, const std::uint8_t* w, float* buffer) {
    constexpr LayoutShape shape = kShape<L>;
    Codes codes;
    GroupScales scales;
    unpack_codes<L>(w, codes);
    load_scales<L>(block, w, scales);
    for (int k = 0; k < kGroup; ++k, buffer += kTileColumns) {
      for (int c = 0; c < kTileColumns; ++c) {
        const int half = k / 16;
        const auto code = static_cast<float>(codes.at(k, c) - shape.offset);
        const float d = shape.halves() ? scales.d[c] * static_cast<float>(scales.sc[half][c]) : scales.d[c];
        buffer[c] = code * d;
        if constexpr (shape.has_minimum()) {  // the product is exact: rounds once
          buffer[c] += shape.halves() ? -(scales.m[c] * static_cast<float>(scales.mn[half][c])) : scales.m[c];
        }
      }
    }
  }

  template <Layout L>
  static constexpr bool kDirect = L == Layout::kF32;

  template <Layout L, int R>
  static void add_chunk(const std::uint8_t* bytes, const float* x, std::size_t stride, std::int32_t count, float* acc) {
    static_assert(L == Layout::kF32);
    const float* w = reinterpret_cast<const float*>(bytes);
    for (int r = 0; r < R; ++r) {
      const float* row = x + static_cast<std::size_t>(r) * stride;
      float part[kTileColumns] = {};
      for (std::int32_t k = 0; k < count; ++k) {
        for (int c = 0; c < kTileColumns; ++c) part[c] = multiply_add(w[k * kTileColumns + c], row[k], part[c]);
      }
      for (int c = 0; c < kTileColumns; ++c) acc[r * kTileColumns + c] += part[c];
    }
  }

  static void store_row(const float* acc, std::int32_t columns, float* out, const float* bias, const float* residual) {
    for (std::int32_t c = 0; c < columns; ++c) {
      float value = acc[c];
      if (bias != nullptr) value += bias[c];
      if (residual != nullptr) value += residual[c];
      out[c] = value;
    }
  }
};

}  // namespace

const LinearKernels& linear_kernels_portable() {
  static constexpr LinearKernels kernels = {"portable", quantize_groups<Portable>, linear_quantized<Portable>,
                                            linear_float<Portable>};
  return kernels;
}

}  // namespace tidemill
