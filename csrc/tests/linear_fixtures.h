// Weights in file formats with their values read straight from the file bytes (independently of pack.cpp), and the
// arithmetic of linear.h repeated from those.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernels/linear.h"

namespace tidemill::test {

inline constexpr FileFormat kFormats[] = {FileFormat::kF32,  FileFormat::kF16,  FileFormat::kBF16,
                                          FileFormat::kQ4_0, FileFormat::kQ4_1, FileFormat::kQ8_0};

inline const char* name_of(FileFormat format) {
  constexpr const char* names[] = {"f32", "f16", "bf16", "q4_0", "q4_1", "q8_0"};
  return names[static_cast<int>(format)];
}

inline bool is_quantized(FileFormat format) { return format >= FileFormat::kQ4_0; }

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint32_t bits() {  // splitmix64 (Steele, Lea, Flood 2014)
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return static_cast<std::uint32_t>((z ^ z >> 31) >> 32);
  }
  float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-23f - 1.0f; }  // [-1, 1)

 private:
  std::uint64_t state_;
};

inline std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = random.uniform() * 2.0f + random.uniform() * random.uniform();
  return values;
}

// By value of its parts, the plain way.
inline float half_value(std::uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  const double sign = half & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa != 0 ? NAN : static_cast<float>(sign * INFINITY);
  if (exponent == 0) return static_cast<float>(sign * std::ldexp(mantissa, -24));
  return static_cast<float>(sign * std::ldexp(1024 + mantissa, exponent - 25));
}

// A weight [n, k] as a file has it, taken apart: code, d and m per value (float formats: only value).
struct FileWeight {
  FileFormat format;
  int n;
  int k;
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;  // exact, q4_1 rounded once
  std::vector<int> codes;     // as stored: 0..15 or -128..127
  std::vector<float> d, m;    // per group

  std::size_t at(int row, int i) const { return static_cast<std::size_t>(row) * static_cast<std::size_t>(k) + static_cast<std::size_t>(i); }
  std::size_t group_at(int row, int group) const { return static_cast<std::size_t>(row) * static_cast<std::size_t>(k / kGroup) + static_cast<std::size_t>(group); }
};

inline std::size_t block_bytes(FileFormat format) {
  constexpr std::size_t sizes[] = {4, 2, 2, 18, 20, 34};
  return sizes[static_cast<int>(format)];
}

inline std::uint16_t small_half(Random& random) {  // magnitude 2^-11 .. 2^-6, either sign
  return static_cast<std::uint16_t>((random.bits() & 0x8000u) | (4 + random.bits() % 5) << 10 | (random.bits() & 1023u));
}

// Reads what a file means, value by value.
inline void read_file(FileWeight& w) {
  const std::size_t count = static_cast<std::size_t>(w.n) * static_cast<std::size_t>(w.k);
  w.values.resize(count);
  if (!is_quantized(w.format)) {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint16_t half = 0;
      std::memcpy(&half, &w.bytes[i * 2], 2);
      if (w.format == FileFormat::kF32) std::memcpy(&w.values[i], &w.bytes[i * 4], 4);
      if (w.format == FileFormat::kF16) w.values[i] = half_value(half);
      if (w.format == FileFormat::kBF16) w.values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
    }
    return;
  }
  w.codes.resize(count);
  w.d.resize(count / kGroup);
  w.m.assign(count / kGroup, 0.0f);
  for (std::size_t b = 0; b < count / kGroup; ++b) {
    const std::uint8_t* block = &w.bytes[b * block_bytes(w.format)];
    std::uint16_t half;
    std::memcpy(&half, block, 2);
    w.d[b] = half_value(half);
    if (w.format == FileFormat::kQ4_1) {
      std::memcpy(&half, block + 2, 2);
      w.m[b] = half_value(half);
    }
    for (std::size_t j = 0; j < kGroup; ++j) {
      const std::uint8_t* nibbles = block + (w.format == FileFormat::kQ4_1 ? 4 : 2);
      int& code = w.codes[b * kGroup + j];
      code = j < 16 ? nibbles[j % 16] & 15 : nibbles[j % 16] >> 4;
      if (w.format == FileFormat::kQ8_0) code = static_cast<std::int8_t>(block[2 + j]);
      float& value = w.values[b * kGroup + j];
      if (w.format == FileFormat::kQ4_0) value = static_cast<float>(code - 8) * w.d[b];
      if (w.format == FileFormat::kQ4_1) value = std::fma(static_cast<float>(code), w.d[b], w.m[b]);
      if (w.format == FileFormat::kQ8_0) value = static_cast<float>(code) * w.d[b];
    }
  }
}

inline FileWeight random_weight(FileFormat format, int n, int k, std::uint64_t seed) {
  FileWeight w{format, n, k, {}, {}, {}, {}, {}};
  const std::size_t count = static_cast<std::size_t>(n) * static_cast<std::size_t>(k);
  const std::size_t blocks = is_quantized(format) ? count / kGroup : count;
  w.bytes.resize(blocks * block_bytes(format));
  Random random(seed);
  for (std::uint8_t& byte : w.bytes) byte = static_cast<std::uint8_t>(random.bits());
  for (std::size_t b = 0; b < blocks; ++b) {
    std::uint8_t* block = &w.bytes[b * block_bytes(format)];
    if (format == FileFormat::kF32 || format == FileFormat::kBF16) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(random.uniform());
      const std::uint16_t high = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(block, format == FileFormat::kF32 ? static_cast<const void*>(&bits) : &high, block_bytes(format));
    } else {
      const std::uint16_t d = small_half(random);
      const std::uint16_t m = small_half(random);
      std::memcpy(block, &d, 2);
      if (format == FileFormat::kQ4_1) std::memcpy(block + 2, &m, 2);
    }
  }
  read_file(w);
  return w;
}

