#include "kernels/round_blocks.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/blocks.h"
#include "kernels/embed.h"
#include "kernels/half.h"

namespace tidemill {
namespace {

constexpr int kLanes = 4;
constexpr int kVectors = kGroup / kLanes;
typedef float Floats __attribute__((vector_size(4 * kLanes)));

// 32 values in vectors of four: sums have one order on every machine.
struct Group {
  Floats v[kVectors];
};

Floats all(float value) { return Floats{value, value, value, value}; }

float total(Floats v) { return v[0] + v[1] + (v[2] + v[3]); }

// To nearest even, for magnitudes below 2^22.
Floats rounded(Floats v) { return (v + all(0x1.8p23f)) - all(0x1.8p23f); }

Floats smaller(Floats a, Floats b) { return a < b ? a : b; }

Floats larger(Floats a, Floats b) { return a > b ? a : b; }

Group load_group(const float* x) {
  Group group;
  std::memcpy(group.v, x, sizeof group.v);
  return group;
}

struct Range {
  float low, high;
};

Range range_of(const Group& x) {
  Floats low = x.v[0], high = x.v[0];
  for (const Floats& v : x.v) {
    low = smaller(low, v);
    high = larger(high, v);
  }
  Range range{low[0], high[0]};
  for (int i = 1; i < kLanes; ++i) {
    range.low = low[i] < range.low ? low[i] : range.low;
    range.high = high[i] > range.high ? high[i] : range.high;
  }
  return range;
}

bool finite_half(std::uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// A grid d * code + m with its parts as they are stored.
struct Grid {
  std::uint16_t d, m;

  float step() const { return half_to_float(d); }
  float low() const { return half_to_float(m); }
};

void codes_of(const Group& x, float step, float low, Group& codes) {
  const Floats inverse = all(step > 0.0f ? 1.0f / step : 0.0f);
  for (int i = 0; i < kVectors; ++i) {
    const Floats code = rounded(smaller(larger((x.v[i] - all(low)) * inverse, all(0.0f)), all(15.0f)));
    codes.v[i] = code;
  }
}

// The grid that fits codes best, in the least squares of weighted errors; false where all codes are alike.
bool fit(const Group& x, const Group& weights, const Group& codes, float& step, float& low) {
  Floats w{}, wc{}, wcc{}, wx{}, wcx{};
  for (int i = 0; i < kVectors; ++i) {
    const Floats weighted = weights.v[i] * codes.v[i];
    w += weights.v[i];
    wc += weighted;
    wcc += weighted * codes.v[i];
    wx += weights.v[i] * x.v[i];
    wcx += weighted * x.v[i];
  }
  const float sw = total(w), sc = total(wc), scc = total(wcc), sx = total(wx), scx = total(wcx);
  const float determinant = sw * scc - sc * sc;
  if (!(determinant > 1e-6f * sw * scc)) return false;
  step = (sw * scx - sc * sx) / determinant;
  low = (scc * sx - sc * scx) / determinant;
  return step > 0.0f;
}

float error_of(const Group& x, const Group& weights, const Group& codes, float step, float low) {
  Floats sum{};
  for (int i = 0; i < kVectors; ++i) {
    const Floats distance = codes.v[i] * all(step) + all(low) - x.v[i];
    sum += weights.v[i] * distance * distance;
  }
  return total(sum);
}

void weights_of(const Group& x, Group& weights) {
  Floats squares{};
  for (const Floats& v : x.v) squares += v * v;
  const Floats rms = all(std::sqrt(total(squares) / kGroup));
  for (int i = 0; i < kVectors; ++i) weights.v[i] = larger(x.v[i], -x.v[i]) + rms;
}

bool round_q4(const Group& x, std::uint8_t* out) {
  const Range range = range_of(x);
  const float width = range.high - range.low;
  Group weights, codes, best_codes{};
  weights_of(x, weights);
  Grid best{0, float_to_half(range.low)};
  float least = INFINITY;
  const auto consider = [&](float step, float low) {
    const Grid grid{float_to_half(step), float_to_half(low)};
    if (!finite_half(grid.d) || !finite_half(grid.m)) return;
    codes_of(x, grid.step(), grid.low(), codes);
    const float error = error_of(x, weights, codes, grid.step(), grid.low());
    if (error < least) {
      least = error;
      best = grid;
      best_codes = codes;
    }
  };
  consider(width / 15.0f, range.low);
  for (int i = 0; width > 0.0f && i <= 10; ++i) {
    float step = width / (14.0f + 0.2f * static_cast<float>(i));
    float low = range.low;
    codes_of(x, step, low, codes);
    if (fit(x, weights, codes, step, low)) consider(step, low);
  }
  if (!finite_half(best.m) || least == INFINITY) return false;
  std::memcpy(out, &best.d, 2);
  std::memcpy(out + 2, &best.m, 2);
  for (int i = 0; i < kGroup / 2; ++i) {
    const int low = static_cast<int>(best_codes.v[i / kLanes][i % kLanes]);
    const int j = i + kGroup / 2;
    out[4 + i] = static_cast<std::uint8_t>(low | static_cast<int>(best_codes.v[j / kLanes][j % kLanes]) << 4);
  }
  return true;
}

bool round_q8(const Group& x, std::uint8_t* out) {
  const Range range = range_of(x);
  const float peak = range.high > -range.low ? range.high : -range.low;
  const std::uint16_t d = float_to_half(peak / 127.0f);
  if (!finite_half(d)) return false;
  const float step = half_to_float(d);
  const Floats inverse = all(step > 0.0f ? 1.0f / step : 0.0f);
  std::memcpy(out, &d, 2);
  for (int i = 0; i < kGroup; ++i) {
    const Floats code = rounded(smaller(larger(x.v[i / kLanes] * inverse, all(-127.0f)), all(127.0f)));
    out[2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(code[i % kLanes]));
  }
  return true;
}

bool all_finite(const float* x, std::int32_t count) {
  std::uint32_t worst = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu;
    worst = bits > worst ? bits : worst;
  }
  return worst < 0x7f800000u;
}

}  // namespace

bool round_rows(FileFormat from, const std::uint8_t* rows, std::int32_t count, std::int32_t columns, FileFormat to,
                std::uint8_t* out) {
  std::vector<float> values(static_cast<std::size_t>(columns));
  const std::size_t row_bytes = file_row_bytes(from, columns), block_bytes = block_size(to).bytes;
  for (std::int32_t row = 0; row < count; ++row, rows += row_bytes) {
    dequantize_row(from, rows, columns, values.data());
    if (!all_finite(values.data(), columns)) return false;
    for (std::int32_t i = 0; i < columns; i += kGroup, out += block_bytes) {
      const Group group = load_group(values.data() + i);
      if (!(to == FileFormat::kQ8_0 ? round_q8(group, out) : round_q4(group, out))) return false;
    }
  }
  return true;
}

}  // namespace tidemill
