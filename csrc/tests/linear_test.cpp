// The linear kernels: right for every format and size, and the same bits whatever stands beside a row.
#include <cmath>
#include <limits>
#include <string_view>
#include <thread>

#include "tests/check.h"
#include "tests/linear_fixtures.h"

using namespace tidemill;
using namespace tidemill::test;

namespace {

constexpr int kRowCounts[] = {1, 2, 3, 4, 5, 7, 33, 67};
constexpr int kMostRows = 67;

// With the argument `brief`, for emulated processors: the large sizes are left out, and most of the row counts.
bool brief = false;

// A small k of whole blocks.
int width_of(FileFormat format) { return std::max(64, block_values(format)); }

double rms(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// Largest distance from the double reference, relative to the size of the outputs.
double error_of(const FileWeight& w, const std::vector<float>& x, const std::vector<float>& out, int rows) {
  std::vector<double> expected;
  double worst = 0.0;
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < w.n; ++j) {
      expected.push_back(double_output(w, &x[static_cast<std::size_t>(r) * static_cast<std::size_t>(w.k)], j));
      worst = std::max(worst, std::fabs(expected.back() - static_cast<double>(out[expected.size() - 1])));
    }
  }
  return worst / rms(expected);
}

void row_counts_agree(const LinearKernels& kernels, const Packed& packed, bool fast, const std::vector<float>& x,
                      const std::vector<float>& all) {
  for (const int rows : kRowCounts) {
    if (packed.matrix.n > 33 && rows != 1 && rows != 7) continue;  // the large sizes are slow under sanitizers
    const std::vector<float> out = product(kernels, packed, fast, x.data(), rows);
    CHECK_CASE(same_bits(out.data(), all.data(), out.size()), "%s layout %d n %d k %d rows %d fast %d", kernels.isa,
               static_cast<int>(packed.matrix.layout), packed.matrix.n, packed.matrix.k, rows, fast);
  }
}

void check_exact_mode(const LinearKernels& kernels, const FileWeight& w, const Packed& packed,
                      const std::vector<float>& x) {
  const std::vector<float> out = product(kernels, packed, false, x.data(), kMostRows);
  const double error = error_of(w, x, out, kMostRows);
  CHECK_CASE(error < 4e-6, "%s %s n %d k %d error %g", kernels.isa, name_of(w.format), w.n, w.k, error);
  row_counts_agree(kernels, packed, false, x, out);
#if !defined(__FP_FAST_FMAF)
  if (std::string_view(kernels.isa) == "portable") return;  // rounds products before adding
#endif
  for (int r = 0; r < kMostRows; r += 22) {
    for (int j = 0; j < w.n; ++j) {
      const float expected = float_output(w, &x[static_cast<std::size_t>(r * w.k)], j);
      CHECK_CASE(out[static_cast<std::size_t>(r * w.n + j)] == expected, "%s %s n %d k %d row %d output %d", kernels.isa,
                 name_of(w.format), w.n, w.k, r, j);
    }
  }
}

void check_fast_mode(const LinearKernels& kernels, const FileWeight& w, const Packed& packed,
                     const std::vector<float>& x) {
  const std::vector<float> out = product(kernels, packed, true, x.data(), kMostRows);
  const double error = error_of(w, x, out, kMostRows);
  CHECK_CASE(error < 0.06, "%s %s n %d k %d error %g", kernels.isa, name_of(w.format), w.n, w.k, error);
  row_counts_agree(kernels, packed, true, x, out);
  const Quantized q(kernels, x.data(), kMostRows, w.k, static_cast<std::size_t>(w.k));
  for (int r = 0; r < kMostRows; r += r == 44 ? 22 : 11) {
    for (int j = 0; j < w.n; ++j) {
      const float expected = quantized_output(w, q, r, j);
      CHECK_CASE(out[static_cast<std::size_t>(r * w.n + j)] == expected, "%s %s n %d k %d row %d output %d", kernels.isa,
                 name_of(w.format), w.n, w.k, r, j);
    }
  }
}

