// The kernels of low-rank updates against doubles, in buffers that end where the values do: every instruction set, sizes
// that fill no vector, and each number of rows with the bits of the row alone.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "executor/adapters.h"
#include "executor/isa.h"
#include "tests/check.h"

using namespace tidemill;

namespace {

float value(std::int32_t i, std::int32_t seed) { return std::sin(static_cast<float>(i * 7 + seed * 13 + 1)); }

std::vector<float> values(std::size_t count, std::int32_t seed) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = value(static_cast<std::int32_t>(i), seed);
  return result;
}

struct Case {
  std::int32_t rank, inputs, outputs;
};

struct Rows {
  std::vector<std::vector<float>> x, h, y;
};

Rows computed(const LoraKernels& kernels, const LowRank& weights, const Case& size, int rows) {
  Rows result;
  const float* x[kLoraRows];
  float* h[kLoraRows];
  float* y[kLoraRows];
  for (int r = 0; r < rows; ++r) {
    result.x.push_back(values(static_cast<std::size_t>(size.inputs), 10 + r));
    result.h.emplace_back(static_cast<std::size_t>(size.rank));
    result.y.push_back(values(static_cast<std::size_t>(size.outputs), 20 + r));
  }
  for (int r = 0; r < rows; ++r) {
    const auto index = static_cast<std::size_t>(r);
    x[r] = result.x[index].data();
    h[r] = result.h[index].data();
    y[r] = result.y[index].data();
  }
  kernels.down(weights.a, weights.stride, weights.rank, size.inputs, x, rows, weights.scale, h);
  const std::int32_t middle = weights.tiles() / 2;
  kernels.up(weights.b, weights.rank, weights.outputs, 0, middle, h, rows, y);
  kernels.up(weights.b, weights.rank, weights.outputs, middle, weights.tiles(), h, rows, y);
  return result;
}

void check_case(const std::string& isa, const Case& size) {
  const LoraKernels& kernels = select_kernels(isa).vector->lora;
  const auto rank = static_cast<std::size_t>(size.rank), inputs = static_cast<std::size_t>(size.inputs);
  const std::vector<float> a = values(rank * inputs, 1), b = values(rank * static_cast<std::size_t>(size.outputs), 2);
  const LoraWeights given[] = {{0, size.rank, size.inputs, size.outputs, 0.37f, a.data(), b.data()}};
  const Adapter adapter(1, given);
  const LowRank& weights = *adapter.part(0);
  const Rows all = computed(kernels, weights, size, kLoraRows);
  for (int rows = 1; rows <= kLoraRows; ++rows) {
    const Rows some = computed(kernels, weights, size, rows);
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      const bool same = std::memcmp(some.y[r].data(), all.y[r].data(), sizeof(float) * all.y[r].size()) == 0;
      CHECK_CASE(same, "%s rank %d: %d rows change row %zu", isa.c_str(), size.rank, rows, r);
    }
  }
  double worst = 0.0;
  for (std::size_t r = 0; r < kLoraRows; ++r) {
    std::vector<double> hidden(rank);
    for (std::size_t j = 0; j < rank; ++j) {
      for (std::size_t k = 0; k < inputs; ++k) {
        hidden[j] += static_cast<double>(a[j * inputs + k]) * static_cast<double>(all.x[r][k]);
      }
      hidden[j] *= static_cast<double>(0.37f);
    }
    for (std::int32_t i = 0; i < size.outputs; ++i) {
      double exact = static_cast<double>(value(i, 20 + static_cast<std::int32_t>(r)));
      const auto row = static_cast<std::size_t>(i) * rank;
      for (std::size_t j = 0; j < rank; ++j) exact += static_cast<double>(b[row + j]) * hidden[j];
      worst = std::max(worst, std::fabs(exact - static_cast<double>(all.y[r][static_cast<std::size_t>(i)])));
    }
  }
  CHECK_CASE(worst < 2e-4, "%s rank %d [%d, %d]: off by %g", isa.c_str(), size.rank, size.outputs, size.inputs, worst);
}

}  // namespace

int main() {
  for (const std::string& isa : supported_isas()) {
    for (const Case& size : {Case{1, 1, 1}, Case{2, 16, 32}, Case{3, 33, 31}, Case{8, 64, 64}, Case{17, 95, 129}}) {
      check_case(isa, size);
    }
  }
  return test::finish("lora");
}