// Exactly as many bytes as asked for, aligned to 64: an access outside is an access outside the allocation.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size) : data_(static_cast<std::uint8_t*>(::operator new(size, kAlignment))) {
    std::memset(data_.get(), 0xa5, size);
  }
  std::uint8_t* get() const { return data_.get(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::uint8_t* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<std::uint8_t, Free> data_;
};

struct Packed {
  AlignedBytes bytes;
  PackedMatrix matrix;
};

inline Packed pack(const FileWeight& w) {
  const Layout layout = layout_of(w.format);
  const std::size_t tile_bytes = packed_tile_bytes(layout, w.k);
  PackedMatrix matrix{layout, w.n, w.k, tile_bytes, nullptr};
  AlignedBytes bytes(matrix.bytes());
  pack_tiles(w.format, w.bytes.data(), w.n, w.k, bytes.get(), 0, matrix.tiles());
  matrix.data = bytes.get();
  return {std::move(bytes), matrix};
}

// Activations quantised by a kernel set, in memory of exactly the promised sizes.
struct Quantized {
  std::vector<std::int8_t> values;
  std::vector<float> scales;
  QuantizedRows rows;

  Quantized(const LinearKernels& kernels, const float* x, int count, int k, std::size_t stride)
      : values(quantized_value_bytes(count, k)), scales(quantized_scale_bytes(count, k) / sizeof(float)),
        rows{count, k, values.data(), scales.data()} {
    kernels.quantize(x, stride, rows, 0, (count + kPanelRows - 1) / kPanelRows);
  }
  Quantized(const Quantized&) = delete;
  Quantized& operator=(const Quantized&) = delete;

  int value(int row, int i) const { return values[panel(row, i / kGroup) * kGroup + static_cast<std::size_t>((i % kGroup / 4 * width(row) + row % kPanelRows) * 4 + i % 4)]; }
  float scale(int row, int group) const { return scales[panel(row, group) * 2 + static_cast<std::size_t>(row % kPanelRows)]; }
  float scale_sum(int row, int group) const { return scales[panel(row, group) * 2 + static_cast<std::size_t>(width(row) + row % kPanelRows)]; }

 private:
  int width(int row) const {
    const int first = row / kPanelRows * kPanelRows;
    return rows.rows - first < kPanelRows ? rows.rows - first : kPanelRows;
  }
  std::size_t panel(int row, int group) const {
    return static_cast<std::size_t>(row / kPanelRows * kPanelRows * (rows.k / kGroup) + group * width(row));
  }
};

// linear.h, "linear_quantized", for one output.
inline float quantized_output(const FileWeight& w, const Quantized& x, int row, int output) {
  float acc = 0.0f;
  for (int g = 0; g < w.k / kGroup; ++g) {
    int sum = 0;
    for (int j = 0; j < kGroup; ++j) sum += w.codes[w.at(output, g * kGroup + j)] * x.value(row, g * kGroup + j);
    const float d = w.d[w.group_at(output, g)];
    acc = std::fma(static_cast<float>(sum), d * x.scale(row, g), acc);
    if (w.format == FileFormat::kQ4_1) acc = std::fma(w.m[w.group_at(output, g)], x.scale_sum(row, g), acc);
    if (w.format == FileFormat::kQ4_0) acc = std::fma(-8.0f * d, x.scale_sum(row, g), acc);
  }
  return acc;
}

// linear.h, "linear_float", for one output on a target with fused multiply-add.
inline float float_output(const FileWeight& w, const float* x, int output) {
  float acc = 0.0f;
  for (int k = 0; k < w.k; k += kGroup) {
    float part = 0.0f;
    for (int j = k; j < w.k && j < k + kGroup; ++j) part = std::fma(w.values[w.at(output, j)], x[j], part);
    acc = acc + part;
  }
  return acc;
}

inline double double_output(const FileWeight& w, const float* x, int output) {
  double acc = 0.0;
  for (int i = 0; i < w.k; ++i) acc += static_cast<double>(w.values[w.at(output, i)]) * static_cast<double>(x[i]);
  return acc;
}

inline std::vector<const LinearKernels*> available_kernels() {
  std::vector<const LinearKernels*> kernels = {&linear_kernels_portable()};
#if defined(__x86_64__)
  // Every processor with AVX2 has F16C; not every compiler can be asked.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    kernels.push_back(&linear_kernels_avx2());
  }
#endif
  return kernels;
}

// The whole product of some rows, variant and tile split chosen; fast says which of the two kernels.
inline std::vector<float> product(const LinearKernels& kernels, const Packed& weight, bool fast, const float* x,
                                  int rows, int variant = 0, int split = 0) {
  const PackedMatrix& w = weight.matrix;
  const auto stride = static_cast<std::size_t>(w.k);
  std::vector<float> out(static_cast<std::size_t>(rows) * static_cast<std::size_t>(w.n));
  const LinearOutput output{out.data(), static_cast<std::size_t>(w.n), nullptr, nullptr, 0};
  const int ranges[][2] = {{split, w.tiles()}, {0, split}};
  if (fast) {
    const Quantized q(kernels, x, rows, w.k, stride);
    for (const auto& [begin, end] : ranges) kernels.linear_quantized(w, q.rows, begin, end, output, variant);
  } else {
    for (const auto& [begin, end] : ranges) kernels.linear_float(w, x, stride, rows, begin, end, output, variant);
  }
  return out;
}

inline bool same_bits(const float* a, const float* b, std::size_t count) { return std::memcmp(a, b, count * sizeof(float)) == 0; }

}  // namespace tidemill::test