void every_format_and_size_is_right(const LinearKernels& kernels) {
  for (const FileFormat format : kFormats) {
    for (const int n : {1, 7, 16, 17, 33, 576}) {
      for (const int k : {1, 7, 32, 35, 64, 256, 576, 1536}) {
        if (k % block_values(format) != 0 || (n == 576 && k != 1536 && k != 32)) continue;
        if (brief && (n == 7 || n == 16 || n > 33 || k > 256)) continue;
        const FileWeight w = random_weight(format, n, k, static_cast<std::uint64_t>(n * 10000 + k));
        const Packed packed = pack(w);
        const std::vector<float> x = random_floats(static_cast<std::size_t>(kMostRows) * static_cast<std::size_t>(k), 1);
        check_exact_mode(kernels, w, packed, x);
        if (is_quantized(format)) check_fast_mode(kernels, w, packed, x);
      }
    }
  }
}

// Rows 1..70 at both ends of the batch, every row-count variant, every split of the tiles: one set of bits.
// k of an even and of an odd number of groups: some kernels take two at a time.
void company_does_not_change_a_row(const LinearKernels& kernels, FileFormat format, bool fast, int groups) {
  const int n = 49, k = block_values(format) == 256 ? 256 : kGroup * groups, most = 70;
  const FileWeight w = random_weight(format, n, k, 21);
  const Packed packed = pack(w);
  const std::vector<float> x = random_floats(static_cast<std::size_t>(most * k), 2);
  const std::vector<float> all = product(kernels, packed, fast, x.data(), most);
  for (int rows = 1; rows <= most; ++rows) {
    if (brief && rows > 9 && rows < most) continue;
    for (const int first : {0, most - rows}) {
      for (int variant = 0; variant <= kPanelRows; ++variant) {
        const int split = (rows + variant) % (packed.matrix.tiles() + 1);
        const std::vector<float> out =
            product(kernels, packed, fast, &x[static_cast<std::size_t>(first * k)], rows, variant, split);
        CHECK_CASE(same_bits(out.data(), &all[static_cast<std::size_t>(first * n)], out.size()),
                   "%s %s fast %d rows %d first %d variant %d split %d", kernels.isa, name_of(format), fast, rows, first,
                   variant, split);
      }
    }
  }
}

// Rows are worked on in blocks of 64; 67 rows make two. A long k besides.
void row_blocks_do_not_change_a_row(const LinearKernels& kernels, FileFormat format, bool fast) {
  const int k = brief ? 512 : 8960;
  const FileWeight w = random_weight(format, 17, k, 22);
  const Packed packed = pack(w);
  const std::vector<float> x = random_floats(static_cast<std::size_t>(67 * k), 3);
  const std::vector<float> all = product(kernels, packed, fast, x.data(), 67);
  for (const int row : {0, 1, 62, 63, 64, 66}) {
    const std::vector<float> out = product(kernels, packed, fast, &x[static_cast<std::size_t>(row * k)], 1);
    CHECK_CASE(same_bits(out.data(), &all[static_cast<std::size_t>(row) * 17], 17), "%s %s fast %d row %d", kernels.isa,
               name_of(format), fast, row);
  }
}

