// Linear kernels in plain C++: any processor, and the plainest form of what the vector versions do.
#include <cmath>
#include <cstring>

#include "kernels/half.h"
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

template <Layout L>
constexpr int kCodesOffset = L == Layout::kQ4Affine ? 64 : 32;

// The codes of one group of a tile as [32 k][16 outputs].
template <Layout L>
void unpack_codes(const std::uint8_t* w, std::int16_t* codes) {
  const std::uint8_t* bytes = w + kCodesOffset<L>;
  for (int c = 0; c < kTileColumns; ++c) {
    for (int k = 0; k < kGroup; ++k) {
      int code;
      if constexpr (L == Layout::kQ8) {
        code = static_cast<std::int8_t>(bytes[64 * (k / 4) + 4 * c + k % 4]);
      } else {
        const int byte = bytes[128 * (c / 8) + 32 * (k / 8) + 4 * (c % 8) + k % 4];
        code = k % 8 < 4 ? byte & 15 : byte >> 4;
      }
      codes[k * kTileColumns + c] = static_cast<std::int16_t>(code);
    }
  }
}

void load_halves(const std::uint8_t* bytes, float* out) {
  for (int c = 0; c < kTileColumns; ++c) out[c] = load_half(bytes + 2 * c);
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
      alignas(64) std::int16_t codes[kGroup * kTileColumns];
      float d[kTileColumns];
      float m[kTileColumns];
      unpack_codes<L>(w, codes);
      load_scales<L>(w, d, m);
      for (int r = 0; r < R; ++r) {
        std::int32_t sum[kTileColumns] = {};
        for (int k = 0; k < kGroup; ++k) {
          const std::int16_t value = x[4 * (k / 4 * S + r) + k % 4];
          for (int c = 0; c < kTileColumns; ++c) sum[c] += codes[k * kTileColumns + c] * value;
        }
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
      for (std::int32_t i = 0; i < count * kTileColumns; ++i) buffer[i] = load_half(w + 2 * i);
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
    alignas(64) std::int16_t codes[kGroup * kTileColumns];
    float d[kTileColumns];
    float m[kTileColumns];
    unpack_codes<L>(w, codes);
    load_scales<L>(w, d, m);
    for (int i = 0; i < kGroup * kTileColumns; ++i) {
      const int c = i % kTileColumns;
      const auto code = static_cast<float>(codes[i]);
      if constexpr (L == Layout::kQ4Symmetric) buffer[i] = (code - 8.0f) * d[c];
      if constexpr (L == Layout::kQ4Affine) buffer[i] = code * d[c] + m[c];  // the product is exact: rounds once
      if constexpr (L == Layout::kQ8) buffer[i] = code * d[c];
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
