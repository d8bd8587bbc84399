// Rounding activations to 8 bits: exact values, and the same bits wherever a row stands.
#include <limits>

#include "tests/check.h"
#include "tests/linear_fixtures.h"

using namespace tidemill;
using namespace tidemill::test;

namespace {

Quantized quantize(const LinearKernels& kernels, const std::vector<float>& x, int rows, int k) {
  return Quantized(kernels, x.data(), rows, k, static_cast<std::size_t>(k));
}

void a_known_group_gives_known_numbers(const LinearKernels& kernels) {
  std::vector<float> x(32, 0.0f);
  x[0] = 254.0f;  // scale 2, inverse 0.5
  x[1] = -254.0f;
  x[2] = 5.0f;   // 2.5, a tie: 2
  x[3] = 7.0f;   // 3.5, a tie: 4
  x[4] = -5.0f;  // -2
  x[5] = 4.9f;   // 2.45
  const Quantized q = quantize(kernels, x, 1, 32);
  const int expected[] = {127, -127, 2, 4, -2, 2, 0};
  for (int i = 0; i < 7; ++i) CHECK_CASE(q.value(0, i) == expected[i], "%s value %d", kernels.isa, i);
  CHECK(q.scale(0, 0) == 2.0f);
  CHECK(q.scale_sum(0, 0) == 12.0f);
}

// linear.h, "quantize", value by value.
void the_written_formula_holds(const LinearKernels& kernels) {
  const int rows = 7, k = 96;
  std::vector<float> x = random_floats(static_cast<std::size_t>(rows * k), 11);
  for (std::size_t i = 0; i < 32; ++i) x[i] *= 1e-20f;
  for (std::size_t i = 32; i < 64; ++i) x[i] *= 1e30f;
  const Quantized q = quantize(kernels, x, rows, k);
  for (int r = 0; r < rows; ++r) {
    for (int g = 0; g < k / kGroup; ++g) {
      const float* group = &x[static_cast<std::size_t>(r * k + g * kGroup)];
      float peak = 0.0f;
      for (int j = 0; j < kGroup; ++j) peak = std::max(peak, std::fabs(group[j]));
      const float inverse = 127.0f / peak;
      int sum = 0;
      for (int j = 0; j < kGroup; ++j) {
        const int expected = static_cast<int>(std::nearbyint(group[j] * inverse));
        CHECK_CASE(q.value(r, g * kGroup + j) == expected, "%s row %d k %d", kernels.isa, r, g * kGroup + j);
        sum += expected;
      }
      for (int h = 0; h < 2; ++h) {
        int half = 0;
        for (int j = 16 * h; j < 16 * h + 16; ++j) half += q.value(r, g * kGroup + j);
        CHECK_CASE(q.half_sum(r, g, h) == half, "%s row %d group %d half %d", kernels.isa, r, g, h);
      }
      CHECK(q.scale(r, g) == peak / 127.0f);
      CHECK(q.scale_sum(r, g) == peak / 127.0f * static_cast<float>(sum));
    }
  }
}

void nothing_and_too_much_are_defined(const LinearKernels& kernels) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x(6 * 32, 1.0f);
  for (std::size_t i = 0; i < 32; ++i) x[i] = 0.0f;             // row 0: zeros
  for (std::size_t i = 32; i < 64; ++i) x[i] = 1e-40f;          // row 1: subnormal, becomes zero
  x[2 * 32 + 5] = std::numeric_limits<float>::quiet_NaN();      // row 2
  x[3 * 32 + 31] = -infinity;                                   // row 3
  for (std::size_t i = 4 * 32; i < 5 * 32; ++i) x[i] = i % 2 ? 3.4028235e38f : -3.4028235e38f;  // row 4: the largest floats
  const Quantized q = quantize(kernels, x, 6, 32);
  for (int r = 0; r < 4; ++r) {
    for (int i = 0; i < 32; ++i) CHECK_CASE(q.value(r, i) == 0, "%s row %d", kernels.isa, r);
  }
  CHECK(q.scale(0, 0) == 0.0f && q.scale(1, 0) == 0.0f && q.scale_sum(1, 0) == 0.0f);
  CHECK(std::isnan(q.scale(2, 0)) && std::isnan(q.scale_sum(2, 0)) && std::isnan(q.scale(3, 0)));
  CHECK(q.value(4, 0) == -127 && q.value(4, 1) == 127 && std::isfinite(q.scale(4, 0)));
  CHECK(q.value(5, 0) == 127 && q.scale(5, 0) == 1.0f / 127.0f);
}

void a_row_is_the_same_in_any_panel(const LinearKernels& kernels) {
  const int k = 64;
  const std::vector<float> x = random_floats(11 * 64, 4);
  const Quantized all = quantize(kernels, x, 11, k);
  for (int rows = 1; rows <= 11; ++rows) {
    for (int first = 0; first + rows <= 11; ++first) {
      const Quantized some(kernels, &x[static_cast<std::size_t>(first * k)], rows, k, static_cast<std::size_t>(k));
      for (int r = 0; r < rows; ++r) {
        bool same = true;
        for (int i = 0; i < k; ++i) same = same && some.value(r, i) == all.value(first + r, i);
        for (int g = 0; g < k / kGroup; ++g) {
          same = same && some.scale(r, g) == all.scale(first + r, g) && some.scale_sum(r, g) == all.scale_sum(first + r, g) &&
                 some.half_sum(r, g, 0) == all.half_sum(first + r, g, 0) && some.half_sum(r, g, 1) == all.half_sum(first + r, g, 1);
        }
        CHECK_CASE(same, "%s rows %d first %d row %d", kernels.isa, rows, first, r);
      }
    }
  }
}

void groups_can_be_done_apart(const LinearKernels& kernels) {
  const std::vector<float> x = random_floats(11 * 96, 9);
  const Quantized all = quantize(kernels, x, 11, 96);
  Quantized parts = quantize(kernels, std::vector<float>(11 * 96, 1.0f), 11, 96);
  kernels.quantize(x.data() + 32, 96, parts.rows, 1, 3);
  kernels.quantize(x.data(), 96, parts.rows, 0, 1);
  CHECK(all.values == parts.values && same_bits(all.scales.data(), parts.scales.data(), all.scales.size()));
}

void instruction_sets_agree() {
  const std::vector<float> x = random_floats(67 * 576, 8);
  const Quantized portable = quantize(linear_kernels_portable(), x, 67, 576);
  for (const LinearKernels* kernels : available_kernels()) {
    const Quantized q = quantize(*kernels, x, 67, 576);
    CHECK_CASE(q.values == portable.values && same_bits(q.scales.data(), portable.scales.data(), q.scales.size()), "%s",
               kernels->isa);
  }
}

}  // namespace

int main() {
  for (const LinearKernels* kernels : available_kernels()) {
    a_known_group_gives_known_numbers(*kernels);
    the_written_formula_holds(*kernels);
    nothing_and_too_much_are_defined(*kernels);
    a_row_is_the_same_in_any_panel(*kernels);
    groups_can_be_done_apart(*kernels);
  }
  instruction_sets_agree();
  return finish("quantize");
}