void threads_do_not_change_bits(const LinearKernels& kernels, FileFormat format) {
  const int n = 200, k = width_of(format), rows = 9;
  const FileWeight w = random_weight(format, n, k, 23);
  const Packed packed = pack(w);
  const std::vector<float> x = random_floats(static_cast<std::size_t>(rows * k), 4);
  const std::vector<float> alone = product(kernels, packed, true, x.data(), rows);
  for (const int threads : {2, 3}) {
    const auto stride = static_cast<std::size_t>(k);
    Quantized q(kernels, std::vector<float>(static_cast<std::size_t>(rows * k)).data(), rows, k, stride);
    std::vector<float> out(static_cast<std::size_t>(rows * n));
    const LinearOutput output{out.data(), static_cast<std::size_t>(n), nullptr, nullptr, 0};
    const auto in_parts = [&](int parts, const auto& work) {
      std::vector<std::thread> team;
      for (int i = 0; i < threads; ++i) {
        team.emplace_back([&, i] { work(parts * i / threads, parts * (i + 1) / threads); });
      }
      for (std::thread& member : team) member.join();
    };
    in_parts(k / kGroup, [&](int begin, int end) { kernels.quantize(x.data() + kGroup * begin, stride, q.rows, begin, end); });
    in_parts(packed.matrix.tiles(),
             [&](int begin, int end) { kernels.linear_quantized(packed.matrix, q.rows, begin, end, output, 0, nullptr); });
    CHECK_CASE(out == alone, "%s %s threads %d", kernels.isa, name_of(format), threads);
  }
}

// Rows share by share, with tiles of two weights that a kernel may keep expanded, give what they give at once: where there is
// room for both, for one of them, and for none. A second use of the same room finds nothing of the first.
void shares_of_rows_make_up_the_whole(const LinearKernels& kernels, FileFormat format) {
  const int n = 40, k = 2 * width_of(format), rows = 112;
  const Packed packed[] = {pack(random_weight(format, n, k, 31)), pack(random_weight(format, n, k, 32))};
  const std::vector<float> x = random_floats(static_cast<std::size_t>(rows * k), 8);
  const Quantized q(kernels, x.data(), rows, k, static_cast<std::size_t>(k));
  const std::vector<float> whole[] = {product(kernels, packed[0], true, x.data(), rows),
                                      product(kernels, packed[1], true, x.data(), rows)};
  const std::size_t one = 3 * static_cast<std::size_t>(k / kGroup) * 704;  // the largest form of three tiles
  for (const std::size_t room : {2 * one, one, std::size_t{64}}) {
    AlignedBytes memory(room);
    ExpandedTiles kept(memory.get(), room);
    AlignedBytes changing(packed[0].matrix.bytes());
    PackedMatrix matrices[] = {packed[0].matrix, packed[1].matrix};
    matrices[0].data = changing.get();
    for (const int use : {0, 1}) {
      std::memcpy(changing.get(), packed[use].matrix.data, packed[use].matrix.bytes());
      kept.begin(static_cast<std::uint64_t>(use + 1));
      std::vector<float> out[] = {std::vector<float>(whole[0].size()), std::vector<float>(whole[0].size())};
      for (const auto& [begin, end] : {std::pair{0, 48}, {48, 64}, {64, 112}}) {
        const QuantizedRows share{end - begin, k, q.rows.values + quantized_value_bytes(begin, k),
                                  q.rows.scales + quantized_scale_bytes(begin, k) / sizeof(float)};
        for (int i = 0; i < 2; ++i) {
          const LinearOutput output{out[i].data() + begin * n, static_cast<std::size_t>(n), nullptr, nullptr, 0};
          kernels.linear_quantized(matrices[i], share, 0, matrices[i].tiles(), output, 0, &kept);
        }
      }
      CHECK_CASE(out[0] == whole[use] && out[1] == whole[1], "%s %s room %zu use %d", kernels.isa, name_of(format), room, use);
    }
  }
}

