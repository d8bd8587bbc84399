// Weights in file formats with their values read straight from the file bytes (independently of pack.cpp), and the
// arithmetic of linear.h repeated from those.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "executor/isa.h"
#include "kernels/linear.h"

namespace tidemill::test {

inline constexpr FileFormat kFormats[] = {
    FileFormat::kF32,  FileFormat::kF16,  FileFormat::kBF16, FileFormat::kQ4_0, FileFormat::kQ4_1,
    FileFormat::kQ8_0, FileFormat::kQ4_K, FileFormat::kQ6_K, FileFormat::kQ5_K, FileFormat::kQ5_0,
    FileFormat::kQ5_1, FileFormat::kQ3_K, FileFormat::kQ2_K, FileFormat::kIQ4_NL, FileFormat::kMXFP4,
    FileFormat::kQ4_Z, FileFormat::kF8_E4M3};

inline const char* name_of(FileFormat format) {
  constexpr const char* names[] = {"f32",  "f16",  "bf16", "q4_0", "q4_1", "q8_0",   "q4_k", "q6_k",
                                   "q5_k", "q5_0", "q5_1", "q3_k", "q2_k", "iq4_nl", "mxfp4", "q4_z", "f8_e4m3"};
  return names[static_cast<int>(format)];
}

inline bool is_quantized(FileFormat format) { return format >= FileFormat::kQ4_0 && format != FileFormat::kF8_E4M3; }

inline int block_values(FileFormat format) {
  constexpr int values[] = {1, 1, 1, 32, 32, 32, 256, 256, 256, 32, 32, 256, 256, 32, 32, 32, 32};
  return values[static_cast<int>(format)];
}

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

// One value of a block format as the file has it: value = (code - offset) * scale + minimum, with integers that scale
// the halves d and m in some formats (1 in the others).
struct FileValue {
  int code;
  int offset;
  float d, m;
  int scale, minimum;

  // d and m times small integers are exact; their sum rounds once.
  float value() const {
    const double exact = static_cast<double>(code - offset) * scale * static_cast<double>(d);
    return static_cast<float>(m == 0.0f ? exact : exact + static_cast<double>(m) * minimum);  // -0 stays what it is
  }
};

// A weight [n, k] as a file has it, taken apart.
struct FileWeight {
  FileFormat format;
  int n;
  int k;
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;     // exact, those with a minimum rounded once
  std::vector<FileValue> parts;  // block formats only

  std::size_t at(int row, int i) const { return static_cast<std::size_t>(row) * static_cast<std::size_t>(k) + static_cast<std::size_t>(i); }
};

inline std::size_t block_bytes(FileFormat format) {
  constexpr std::size_t sizes[] = {4, 2, 2, 18, 20, 34, 144, 210, 176, 22, 24, 110, 84, 18, 17, 19, 36};
  return sizes[static_cast<int>(format)];
}

inline std::uint16_t small_half(Random& random) {  // magnitude 2^-11 .. 2^-6, either sign
  return static_cast<std::uint16_t>((random.bits() & 0x8000u) | (4 + random.bits() % 5) << 10 | (random.bits() & 1023u));
}

inline float half_at(const std::uint8_t* bytes) { return half_value(static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8)); }

