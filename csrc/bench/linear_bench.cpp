// How fast the linear kernels are, against the multiply peaks of their instruction sets in the same minutes (one thread).
//
//   linear_bench [seconds [sets [name]]]      10 s with the best kernels by default; the last line is JSON
//
// sets: "best", or instruction sets that take turns in one run ("avx2,avx512").
// name: only the cases that have it in theirs ("q4_k fast"), and the peaks.
//
// GOP/s counts two operations per multiply-add. Shared machines change speed from minute to minute, so peaks and
// kernels take turns in each round and medians are compared; times are processor time of the thread, which leaves out
// the slices that other processes take. Weights streamed from memory are counted in packed bytes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/cases.h"
#include "executor/isa.h"
#include "kernels/linear.h"
#include "kernels/roof.h"

namespace {

using namespace tidemill;
using namespace tidemill::bench;

std::string product_name(const LinearKernels& kernels, Layout layout, bool fast, int n, int k, int rows) {
  constexpr const char* names[] = {"q4_0", "q4_1", "q8_0", "q4_k",   "q5_k",  "q6_k", "q5_0", "q5_1",
                                   "q3_k", "q2_k", "iq4_nl", "mxfp4", "q4_z", "f8_e4m3", "f16",  "bf16", "f32"};
  return std::string(kernels.isa) + " " + names[static_cast<int>(layout)] + (fast ? " fast " : " exact ") +
         std::to_string(n) + "x" + std::to_string(k) + " rows " + std::to_string(rows);
}

// A case owns its data through the closure.
Case product_case(const LinearKernels& kernels, Layout layout, bool fast, int n, int k, int rows) {
  struct Data {
    PackedMatrix weight;
    HugeBytes bytes;
    std::vector<float> x, out;
    std::vector<std::int8_t> values;
    std::vector<float> scales;
    QuantizedRows quantized;
  };
  const auto size = [](int a, int b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); };
  PackedMatrix weight{layout, n, k, packed_tile_bytes(layout, k), nullptr};
  auto data = std::shared_ptr<Data>(new Data{weight, HugeBytes(weight.bytes()), std::vector<float>(size(rows, k)),
                                             std::vector<float>(size(rows, n)), std::vector<std::int8_t>(size(rows, k)),
                                             std::vector<float>(size(rows, k / kGroup * kGroupScales)), {}});
  data->weight.data = data->bytes.get();
  if (layout == Layout::kFloat4Table) {  // exponents of ordinary numbers, as above
    for (std::size_t i = 0; i < weight.bytes(); i += 272) std::memset(data->bytes.get() + i, 120, 16);
  }
  for (std::size_t i = 0; i < data->x.size(); ++i) data->x[i] = static_cast<float>(i * 2654435761u % 2001) / 1000 - 1;
  data->quantized = {rows, k, data->values.data(), data->scales.data()};
  kernels.quantize(data->x.data(), static_cast<std::size_t>(k), data->quantized, 0, k / kGroup);
  const auto run = [data, &kernels, fast] {
    const PackedMatrix& w = data->weight;
    const LinearOutput output{data->out.data(), static_cast<std::size_t>(w.n), nullptr, nullptr, 0};
    if (fast) {
      kernels.linear_quantized(w, data->quantized, 0, w.tiles(), output, 0, nullptr);
    } else {
      kernels.linear_float(w, data->x.data(), static_cast<std::size_t>(w.k), data->quantized.rows, 0, w.tiles(), output, 0);
    }
  };
  const bool streams = weight.bytes() > (std::size_t{32} << 20);
  const std::string name = product_name(kernels, layout, fast, n, k, rows);
  const RoofLoops loops = roof_loops(kernels.isa);
  return {name, fast ? loops.integer_instruction : loops.float_instruction, 2.0 * n * k * rows, streams ? static_cast<double>(weight.bytes()) : 0.0, run};
}

Case quantize_case(const LinearKernels& kernels, int rows, int k) {
  auto x = std::make_shared<std::vector<float>>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(k), 0.5f);
  auto values = std::make_shared<std::vector<std::int8_t>>(x->size());
  auto scales = std::make_shared<std::vector<float>>(x->size() / kGroup * kGroupScales);
  const auto run = [=, &kernels] {
    kernels.quantize(x->data(), static_cast<std::size_t>(k), {rows, k, values->data(), scales->data()}, 0, k / kGroup);
  };
  const std::string name = std::string(kernels.isa) + " quantize " + std::to_string(rows) + "x" + std::to_string(k);
  return {name, "", static_cast<double>(x->size()), 0.0, run};
}