// Output rows wider than the weight, bias, and a residual that is the output itself; nothing else is written.
void bias_residual_and_bounds(const LinearKernels& kernels, FileFormat format, bool fast) {
  const int k = width_of(format), rows = 6;
  for (const int n : {1, 7, 8, 9, 16, 17, 33}) {
    const std::size_t stride = static_cast<std::size_t>(n) + 5;
    const FileWeight w = random_weight(format, n, k, 24);
    const Packed packed = pack(w);
    const std::vector<float> x = random_floats(static_cast<std::size_t>(rows * k), 5);
    const std::vector<float> bias = random_floats(static_cast<std::size_t>(n), 6);
    const std::vector<float> before = random_floats(static_cast<std::size_t>(rows) * stride, 7);
    const std::vector<float> plain = product(kernels, packed, fast, x.data(), rows);
    for (int variant = 0; variant <= kPanelRows; ++variant) {
      std::vector<float> out = before;
      const LinearOutput output{out.data(), stride, bias.data(), out.data(), stride};
      if (fast) {
        const Quantized q(kernels, x.data(), rows, k, static_cast<std::size_t>(k));
        kernels.linear_quantized(packed.matrix, q.rows, 0, packed.matrix.tiles(), output, variant, nullptr);
      } else {
        kernels.linear_float(packed.matrix, x.data(), static_cast<std::size_t>(k), rows, 0, packed.matrix.tiles(), output, variant);
      }
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::size_t r = i / stride, j = i % stride;
        const bool inside = j < static_cast<std::size_t>(n);
        const float sum = inside ? plain[r * static_cast<std::size_t>(n) + j] + bias[j] : 0.0f;
        CHECK_CASE(out[i] == (inside ? sum + before[i] : before[i]), "%s %s fast %d n %d variant %d row %zu column %zu",
                   kernels.isa, name_of(format), fast, n, variant, r, j);
      }
    }
  }
}

// Largest codes and scales of both signs against the largest activations of both signs, where 16-bit sums would overflow
// first. Every byte of a block but its f16 is the same.
void extremes_do_not_saturate(const LinearKernels& kernels, FileFormat format) {
  const int k = width_of(format);
  for (const int byte : {0x00, 0xff, 0x80, 0x7f, 0x81, 0xf0}) {
    FileWeight w = random_weight(format, 16, k, 25);
    Random random(1);
    for (std::size_t b = 0; b < w.bytes.size(); b += block_bytes(format)) {
      std::memset(&w.bytes[b], byte, block_bytes(format));
      tame_block(format, random, &w.bytes[b]);
    }
    read_file(w);
    const Packed packed = pack(w);
    for (const int pattern : {0, 1, 2, 3}) {
      std::vector<float> x(static_cast<std::size_t>(11 * k), 127.0f);
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (pattern == 1 || (pattern == 2 && i % 2 == 0) || (pattern == 3 && i % 4 < 2)) x[i] = -127.0f;
      }
      for (const int rows : {5, 11}) {  // from eight rows on some kernels take the weights apart first
        const std::vector<float> out = product(kernels, packed, true, x.data(), rows);
        const Quantized q(kernels, x.data(), rows, k, static_cast<std::size_t>(k));
        for (int r = 0; r < rows; ++r) {
          for (int j = 0; j < 16; ++j) {
            CHECK_CASE(out[static_cast<std::size_t>(r * 16 + j)] == quantized_output(w, q, r, j),
                       "%s %s byte %02x pattern %d row %d of %d", kernels.isa, name_of(format), byte, pattern, r, rows);
          }
        }
      }
    }
  }
}

// Output e has the exponent e in its only group.
FileWeight weight_of_every_exponent() {
  FileWeight w{FileFormat::kMXFP4, 256, 32, std::vector<std::uint8_t>(256 * 17), {}, {}};
  for (std::size_t e = 0; e < 256; ++e) {
    w.bytes[17 * e] = static_cast<std::uint8_t>(e);
    for (std::size_t i = 1; i < 17; ++i) w.bytes[17 * e + i] = static_cast<std::uint8_t>(0x23 + 15 * e + i);
  }
  read_file(w);
  return w;
}

