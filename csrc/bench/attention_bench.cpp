// How fast attention is, on one thread, against the multiply peak and the read loop of the same minutes.
//
//   attention_bench [seconds [sets [name [format]]]]      20 s with the best kernels by default; the last line is JSON
//
// sets: "best", or instruction sets that take turns in one run ("avx2,avx512").
// name: only the cases that have it in theirs ("decode"), and the peaks.
// format: of the keys and values, f16 or f16,q8,q4: those take turns, too.
//
// Decoding: one token of each of some sequences, over so many layers that their keys and values do not stay in a private
// cache; GB/s counts the keys and values read. Prefill: 512 tokens of one sequence after a context, in one layer.
// GOP/s counts two operations per multiply-add of the products that a causal mask leaves.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "bench/cases.h"
#include "executor/isa.h"
#include "kernels/attention.h"
#include "kernels/roof.h"

namespace {

using namespace tidemill;
using namespace tidemill::bench;

constexpr std::int32_t kBlock = 16;
constexpr std::size_t kStreamed = std::size_t{128} << 20;

struct Shape {
  const char* name;
  std::int32_t kv_heads;
  std::int32_t group;
  std::int32_t head_dim;
};

constexpr Shape kShapes[] = {{"smollm2 3x64", 3, 3, 64}, {"qwen2.5 6x128", 2, 6, 128}};

// Tokens of some sequences that all have the same context before them, in every layer of a pool.
struct Work {
  Shape shape;
  std::int32_t sequences;
  std::int32_t tokens;  // of each sequence
  std::int32_t context;  // before them
  KvFormat format;
  std::int32_t layers = 1;

  std::int32_t blocks() const { return (context + tokens + kBlock - 1) / kBlock; }
  KvLayer layer(std::uint8_t* base, std::int32_t index) const {
    KvLayer kv{base, kBlock, shape.kv_heads, shape.head_dim, format};
    kv.base += kv.block_bytes() * static_cast<std::size_t>(blocks() * sequences * index);
    return kv;
  }
  std::size_t layer_bytes() const {
    return layer(nullptr, 0).block_bytes() * static_cast<std::size_t>(blocks() * sequences);
  }
  double read_bytes() const { return static_cast<double>(layer_bytes()) * layers; }
  double operations() const {
    const double read = tokens * (context + (tokens + 1) / 2.0);  // positions, of all tokens
    return 4.0 * read * shape.head_dim * shape.kv_heads * shape.group * sequences * layers;
  }
};

// A case owns its data through the closure.
Case attention_case(const VectorKernels& kernels, const std::string& name, const Work& work) {
  struct Data {
    HugeBytes kv, rows_in, rows_out;  // as the executor keeps them
    std::vector<float> scratch;
    std::vector<std::int32_t> table;
    std::vector<AttentionRow> rows;
    std::vector<AttentionTask> tasks;
  };
  const std::int32_t width = work.shape.kv_heads * work.shape.group * work.shape.head_dim;
  const auto values = static_cast<std::size_t>(work.sequences * work.tokens * width);
  auto data = std::shared_ptr<Data>(
      new Data{HugeBytes(work.layer_bytes() * static_cast<std::size_t>(work.layers)), HugeBytes(values * sizeof(float)),
               HugeBytes(values * sizeof(float)), std::vector<float>(attention_scratch_floats(work.shape.head_dim)), {}, {},
               {}});
  auto* q = reinterpret_cast<float*>(data->rows_in.get());
  for (std::size_t i = 0; i < values; ++i) q[i] = static_cast<float>(i * 2654435761u % 2001) / 1000 - 1;
  for (std::int32_t i = 0; i < work.blocks() * work.sequences; ++i) data->table.push_back(i);
  for (std::int32_t s = 0; s < work.sequences; ++s) {
    data->rows.push_back({s * work.tokens, work.tokens, work.context, data->table.data() + s * work.blocks(), 0});
    for (std::int32_t head = 0; head < work.shape.kv_heads; ++head) {
      const std::int32_t queries = work.tokens * work.shape.group;
      for (std::int32_t begin = 0; begin < queries; begin += kTaskQueries) {
        const std::int32_t end = std::min(begin + kTaskQueries, queries);
        const std::int32_t last = work.context + (end - 1) / work.shape.group;
        data->tasks.push_back({s, head, begin, end, 0, last / kSegmentTokens + 1});
      }
    }
  }
  const auto run = [data, work, width, &kernels] {
    AttentionCall call{};
    call.q = reinterpret_cast<const float*>(data->rows_in.get());
    call.out = reinterpret_cast<float*>(data->rows_out.get());
    call.q_stride = call.out_stride = static_cast<std::size_t>(width);
    call.heads = work.shape.kv_heads * work.shape.group;
    call.scale = 0.125f;
    call.causal = true;
    const AttentionKernels& attention = kernels.attention[static_cast<int>(work.format)];
    for (std::int32_t layer = 0; layer < work.layers; ++layer) {
      call.kv = work.layer(data->kv.get(), layer);
      for (std::size_t i = 0; i < data->tasks.size(); ++i) {
        const AttentionTask* next = i + 1 < data->tasks.size() ? &data->tasks[i + 1] : nullptr;
        attention.attend(call, data->rows.data(), data->tasks[i], next, data->scratch.data());
      }
    }
  };
  return {name, std::string(kernels.isa), work.operations(), work.tokens == 1 ? work.read_bytes() : 0.0, run};
}

struct NamedFormat {
  const char* name;
  KvFormat format;
};
constexpr NamedFormat kFormats[] = {{"f16", KvFormat::kF16}, {"q8", KvFormat::kQ8}, {"q4", KvFormat::kQ4}};

std::vector<NamedFormat> formats_of(const std::string& list) {
  std::vector<NamedFormat> found;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string name = list.substr(at, end - at);
    const auto* one = std::find_if(std::begin(kFormats), std::end(kFormats), [&](const auto& f) { return f.name == name; });
    if (one == std::end(kFormats)) throw std::invalid_argument("there is no format " + name);
    found.push_back(*one);
    at = end + 1;
  }
  return found;
}