// The peaks of these sets, each once, and reading.
std::vector<Case> peak_cases(const std::vector<const LinearKernels*>& kernels) {
  std::vector<Case> cases;
  const auto add = [&](const char* instruction, double operations, void (*run)()) {
    const std::string name = std::string("peak ") + instruction;
    for (const Case& c : cases) {
      if (c.name == name) return;
    }
    cases.push_back({name, "", operations, 0.0, run});
  };
  for (const LinearKernels* set : kernels) {
    const RoofLoops loops = roof_loops(set->isa);
    add(loops.float_instruction, loops.float_operations, loops.multiply_floats);
    add(loops.integer_instruction, loops.integer_operations, loops.multiply_bytes);
  }
  constexpr std::size_t kSize = std::size_t{128} << 20;
  auto stream = std::make_shared<HugeBytes>(kSize);
  const auto read = roof_loops(kernels[0]->isa).read;
  cases.push_back({"read loop", "", 0.0, static_cast<double>(kSize), [=] { read(stream->get(), kSize); }});
  return cases;
}

// The cases of one set that have `part` in their names.
std::vector<Case> product_cases(const LinearKernels& kernels, const std::string& part) {
  std::vector<Case> cases;
  const auto add = [&](Layout layout, bool fast, int n, int k, int rows) {
    if (product_name(kernels, layout, fast, n, k, rows).find(part) == std::string::npos) return;
    cases.push_back(product_case(kernels, layout, fast, n, k, rows));
  };
  for (int i = 0; i <= static_cast<int>(Layout::kF32); ++i) {
    const auto layout = static_cast<Layout>(i);
    const bool common = layout <= Layout::kQ6Halves;  // the others only at a few sizes
    for (const int rows : {1, 4, 48}) add(layout, false, 1536, 768, rows);
    if (layout >= Layout::kF16) {
      for (const int rows : {16, 512}) add(layout, false, 1536, 768, rows);
    }
    if (layout >= Layout::kFloat8) continue;
    for (const int rows : {1, 2, 4, 16, 48, 512}) {
      if (common || rows == 1 || rows == 48) add(layout, true, 1536, 768, rows);
    }
    for (const int rows : {1, 4}) {
      if (common || rows == 1) add(layout, true, 49152, 1536, rows);
    }
  }
  for (const int rows : {1, 4}) add(Layout::kF16, false, 49152, 1536, rows);
  for (const auto& [n, k] : {std::pair{960, 576}, {3072, 576}, {576, 1536}, {17920, 1536}, {1536, 8960}}) {
    for (const int rows : {1, 4, 16, 64, 512}) add(Layout::kQ4Affine, true, n, k, rows);
  }
  if (std::string(kernels.isa).append(" quantize").find(part) != std::string::npos) {
    cases.push_back(quantize_case(kernels, 512, 576));
  }
  return cases;
}

std::vector<const LinearKernels*> kernels_of(const std::string& names) {
  std::vector<const LinearKernels*> kernels;
  for (const std::string& name : isas_of(names)) kernels.push_back(select_kernels(name).linear);
  return kernels;
}

// Each case of one set beside the same case of the others, so that they share their minutes.
std::vector<Case> make_cases(const std::vector<const LinearKernels*>& kernels, const std::string& name) {
  std::vector<std::vector<Case>> sets;
  for (const LinearKernels* set : kernels) sets.push_back(product_cases(*set, name));
  std::vector<Case> cases;
  for (std::size_t i = 0; i < sets[0].size(); ++i) {
    for (std::vector<Case>& set : sets) cases.push_back(std::move(set[i]));
  }
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 4 || (argc > 1 && std::atof(argv[1]) <= 0.0)) {
    std::fprintf(stderr, "usage: linear_bench [seconds [best|SET,SET... [name]]]\n");
    return 2;
  }
  try {
    const std::vector<const LinearKernels*> kernels = kernels_of(argc > 2 ? argv[2] : "best");
    std::vector<Case> cases = make_cases(kernels, argc > 3 ? argv[3] : "");
    if (cases.empty()) {
      std::fprintf(stderr, "linear_bench: no case has %s in its name\n", argc > 3 ? argv[3] : "");
      return 2;
    }
    std::vector<Case> peaks = peak_cases(kernels);
    cases.insert(cases.begin(), std::make_move_iterator(peaks.begin()), std::make_move_iterator(peaks.end()));
    measure(cases, argc > 1 ? std::atof(argv[1]) : 10.0);
    report("linear", cases);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "linear_bench: %s\n", error.what());
    return 2;
  }
  return 0;
}