// The smallest and largest exponents of powers of two that scale a group, subnormal ones included.
void every_exponent_is_read_right(const LinearKernels& kernels) {
  const FileWeight w = weight_of_every_exponent();
  const Packed packed = pack(w);
  for (int i = 0; i < 32; ++i) {
    std::vector<float> x(32, 0.0f);
    x[static_cast<std::size_t>(i)] = 1.0f;
    const std::vector<float> out = product(kernels, packed, false, x.data(), 1);
    for (int e = 0; e < 252; ++e) {  // above, 12 * 2^(e - 128) is not a float
      CHECK_CASE(out[static_cast<std::size_t>(e)] == w.values[w.at(e, i)], "%s exponent %d k %d", kernels.isa, e, i);
    }
  }
}

// So many rows that tiles are used where there are any. Those of the largest exponents are infinite.
void every_exponent_scales_sums_right(const LinearKernels& kernels) {
  const FileWeight w = weight_of_every_exponent();
  const std::vector<float> x = random_floats(33 * 32, 30);
  const std::vector<float> out = product(kernels, pack(w), true, x.data(), 33);
  const Quantized q(kernels, x.data(), 33, 32, 32);
  for (int i = 0; i < 33 * 256; ++i) {
    CHECK_CASE(out[static_cast<std::size_t>(i)] == quantized_output(w, q, i / 256, i % 256), "%s row %d exponent %d",
               kernels.isa, i / 256, i % 256);
  }
}

void a_broken_row_stays_alone(const LinearKernels& kernels, FileFormat format, bool fast) {
  const int n = 17, k = width_of(format), rows = 7;
  const FileWeight w = random_weight(format, n, k, 26);
  const Packed packed = pack(w);
  std::vector<float> x = random_floats(static_cast<std::size_t>(rows * k), 8);
  const std::vector<float> healthy = product(kernels, packed, fast, x.data(), rows);
  x[static_cast<std::size_t>(k) + 3] = std::numeric_limits<float>::quiet_NaN();
  x[static_cast<std::size_t>(5 * k) + 40] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> out = product(kernels, packed, fast, x.data(), rows);
  for (int r = 0; r < rows; ++r) {
    const std::size_t at = static_cast<std::size_t>(r * n);
    if (r == 1 || r == 5) {
      for (std::size_t j = 0; j < 17; ++j) CHECK_CASE(std::isnan(out[at + j]), "%s %s row %d", kernels.isa, name_of(format), r);
    } else {
      CHECK_CASE(same_bits(&out[at], &healthy[at], 17), "%s %s fast %d row %d", kernels.isa, name_of(format), fast, r);
    }
  }
}

// Scales are f16: every half of them, subnormal and infinite included, times one.
void every_half_multiplies_right(const LinearKernels& kernels) {
  FileWeight w{FileFormat::kF16, 65536, 1, std::vector<std::uint8_t>(131072), {}, {}};
  for (std::uint32_t i = 0; i < 65536; ++i) {
    w.bytes[2 * i] = static_cast<std::uint8_t>(i);
    w.bytes[2 * i + 1] = static_cast<std::uint8_t>(i >> 8);
  }
  const Packed packed = pack(w);
  for (const int rows : {1, 5}) {  // read in place, and expanded
    const std::vector<float> x(static_cast<std::size_t>(rows), 1.0f);
    const std::vector<float> out = product(kernels, packed, false, x.data(), rows);
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const float expected = half_value(static_cast<std::uint16_t>(i));
      CHECK_CASE(std::isnan(expected) ? std::isnan(out[i]) : out[i] == expected, "%s half %04x", kernels.isa, i);
    }
  }
}

void instruction_sets_agree(FileFormat format) {
  const FileWeight w = random_weight(format, 33, 768, 27);
  const Packed packed = pack(w);
  const std::vector<float> x = random_floats(7 * 768, 9);
  const std::vector<float> portable = product(linear_kernels_portable(), packed, true, x.data(), 7);
  for (const LinearKernels* kernels : available_kernels()) {
    const std::vector<float> out = product(*kernels, packed, true, x.data(), 7);
    CHECK_CASE(same_bits(out.data(), portable.data(), out.size()), "%s %s", kernels->isa, name_of(format));
  }
}