// Value i of a block of 32.
inline FileValue read_small(FileFormat format, const std::uint8_t* b, int i) {
  const int nibble = i < 16 ? 0 : 4;
  const int low = i % 16;
  switch (format) {
    case FileFormat::kQ4_0: return {b[2 + low] >> nibble & 15, 8, half_at(b), 0.0f, 1, 0};
    case FileFormat::kQ4_1: return {b[4 + low] >> nibble & 15, 0, half_at(b), half_at(b + 2), 1, 1};
    case FileFormat::kQ8_0: return {static_cast<std::int8_t>(b[2 + i]), 0, half_at(b), 0.0f, 1, 0};
    case FileFormat::kQ5_0:
      return {(b[6 + low] >> nibble & 15) + 16 * (b[2 + i / 8] >> i % 8 & 1), 16, half_at(b), 0.0f, 1, 0};
    case FileFormat::kQ5_1:
      return {(b[8 + low] >> nibble & 15) + 16 * (b[4 + i / 8] >> i % 8 & 1), 0, half_at(b), half_at(b + 2), 1, 1};
    case FileFormat::kQ4_Z: return {b[3 + low] >> nibble & 15, 0, half_at(b), -half_at(b), 1, b[2]};
    case FileFormat::kIQ4_NL: {
      constexpr int levels[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
      return {levels[b[2 + low] >> nibble & 15], 0, half_at(b), 0.0f, 1, 0};
    }
    default: {  // mxfp4: sign, two bits of exponent, one of mantissa; doubled, and 12 added
      constexpr int magnitudes[] = {0, 1, 2, 3, 4, 6, 8, 12};
      const int code = b[1 + low] >> nibble & 15;
      return {12 + (code < 8 ? 1 : -1) * magnitudes[code % 8], 12, std::ldexp(1.0f, b[0] - 128), 0.0f, 1, 0};
    }
  }
}

// Value i of a block of 256: 4 or 5 bits, 6-bit scales and minimums per 32.
inline FileValue read_q45_k(const std::uint8_t* b, int i, bool five) {
  const int g = i / 32;
  const std::uint8_t* s = b + 4;
  const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) + 16 * (s[g - 4] >> 6);
  const int minimum = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) + 16 * (s[g] >> 6);
  const int low = b[(five ? 48 : 16) + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
  return {low + (five ? 16 * (b[16 + i % 32] >> g & 1) : 0), 0, half_at(b), -half_at(b + 2), scale, minimum};
}

