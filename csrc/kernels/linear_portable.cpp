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

template <Layout L>
void unpack_codes(const std::uint8_t* w, Codes& codes) {
  const std::uint8_t* next = w + (L == Layout::kQ4Affine ? 64 : 32);
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
    for (int half = 0; half < 2; ++half) {
      for (int v = 0; v < 4; ++v) {
        for (int i = 0; i < 4; ++i, next += 8) {
          Bytes bytes;
          std::memcpy(&bytes, next, 8);
          const Lanes lanes = __builtin_convertvector(bytes, Lanes);
          codes.quads[2 * v][4 * half + i] = lanes & 15;
          codes.quads[2 * v + 1][4 * half + i] = lanes >> 4;
        }
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

// sum[c] = sum over k of codes * activations.
template <Layout L>
void multiply_codes(const Codes& codes, const Lanes* x, std::int32_t* sum) {
  for (int i = 0; i < kQuadLanes; ++i) {
    WideLanes total = {};
    if constexpr (L == Layout::kQ8) {
      TIDEMILL_UNROLL
      for (int q = 0; q < kQuads; q += 2) {  // two products of at most 128 * 127 fit 16 bits
        const Lanes pair = codes.quads[q][i] * x[q] + codes.quads[q + 1][i] * x[q + 1];
        total += __builtin_convertvector(pair, WideLanes);
      }
    } else {
      Lanes narrow = {};
      TIDEMILL_UNROLL
      for (int q = 0; q < kQuads; ++q) narrow += codes.quads[q][i] * x[q];  // 8 products of at most 15 * 127 fit
      total = __builtin_convertvector(narrow, WideLanes);
    }
    sum[2 * i] = total[0] + total[1] + total[2] + total[3];
    sum[2 * i + 1] = total[4] + total[5] + total[6] + total[7];
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

// d and m of one group; m is what the sum of the activations is multiplied with (not used by kQ8).
template <Layout L>
void load_scales(const std::uint8_t* w, float* d, float* m) {
  load_halves(w, d);
  if constexpr (L == Layout::kQ4Affine) {
    load_halves(w + 32, m);
  } else {
    for (int c = 0; c < kTileColumns; ++c) m[c] = -8.0f * d[c];
  }
}

struct Portable {
  static void quantize_group(const float* x, std::int8_t* values, float* scale, float* scale_sum) {
    std::int32_t peak = 0;
    for (int i = 0; i < kGroup; ++i) {
      // Without its sign a float orders like its bits, and infinity and NaN come last.
      const auto bits = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
      peak = bits > peak ? bits : peak;
    }
    const GroupScale s = group_scale(peak);
    std::int32_t sum = 0;
    for (int i = 0; i < kGroup; ++i) {
      float value = s.inverse == 0.0f ? 0.0f : x[i] * s.inverse;
      value = value < 127.0f ? value : 127.0f;
      value = value > -127.0f ? value : -127.0f;
      // Adding 1.5 * 2^23 leaves no bits below one: rounds to nearest, ties to even.
      const float rounded = (value + 0x1.8p23f) - 0x1.8p23f;
      values[i] = static_cast<std::int8_t>(rounded);
      sum += values[i];
    }
    *scale = s.scale;
    *scale_sum = s.scale * static_cast<float>(sum);
  }

  template <Layout L, int R, int S, bool Stream>
  static void quantized_tile(const std::uint8_t* w, const std::int8_t* x, const float* scales, std::int32_t groups,
                             float* acc) {
    std::memset(acc, 0, sizeof(float) * R * kTileColumns);
    for (std::int32_t g = 0; g < groups; ++g, w += kChunkBytes<L>, x += kGroup * S, scales += 2 * S) {
      Codes codes;
      float d[kTileColumns];
      float m[kTileColumns];
      unpack_codes<L>(w, codes);
      load_scales<L>(w, d, m);
      for (int r = 0; r < R; ++r) {
        std::int32_t sum[kTileColumns];
        Lanes quads[kQuads];
        repeat_quads<S>(x + 4 * r, quads);
        multiply_codes<L>(codes, quads, sum);
        float* total = acc + r * kTileColumns;
        for (int c = 0; c < kTileColumns; ++c) {
          total[c] = std::fma(static_cast<float>(sum[c]), d[c] * scales[r], total[c]);
          if constexpr (L != Layout::kQ8) total[c] = std::fma(m[c], scales[S + r], total[c]);
        }
      }
    }
  }

  template <Layout L>
  static void expand(const std::uint8_t* w, std::int32_t count, float* buffer) {
    if constexpr (L == Layout::kF16) {
      for (std::int32_t k = 0; k < count; ++k) load_halves(w + 32 * k, buffer + kTileColumns * k);
    } else if constexpr (L == Layout::kBF16) {
      for (std::int32_t i = 0; i < count * kTileColumns; ++i) {
        std::uint16_t half;
        std::memcpy(&half, w + 4 * (i / 32 * kTileColumns + i % kTileColumns) + i / kTileColumns % 2 * 2, 2);
        buffer[i] = std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
      }
    } else {
      expand_codes<L>(w, buffer);
    }
  }

  template <Layout L>
  static void expand_codes(const std::uint8_t* w, float* buffer) {
    Codes codes;
    float d[kTileColumns];
    float m[kTileColumns];
    unpack_codes<L>(w, codes);
    load_scales<L>(w, d, m);
    for (int k = 0; k < kGroup; ++k, buffer += kTileColumns) {
      for (int c = 0; c < kTileColumns; ++c) {
        const auto code = static_cast<float>(codes.at(k, c));
        if constexpr (L == Layout::kQ4Symmetric) buffer[c] = (code - 8.0f) * d[c];
        if constexpr (L == Layout::kQ4Affine) buffer[c] = code * d[c] + m[c];  // the product is exact: rounds once
        if constexpr (L == Layout::kQ8) buffer[c] = code * d[c];
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
  static constexpr LinearKernels kernels = {"portable", quantize_panels<Portable>, linear_quantized<Portable>,
                                            linear_float<Portable>};
  return kernels;
}

}  // namespace tidemill