// An infinite scale makes outputs infinite, or NaN where its sum is zero: the same ones in every instruction set, with tiles
// that are kept as without.
void infinite_scales_agree(FileFormat format) {
  const int n = 40, k = 2 * width_of(format), rows = 48;
  FileWeight w = random_weight(format, n, k, 33);
  const std::size_t row_bytes = w.bytes.size() / n;
  w.bytes[3 * row_bytes + block_bytes(format)] = 0x00;  // d of the second block of output 3
  w.bytes[3 * row_bytes + block_bytes(format) + 1] = 0x7c;
  const Packed packed = pack(w);
  const std::vector<float> x = random_floats(static_cast<std::size_t>(rows * k), 11);
  const std::vector<float> portable = product(linear_kernels_portable(), packed, true, x.data(), rows);
  CHECK_CASE(!std::isfinite(portable[3]), "%s: %g", name_of(format), static_cast<double>(portable[3]));
  const auto same = [&](const std::vector<float>& out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (std::isnan(portable[i]) ? !std::isnan(out[i]) : out[i] != portable[i]) return false;
    }
    return true;
  };
  for (const LinearKernels* kernels : available_kernels()) {
    for (const int some : {1, 16, 30, rows}) {
      CHECK_CASE(same(product(*kernels, packed, true, x.data(), some)), "%s %s rows %d", kernels->isa, name_of(format), some);
    }
    AlignedBytes memory(1 << 17);
    ExpandedTiles kept(memory.get(), 1 << 17);
    kept.begin(1);
    const Quantized q(*kernels, x.data(), rows, k, static_cast<std::size_t>(k));
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<float> out(portable.size());
      const LinearOutput output{out.data(), n, nullptr, nullptr, 0};
      kernels->linear_quantized(packed.matrix, q.rows, 0, packed.matrix.tiles(), output, 0, &kept);
      CHECK_CASE(same(out), "%s %s kept, call %d", kernels->isa, name_of(format), repeat);
    }
  }
}

// Outputs of many tiles and some rows may wait for each other, or go past the caches: with something added, and where one
// scale in the middle is infinite, they are those of the portable kernels, and what is beside them stays.
void many_tiles_agree(FileFormat format, int n, int k, bool infinite, const std::vector<int>& row_counts) {
  FileWeight w = random_weight(format, n, k, 34);
  if (infinite) {
    const std::size_t row_bytes = w.bytes.size() / static_cast<std::size_t>(n);
    const std::size_t at = static_cast<std::size_t>(n / 2) * row_bytes;
    w.bytes[at] = 0x00;
    w.bytes[at + 1] = 0x7c;
  }
  const Packed packed = pack(w);
  const std::size_t stride = (static_cast<std::size_t>(n) + 31) / 16 * 16;
  for (const int rows : row_counts) {
    const std::vector<float> x = random_floats(static_cast<std::size_t>(rows * k), 12);
    const std::vector<float> before = random_floats(static_cast<std::size_t>(rows) * stride, 13);
    for (const bool adds : {false, true}) {
      const auto run = [&](const LinearKernels& kernels) {
        AlignedBytes memory(before.size() * sizeof(float));  // lines are whole, as those of a step
        auto* out = reinterpret_cast<float*>(memory.get());
        std::memcpy(out, before.data(), before.size() * sizeof(float));
        const Quantized q(kernels, x.data(), rows, k, static_cast<std::size_t>(k));
        const LinearOutput output{out, stride, nullptr, adds ? out : nullptr, stride};
        const std::int32_t tiles = packed.matrix.tiles();
        kernels.linear_quantized(packed.matrix, q.rows, 0, tiles / 3, output, 0, nullptr);
        kernels.linear_quantized(packed.matrix, q.rows, tiles / 3, tiles, output, 0, nullptr);
        return std::vector<float>(out, out + before.size());
      };
      const std::vector<float> portable = run(linear_kernels_portable());
      for (const LinearKernels* kernels : available_kernels()) {
        const std::vector<float> out = run(*kernels);
        bool same = true;
        for (std::size_t i = 0; i < out.size(); ++i) {
          same &= std::isnan(portable[i]) ? std::isnan(out[i]) : std::memcmp(&out[i], &portable[i], sizeof(float)) == 0;
        }
        CHECK_CASE(same, "%s %s n %d k %d rows %d adds %d infinite %d", kernels->isa, name_of(format), n, k, rows, adds, infinite);
      }
    }
  }
}