std::vector<Case> attention_cases(const VectorKernels& kernels, const std::string& part, NamedFormat format) {
  std::vector<Case> cases;
  const auto add = [&](const std::string& what, const Work& work) {
    const std::string name = std::string(kernels.isa) + " " + work.shape.name + " " + what + " " + format.name;
    if (name.find(part) != std::string::npos) cases.push_back(attention_case(kernels, name, work));
  };
  for (const Shape& shape : kShapes) {
    for (const std::int32_t sequences : {1, 16}) {
      for (const std::int32_t context : {256, 2048, 4096}) {
        Work work{shape, sequences, 1, context - 1, format.format};
        // As many for all formats: what they hold is compared, not what they take.
        const std::size_t bytes = Work{shape, sequences, 1, context - 1, KvFormat::kF16}.layer_bytes();
        work.layers = static_cast<std::int32_t>(std::max<std::size_t>(1, kStreamed / bytes));
        add("decode " + std::to_string(sequences) + " at " + std::to_string(context), work);
      }
    }
    for (const std::int32_t context : {0, 4096}) add("prefill 512 at " + std::to_string(context), {shape, 1, 512, context, format.format});
  }
  return cases;
}

std::vector<Case> peak_cases(const std::vector<std::string>& isas) {
  std::vector<Case> cases;
  for (const std::string& isa : isas) {
    const RoofLoops loops = roof_loops(select_kernels(isa).isa());
    cases.push_back({std::string("peak ") + select_kernels(isa).vector->isa, "", loops.float_operations, 0.0,
                     loops.multiply_floats});
  }
  const RoofLoops loops = roof_loops(select_kernels(isas[0]).isa());
  auto stream = std::make_shared<HugeBytes>(kStreamed);
  cases.push_back({"read loop", "", 0.0, static_cast<double>(kStreamed),
                   [stream, loops] { loops.read(stream->get(), kStreamed); }});
  return cases;
}

// Each case of one set beside the same case of the others, so that they share their minutes.
std::vector<Case> make_cases(const std::vector<std::string>& isas, const std::string& name,
                             const std::vector<NamedFormat>& formats) {
  std::vector<std::vector<Case>> sets;
  for (const std::string& isa : isas) {
    for (const NamedFormat& format : formats) sets.push_back(attention_cases(*select_kernels(isa).vector, name, format));
  }
  std::vector<Case> cases;
  for (std::size_t i = 0; i < sets[0].size(); ++i) {
    for (std::vector<Case>& set : sets) cases.push_back(std::move(set[i]));
  }
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 5 || (argc > 1 && std::atof(argv[1]) <= 0.0)) {
    std::fprintf(stderr, "usage: attention_bench [seconds [best|SET,SET... [name [f16,q8,q4]]]]\n");
    return 2;
  }
  try {
    const std::vector<std::string> isas = isas_of(argc > 2 ? argv[2] : "best");
    std::vector<Case> cases = peak_cases(isas);
    std::vector<Case> found = make_cases(isas, argc > 3 ? argv[3] : "", formats_of(argc > 4 ? argv[4] : "f16"));
    if (found.empty()) {
      std::fprintf(stderr, "attention_bench: no case has %s in its name\n", argc > 3 ? argv[3] : "");
      return 2;
    }
    cases.insert(cases.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
    measure(cases, argc > 1 ? std::atof(argv[1]) : 20.0);
    report("attention", cases);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "attention_bench: %s\n", error.what());
    return 2;
  }
  return 0;
}
