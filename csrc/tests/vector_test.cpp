// The vector arithmetic that everything else stands on: half floats, exp, log, tanh, random numbers and Gumbel noise.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "executor/isa.h"
#include "executor/program.h"
#include "kernels/half.h"
#include "kernels/sampler_impl.h"
#include "kernels/simd.h"
#include "tests/check.h"

using namespace tidemill;
using simd::Portable;

namespace {

float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// The value of a half by its definition.
double half_value(std::uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int mantissa = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

void halves_convert_exactly() {
  int wrong = 0;
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    if ((h & 0x7c00) == 0x7c00) continue;
    const float value = half_to_float(half);
    wrong += static_cast<double>(value) != half_value(half) || float_to_half(value) != half;
  }
  CHECK_CASE(wrong == 0, "%d halves", wrong);
  CHECK(std::isinf(half_to_float(0x7c00)) && std::isnan(half_to_float(0x7e00)));
}

// Between each half and the next: below the middle down, above it up, in the middle to the even one.
void floats_round_to_the_nearest_half() {
  int wrong = 0;
  for (std::uint16_t half = 0; half < 0x7bff; ++half) {
    const auto above = static_cast<std::uint16_t>(half + 1);
    const auto middle = static_cast<float>((half_value(half) + half_value(above)) / 2);  // exact in float
    const std::uint16_t even = half % 2 == 0 ? half : above;
    wrong += float_to_half(middle) != even;
    wrong += float_to_half(std::nextafterf(middle, 0.0f)) != half;
    wrong += float_to_half(std::nextafterf(middle, 1e9f)) != above;
    wrong += float_to_half(-middle) != (even | 0x8000);
  }
  CHECK_CASE(wrong == 0, "%d roundings", wrong);
  CHECK(float_to_half(65519.0f) == 0x7bff);
  CHECK(float_to_half(65520.0f) == 0x7c00);
  CHECK(float_to_half(std::numeric_limits<float>::infinity()) == 0x7c00);
  CHECK((float_to_half(std::nanf("")) & 0x7fff) > 0x7c00);
}

float lane(Portable::V v) {
  float lanes[Portable::kLanes];
  Portable::store(lanes, v);
  return lanes[0];
}

void exp_and_log_are_close() {
  double worst_exp = 0.0, worst_log = 0.0;
  for (int i = 0; i <= 200000; ++i) {
    const float x = -87.0f + static_cast<float>(i) * (174.0f / 200000.0f);
    const double e = std::exp(static_cast<double>(x));
    worst_exp = std::max(worst_exp, std::fabs(static_cast<double>(lane(simd::exp<Portable>(Portable::set(x)))) - e) / e);
    const float y = from_bits(0x00800000u + static_cast<std::uint32_t>(i) * 10650u);
    const double l = std::log(static_cast<double>(y));
    const double error = std::fabs(static_cast<double>(lane(simd::log<Portable>(Portable::set(y)))) - l);
    worst_log = std::max(worst_log, error / std::max(std::fabs(l), 1e-3));
  }
  CHECK_CASE(worst_exp < 3e-7, "exp %g", worst_exp);
  CHECK_CASE(worst_log < 3e-7, "log %g", worst_log);
  CHECK(lane(simd::exp<Portable>(Portable::set(-88.0f))) == 0.0f);
  CHECK(lane(simd::exp<Portable>(Portable::set(-INFINITY))) == 0.0f);
  CHECK(lane(simd::exp<Portable>(Portable::set(0.0f))) == 1.0f);
  CHECK(std::isnan(lane(simd::exp<Portable>(Portable::set(NAN)))));
  CHECK(lane(simd::log<Portable>(Portable::set(1.0f))) == 0.0f);
}

// The relative error of tanh over all magnitudes, on every instruction set: a cap of 1 on rows of an odd length.
void tanh_is_close() {
  constexpr std::int32_t kCount = 100003;
  std::vector<float> x(kCount), y(kCount);
  for (std::int32_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<double>(i) / kCount;
    x[static_cast<std::size_t>(i)] = static_cast<float>((i % 2 == 0 ? 1 : -1) * std::pow(10.0, -9.0 + 11.0 * at));
  }
  for (const std::string& isa : supported_isas()) {
    const VectorKernels& kernels = *select_kernels(isa).vector;
    kernels.soft_cap(x.data(), 1.0f, kCount, y.data());
    double worst = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = std::tanh(static_cast<double>(x[i]));
      worst = std::max(worst, std::fabs((static_cast<double>(y[i]) - exact) / exact));
    }
    CHECK_CASE(worst < 6e-7, "%s: %g", isa.c_str(), worst);
    const float special[] = {0.0f, INFINITY, -INFINITY, NAN};
    kernels.soft_cap(special, 1.0f, 4, y.data());
    CHECK(y[0] == 0.0f && y[1] == 1.0f && y[2] == -1.0f && std::isnan(y[3]));
  }
}