// FNV-1a (Fowler, Noll, Vo) over the bits of many outputs.
std::uint64_t digest(std::uint64_t hash, const std::vector<float>& values) {
  for (const float value : values) hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3u;
  return hash;
}

// Processors agree too: the same number comes from the formula of linear.h, and is written down here. A format after
// these would change it.
void architectures_agree() {
  std::uint64_t expected = 0xcbf29ce484222325u;
  std::vector<std::uint64_t> found(available_kernels().size(), expected);
  for (const FileFormat format : kFormats) {
    if (!is_quantized(format) || format > FileFormat::kQ4_Z) continue;
    const FileWeight w = random_weight(format, 21, 512, 28);
    const Packed packed = pack(w);
    const std::vector<float> x = random_floats(5 * 512, 10);
    const Quantized q(linear_kernels_portable(), x.data(), 5, 512, 512);
    std::vector<float> outputs;
    for (int i = 0; i < 5 * 21; ++i) outputs.push_back(quantized_output(w, q, i / 21, i % 21));
    expected = digest(expected, outputs);
    for (std::size_t i = 0; i < found.size(); ++i) {
      found[i] = digest(found[i], product(*available_kernels()[i], packed, true, x.data(), 5));
    }
  }
  CHECK_CASE(expected == 0x41a1cbba1904991cu, "the formula gives %#llx", static_cast<unsigned long long>(expected));
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK_CASE(found[i] == expected, "%s gives %#llx", available_kernels()[i]->isa,
               static_cast<unsigned long long>(found[i]));
  }
}

}  // namespace

int main(int count, char** arguments) {
  brief = count > 1 && std::string_view(arguments[1]) == "brief";
  for (const LinearKernels* kernels : available_kernels()) {
    every_format_and_size_is_right(*kernels);
    every_exponent_is_read_right(*kernels);
    every_exponent_scales_sums_right(*kernels);
    every_half_multiplies_right(*kernels);
    for (const FileFormat format : kFormats) {
      for (const bool fast : {false, true}) {
        if (fast && !is_quantized(format)) continue;
        for (const int groups : {3, 4}) {
          if (block_values(format) == 256 && groups == 3) continue;  // whole blocks are even
          company_does_not_change_a_row(*kernels, format, fast, groups);
        }
        row_blocks_do_not_change_a_row(*kernels, format, fast);
        bias_residual_and_bounds(*kernels, format, fast);
        a_broken_row_stays_alone(*kernels, format, fast);
      }
      if (!is_quantized(format)) continue;
      extremes_do_not_saturate(*kernels, format);
      threads_do_not_change_bits(*kernels, format);
      shares_of_rows_make_up_the_whole(*kernels, format);
    }
  }
  for (const FileFormat format : kFormats) {
    if (is_quantized(format)) instruction_sets_agree(format);
  }
  for (const FileFormat format : {FileFormat::kQ4_0, FileFormat::kQ8_0, FileFormat::kQ4_1, FileFormat::kQ4_K}) {
    infinite_scales_agree(format);
    for (const bool infinite : {false, true}) many_tiles_agree(format, 16 * 37 + 5, 2 * width_of(format), infinite, {13, 30});
  }
  if (!brief) many_tiles_agree(FileFormat::kQ8_0, 16 * 65 + 5, 4096, false, {16});  // more than 4 MiB
  architectures_agree();
  return finish("linear");
}