inline FileValue read_super(FileFormat format, const std::uint8_t* b, int i) {
  const int h = i / 16;
  switch (format) {
    case FileFormat::kQ6_K: {
      const int low = b[i / 128 * 64 + i % 64] >> i / 64 % 2 * 4 & 15;
      const int high = b[128 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
      return {low + 16 * high, 32, half_at(b + 208), 0.0f, static_cast<std::int8_t>(b[192 + h]), 0};
    }
    case FileFormat::kQ3_K: {
      const int low = b[32 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
      const int scale = (b[96 + h % 8] >> h / 8 * 4 & 15) + 16 * (b[104 + h % 4] >> h / 4 * 2 & 3) - 32;
      return {low + 4 * (b[i % 32] >> i / 32 & 1), 4, half_at(b + 108), 0.0f, scale, 0};
    }
    case FileFormat::kQ2_K: {
      const int code = b[16 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
      return {code, 0, half_at(b + 80), -half_at(b + 82), b[h] & 15, b[h] >> 4};
    }
    default: return read_q45_k(b, i, format == FileFormat::kQ5_K);
  }
}

// Sign, four bits of exponent, three of mantissa; 2^-6 is the smallest normal number.
inline float read_float8(const std::uint8_t* b, int i) {
  float d;
  std::memcpy(&d, b, 4);
  const int code = b[4 + i], exponent = code >> 3 & 15, mantissa = code & 7;
  const double value = exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
  return static_cast<float>((code & 0x80 ? -value : value) * static_cast<double>(d));
}

// Reads what a file means, value by value.
inline void read_file(FileWeight& w) {
  const std::size_t count = static_cast<std::size_t>(w.n) * static_cast<std::size_t>(w.k);
  w.values.resize(count);
  w.parts.resize(is_quantized(w.format) ? count : 0);
  const auto per_block = static_cast<std::size_t>(block_values(w.format));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* block = &w.bytes[i / per_block * block_bytes(w.format)];
    const int inside = static_cast<int>(i % per_block);
    if (w.format == FileFormat::kF32) std::memcpy(&w.values[i], block, 4);
    if (w.format == FileFormat::kF16) w.values[i] = half_at(block);
    if (w.format == FileFormat::kBF16) {
      w.values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(block[0]) << 16 | static_cast<std::uint32_t>(block[1]) << 24);
    }
    if (w.format == FileFormat::kF8_E4M3) w.values[i] = read_float8(block, inside);
    if (is_quantized(w.format)) {
      w.parts[i] = per_block == 32 ? read_small(w.format, block, inside) : read_super(w.format, block, inside);
      w.values[i] = w.parts[i].value();
    }
  }
}

// Where the f16 of a block are; -1: none.
struct HalfPlaces {
  int d, m;
};

inline HalfPlaces half_places(FileFormat format) {
  switch (format) {
    case FileFormat::kQ4_1:
    case FileFormat::kQ5_1:
    case FileFormat::kQ4_K:
    case FileFormat::kQ5_K: return {0, 2};
    case FileFormat::kQ6_K: return {208, -1};
    case FileFormat::kQ3_K: return {108, -1};
    case FileFormat::kQ2_K: return {80, 82};
    case FileFormat::kF8_E4M3:
    case FileFormat::kMXFP4: return {-1, -1};
    default: return {0, -1};
  }
}

// Makes the scales of a block of random bytes small numbers.
inline void tame_block(FileFormat format, Random& random, std::uint8_t* block) {
  const HalfPlaces places = half_places(format);
  for (const int place : {places.d, places.m}) {
    const std::uint16_t half = small_half(random);
    if (place >= 0) std::memcpy(block + place, &half, 2);
  }
  if (format == FileFormat::kQ4_Z) block[2] = static_cast<std::uint8_t>(random.bits() % 17);
  if (format == FileFormat::kF8_E4M3) {
    const float d = random.uniform() * 0x1p-8f;
    std::memcpy(block, &d, 4);
    for (int i = 4; i < 36; ++i) block[i] = (block[i] & 0x7f) == 0x7f ? 0x7e : block[i];  // no NaN
  }
  if (format == FileFormat::kMXFP4) block[0] = static_cast<std::uint8_t>(120 + random.bits() % 8);
}

inline FileWeight random_weight(FileFormat format, int n, int k, std::uint64_t seed) {
  FileWeight w{format, n, k, {}, {}, {}};
  const std::size_t count = static_cast<std::size_t>(n) * static_cast<std::size_t>(k);
  const std::size_t blocks = count / static_cast<std::size_t>(block_values(format));
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
      tame_block(format, random, block);
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
    kernels.quantize(x, stride, rows, 0, k / kGroup);
  }
  Quantized(const Quantized&) = delete;
  Quantized& operator=(const Quantized&) = delete;

  int value(int row, int i) const { return values[panel(row, i / kGroup) * kGroup + static_cast<std::size_t>((i % kGroup / 4 * width(row) + row % kPanelRows) * 4 + i % 4)]; }
  float scale(int row, int group) const { return scales[panel(row, group) * 3 + static_cast<std::size_t>(row % kPanelRows)]; }
  float scale_sum(int row, int group) const { return scales[panel(row, group) * 3 + static_cast<std::size_t>(width(row) + row % kPanelRows)]; }
  int half_sum(int row, int group, int half) const {
    std::int16_t sums[2];
    std::memcpy(sums, &scales[panel(row, group) * 3 + static_cast<std::size_t>(2 * width(row) + row % kPanelRows)], 4);
    return sums[half];
  }

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
  const FileFormat format = w.format;
  const bool halves = format == FileFormat::kQ6_K || format == FileFormat::kQ3_K || format == FileFormat::kQ2_K;
  const bool zero = format == FileFormat::kQ4_Z;
  float acc = 0.0f;
  for (int g = 0; g < w.k / kGroup; ++g) {
    const FileValue& first = w.parts[w.at(output, g * kGroup)];
    int sum = 0, scaled = 0, minimum = 0;
    for (int j = 0; j < kGroup; ++j) {
      const FileValue& part = w.parts[w.at(output, g * kGroup + j)];
      sum += (part.code - (zero ? part.minimum : part.offset)) * x.value(row, g * kGroup + j);
      scaled += part.scale * (part.code - part.offset) * x.value(row, g * kGroup + j);
      minimum += part.minimum * x.value(row, g * kGroup + j);
    }
    const float scale = x.scale(row, g);
    if (halves) {
      acc = std::fma(static_cast<float>(scaled) * first.d, scale, acc);
      if (format == FileFormat::kQ2_K) acc = std::fma(static_cast<float>(minimum) * first.m, scale, acc);
      continue;
    }
    const float d = first.d * static_cast<float>(first.scale);
    acc = std::fma(static_cast<float>(sum) * d, scale, acc);
    if (first.m != 0.0f && !zero) acc = std::fma(first.m * static_cast<float>(first.minimum), x.scale_sum(row, g), acc);
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
  std::vector<const LinearKernels*> kernels;
  for (const std::string& isa : supported_isas()) kernels.push_back(select_kernels(isa).linear);
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
    for (const auto& [begin, end] : ranges) kernels.linear_quantized(w, q.rows, begin, end, output, variant, nullptr);
  } else {
    for (const auto& [begin, end] : ranges) kernels.linear_float(w, x, stride, rows, begin, end, output, variant);
  }
  return out;
}

inline bool same_bits(const float* a, const float* b, std::size_t count) { return std::memcmp(a, b, count * sizeof(float)) == 0; }

}  // namespace tidemill::test