// The relative error of GELU from where its tail is tiny, and exp(-x^2 / 2) as rough as its argument, to where it is x
// itself, on every instruction set.
void gelu_is_close() {
  constexpr std::int32_t kCount = 100003;
  std::vector<float> x(kCount), y(kCount);
  for (std::int32_t i = 0; i < kCount; ++i) {
    x[static_cast<std::size_t>(i)] = -6.0f + 26.0f * static_cast<float>(i) / static_cast<float>(kCount);
  }
  for (const std::string& isa : supported_isas()) {
    const VectorKernels& kernels = *select_kernels(isa).vector;
    const auto gelu = kernels.activate[static_cast<int>(PlainActivation::kGelu)];
    gelu(x.data(), kCount, y.data());
    double worst = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto v = static_cast<double>(x[i]);
      const double exact = v / 2 * std::erfc(-v / std::sqrt(2.0));
      if (v != 0.0) worst = std::max(worst, std::fabs((static_cast<double>(y[i]) - exact) / exact));
    }
    CHECK_CASE(worst < 5e-6, "%s: %g", isa.c_str(), worst);
    const float special[] = {0.0f, INFINITY, NAN, -200.0f};
    gelu(special, 4, y.data());
    CHECK(y[0] == 0.0f && y[1] == INFINITY && std::isnan(y[2]) && y[3] == 0.0f);
  }
}

// Known answers of the authors' own implementation (Random123).
void philox_gives_the_known_answers() {
  struct Answer {
    std::uint32_t counter[4];
    std::uint64_t key;
    std::uint32_t words[4];
  };
  const Answer answers[] = {
      {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, ~std::uint64_t{0}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       0x299f31d0a4093822,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Answer& answer : answers) {
    PhiloxBlock<Portable> block;
    for (int w = 0; w < 4; ++w) {
      for (int i = 0; i < Portable::kLanes; ++i) block.words[w][i] = answer.counter[w];
    }
    philox(block, answer.key);
    for (int w = 0; w < 4; ++w) {
      for (int i = 0; i < Portable::kLanes; ++i) CHECK(block.words[w][i] == answer.words[w]);
    }
  }
}

double exact_noise(std::uint32_t word) {
  const double u = std::min((static_cast<double>(word) + 0.5) * 0x1p-32, 1.0 - 0x1p-24);
  return -std::log(-std::log1p(-u));
}

void noise_is_precise_at_both_ends() {
  for (const std::uint32_t word :
       {0u, 1u, 2u, 77u, 4096u, 1u << 20, 0x10000000u, 0x40000000u, 0x7fffffffu, 0x80000000u, 0xc0000000u, 0xf0000000u,
        0xffff0000u, 0xffffff00u, 0xfffffffeu, 0xffffffffu}) {
    std::uint32_t words[Portable::kLanes];
    for (std::uint32_t& w : words) w = word;
    const double found = static_cast<double>(lane(gumbel_noise<Portable>(words)));
    CHECK_CASE(std::fabs(found - exact_noise(word)) < 3e-6, "word %u: %.9g, exact %.9g", word, found, exact_noise(word));
  }
}

// The noise of each token as documented in sampler.h, on every instruction set: alone, and among all others.
void tokens_get_the_documented_noise() {
  constexpr std::int32_t kVocab = 203;
  const NoiseKey key{0x123456789abcdef0u, 3, 4567};
  for (const std::string& isa : supported_isas()) {
    const SamplerKernels& kernels = select_kernels(isa).vector->sampler;
    const std::vector<float> flat(kVocab, 0.0f);
    BestToken expected{-INFINITY, 0};
    for (std::int32_t id = 0; id < kVocab; ++id) {
      PhiloxBlock<Portable> block;
      for (int i = 0; i < Portable::kLanes; ++i) block.words[0][i] = static_cast<std::uint32_t>(id / 4);
      set_counters(block, key);
      philox(block, key.seed);
      const double noise = exact_noise(block.words[id % 4][0]);
      const BestToken alone = kernels.gumbel(flat.data(), kVocab, &id, 1, key);
      CHECK_CASE(alone.id == id && std::fabs(static_cast<double>(alone.value) - noise) < 3e-6, "%s token %d", isa.c_str(),
                 id);
      keep_best(expected, alone.value, id);
    }
    const BestToken found = kernels.gumbel(flat.data(), kVocab, nullptr, 0, key);
    CHECK_CASE(found.id == expected.id && found.value == expected.value, "%s: token %d, expected %d", isa.c_str(),
               found.id, expected.id);
  }
}

}  // namespace

int main() {
  halves_convert_exactly();
  floats_round_to_the_nearest_half();
  exp_and_log_are_close();
  tanh_is_close();
  gelu_is_close();
  philox_gives_the_known_answers();
  noise_is_precise_at_both_ends();
  tokens_get_the_documented_noise();
  return tidemill::test::finish("vector");
}
