// The Python module tidemill.executors.native._native: a Machine, built by lowering.py and stepped by executor.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "../executor/machine.h"
#include "../executor/pages.h"
#include "../executor/roof.h"
#include "../kernels/checksum.h"
#include "../kernels/embed.h"
#include "../kernels/round_blocks.h"
#include "plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tidemill {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

FileFormat format_of(int format) {
  if (format < 0 || format > static_cast<int>(kLastFormat)) {
    throw std::invalid_argument("unknown weight format " + std::to_string(format));
  }
  return static_cast<FileFormat>(format);
}

// The value of an enumeration whose values have these names, in order.
template <class Enum>
Enum named(const std::string& name, std::initializer_list<const char*> names) {
  int value = 0;
  for (const char* known : names) {
    if (name == known) return static_cast<Enum>(value);
    ++value;
  }
  throw std::invalid_argument("unknown kind " + name);
}

RowsOf rows_of(bool outputs) { return outputs ? RowsOf::kOutputs : RowsOf::kTokens; }

// Keeps what the machine borrows: the bytes of embedding tables, and packed weights that others keep.
class Module {
 public:
  Module(const std::string& isa, int threads, bool materialized, int row_variant)
      : machine_({isa, threads,
                  {materialized ? AttentionForm::kMaterialized : AttentionForm::kTiled, row_variant}}) {}

  Machine& machine() { return machine_; }

  std::int32_t add_matrices(const Bytes& data, int format, std::int32_t count, std::int32_t n, std::int32_t k,
                            bool mapped) {
    const FileFormat file = format_of(format);
    require(data, file, total_rows(count, n), k);
    const std::uint8_t* rows = data.data();
    nb::gil_scoped_release released;
    return machine_.add_matrices(file, count, n, k, rows, mapped);
  }

  std::int32_t use_matrices(Bytes data, int format, std::int32_t count, std::int32_t n, std::int32_t k) {
    const FileFormat file = format_of(format);
    const std::size_t expected = packed_bytes(format, count, n, k);
    if (data.size() != expected || reinterpret_cast<std::uintptr_t>(data.data()) % 64 != 0) {
      throw std::invalid_argument("packed weights have " + std::to_string(data.size()) + " bytes, expected " +
                                  std::to_string(expected) + " at a multiple of 64");
    }
    borrowed_.push_back(data);
    return machine_.weights().use_matrices(file, count, n, k, data.data());
  }

  static std::size_t packed_bytes(int format, std::int32_t count, std::int32_t n, std::int32_t k) {
    const FileFormat file = format_of(format);
    if (total_rows(count, n) < 1 || k < 1) throw std::invalid_argument("a matrix has rows and columns");
    return Weights::packed_bytes(file, count, n, k);
  }

  // The packed bytes of `count` matrices from `index` on, in place: valid until close.
  nb::object packed(std::int32_t index, std::int32_t count) {
    const Weights& weights = machine_.weights();
    if (index < 0 || count < 1 || index > weights.matrices() - count) throw std::invalid_argument("no such matrix");
    const std::size_t bytes = align_up(weights.matrix(index).bytes()) * static_cast<std::size_t>(count);
    const nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>> view(weights.matrix(index).data, {bytes}, nb::handle());
    return nb::cast(view, nb::rv_policy::reference);
  }

  std::int32_t add_vector(const Floats& data) { return machine_.weights().add_vector(data.data(), data.size()); }

  std::int32_t add_table(Bytes data, int format, std::int32_t rows, std::int32_t columns) {
    const FileFormat file = format_of(format);
    require(data, file, rows, columns);
    borrowed_.push_back(data);
    return machine_.weights().add_table(file, rows, columns, data.data());
  }

  void emit(Instruction instruction) { machine_.program().instructions.push_back(std::move(instruction)); }

  // Per weight: its target, A [rank, inputs], B [outputs, rank], the scale.
  void add_adapter(std::int64_t number, const std::vector<std::tuple<std::int32_t, FloatMatrix, FloatMatrix, float>>& parts) {
    std::vector<LoraWeights> weights;
    for (const auto& [target, a, b, scale] : parts) {
      if (a.shape(0) != b.shape(1)) throw std::invalid_argument("A has another rank than B");
      const auto size = [](std::size_t count) { return static_cast<std::int32_t>(count); };
      weights.push_back({target, size(a.shape(0)), size(a.shape(1)), size(b.shape(0)), scale, a.data(), b.data()});
    }
    nb::gil_scoped_release released;
    machine_.add_adapter(number, weights);
  }

  void allocate_kv(std::int32_t group, std::int32_t num_blocks, std::int32_t block_size, int format) {
    if (format < 0 || format >= kKvFormats) throw std::invalid_argument("no such KV format");
    machine_.allocate_kv(group, num_blocks, block_size, static_cast<KvFormat>(format));
  }

  void submit(nb::handle rows, bool sample, bool profile) {
    machine_.submit(plan_from_python(rows), sample, profile);
  }

  // Seconds of each stage of the last profiled step: working, waiting.
  nb::list stage_seconds() const {
    nb::list result;
    for (const StageTime& time : machine_.result().stages()) {
      result.append(nb::make_tuple(1e-9 * static_cast<double>(time.wall - time.idle), 1e-9 * static_cast<double>(time.idle)));
    }
    return result;
  }

  nb::tuple collect() {
    wait();
    return nb::make_tuple(machine_.seconds(), draws_to_python(machine_.plan(), machine_.result().draws()));
  }

  // Runs the step in flight to its end and returns its logits [outputs, vocab], or vectors [outputs, width].
  nb::object collect_logits() {
    wait();
    const StepRunner& result = machine_.result();
    const auto rows = static_cast<std::size_t>(result.outputs());
    const auto width = static_cast<std::size_t>(machine_.program().result_width());
    auto* values = new float[rows * width];
    nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    for (std::size_t row = 0; row < rows; ++row) {
      std::memcpy(values + row * width, result.logits(static_cast<std::int32_t>(row)), sizeof(float) * width);
    }
    return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(values, {rows, width}, owner));
  }

  void copy_block(std::int32_t group, std::int32_t source, std::int32_t destination) {
    KvPool& pool = checked(group, source);
    checked(group, destination);
    pool.copy(source, destination);
  }

  nb::bytes read_blocks(std::int32_t group, const std::vector<std::int32_t>& blocks) {
    const KvPool& pool = machine_.kv(group);
    for (const std::int32_t block : blocks) checked(group, block);
    std::vector<std::uint8_t> data(pool.block_bytes() * blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) pool.read(blocks[i], data.data() + i * pool.block_bytes());
    return nb::bytes(data.data(), data.size());
  }

  void write_blocks(std::int32_t group, const std::vector<std::int32_t>& blocks, const nb::bytes& data) {
    KvPool& pool = machine_.kv(group);
    for (const std::int32_t block : blocks) checked(group, block);
    if (data.size() != pool.block_bytes() * blocks.size()) {
      throw std::invalid_argument("data has " + std::to_string(data.size()) + " bytes, " +
                                  std::to_string(blocks.size()) + " blocks need " +
                                  std::to_string(pool.block_bytes() * blocks.size()));
    }
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(data.c_str());
    for (std::size_t i = 0; i < blocks.size(); ++i) pool.write(blocks[i], bytes + i * pool.block_bytes());
  }

  void close() {
    {
      nb::gil_scoped_release released;
      machine_.close();
    }
    borrowed_.clear();
  }

 private:
  void wait() {
    nb::gil_scoped_release released;
    machine_.collect();
  }

  KvPool& checked(std::int32_t group, std::int32_t block) {
    KvPool& pool = machine_.kv(group);
    if (block < 0 || block >= pool.num_blocks()) {
      throw std::invalid_argument("block " + std::to_string(block) + " is not in [0, " +
                                  std::to_string(pool.num_blocks()) + ")");
    }
    return pool;
  }

  static std::int32_t total_rows(std::int32_t count, std::int32_t n) {
    if (count < 1 || n < 1 || n > INT32_MAX / count) throw std::invalid_argument("no such number of experts");
    return count * n;
  }

  static void require(const Bytes& data, FileFormat format, std::int32_t rows, std::int32_t columns) {
    const std::size_t expected = file_row_bytes(format, columns) * static_cast<std::size_t>(rows);
    if (rows < 1 || columns < 1 || data.size() != expected) {
      throw std::invalid_argument("weight has " + std::to_string(data.size()) + " bytes, expected " +
                                  std::to_string(expected));
    }
  }

  std::vector<Bytes> borrowed_;
  Machine machine_;
};

// The checksum of bytes; `mapped`: they are a read-only map of a file, read ahead, and let go if `release`.
nb::bytes checksum_of(const Bytes& data, const nb::bytes& key, bool mapped, bool release) {
  if (key.size() != kChecksumKey) throw std::invalid_argument("a key has " + std::to_string(kChecksumKey) + " bytes");
  Checksum sum;
  {
    const auto* bytes = data.data();
    const auto* random = reinterpret_cast<const std::uint8_t*>(key.c_str());
    nb::gil_scoped_release released;
    if (mapped) populate(bytes, data.size());
    sum = checksum(bytes, data.size(), random);
    if (mapped && release) let_go(bytes, data.size());
  }
  return nb::bytes(reinterpret_cast<const char*>(sum.words), sizeof(sum.words));
}

nb::tuple roof_to_python(const std::string& isa, int threads, std::size_t bytes, double seconds) {
  Roof roof;
  {
    nb::gil_scoped_release released;
    roof = measure_roof(isa, threads, bytes, seconds);
  }
  return nb::make_tuple(roof.read, roof.floats, roof.integers, roof.float_instruction, roof.integer_instruction);
}

// Rounds rows of floats to blocks, into `out`; False at a value that no block holds.
bool round_rows_of(const Bytes& data, int format, std::int32_t columns, int to,
                   const nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& out) {
  const FileFormat from = format_of(format), into = format_of(to);
  if (from > FileFormat::kBF16 || (into != FileFormat::kQ8_0 && into != FileFormat::kQ4_1)) {
    throw std::invalid_argument("f32, f16 and bf16 are rounded to q8_0 or q4_1");
  }
  if (columns < kGroup || columns % kGroup != 0) throw std::invalid_argument("rows must be whole blocks of 32");
  const std::size_t count = data.size() / file_row_bytes(from, columns);
  if (data.size() != count * file_row_bytes(from, columns) || out.size() != count * file_row_bytes(into, columns)) {
    throw std::invalid_argument("data and out must have the same whole rows");
  }
  const std::uint8_t* rows = data.data();
  std::uint8_t* blocks = out.data();
  nb::gil_scoped_release released;
  return round_rows(from, rows, static_cast<std::int32_t>(count), columns, into, blocks);
}

void bind_building(nb::class_<Module>& cls) {
  cls.def("add_matrices", &Module::add_matrices, "data"_a, "format"_a, "count"_a, "n"_a, "k"_a, "mapped"_a)
      .def("use_matrices", &Module::use_matrices, "data"_a, "format"_a, "count"_a, "n"_a, "k"_a)
      .def_static("packed_bytes_of", &Module::packed_bytes, "format"_a, "count"_a, "n"_a, "k"_a)
      .def("packed", &Module::packed, "index"_a, "count"_a)
      .def("add_vector", &Module::add_vector, "data"_a)
      .def("add_table", &Module::add_table, "data"_a, "format"_a, "rows"_a, "columns"_a)
      .def("add_rope", [](Module& m, std::vector<double> inv_freq, double factor) {
        return m.machine().add_rope(std::move(inv_freq), factor);
      }, "inv_freq"_a, "factor"_a)
      .def("add_group", [](Module& m, std::int32_t layers, std::int32_t kv_heads, std::int32_t head_dim,
                           std::int32_t window) {
        return m.machine().add_group({layers, kv_heads, head_dim, window});
      }, "layers"_a, "kv_heads"_a, "head_dim"_a, "window"_a)
      .def("add_slot", [](Module& m, bool outputs, std::int32_t float_width, std::int32_t quantized_width) {
        m.machine().program().slots.push_back({rows_of(outputs), float_width, quantized_width});
        return static_cast<int>(m.machine().program().slots.size()) - 1;
      }, "outputs"_a, "float_width"_a, "quantized_width"_a)
      .def("set_logits", [](Module& m, std::int32_t slot, std::int32_t vocab) {
        m.machine().program().logits = slot;
        m.machine().program().vocab = vocab;
      }, "slot"_a, "vocab"_a)
      .def("set_vectors", [](Module& m, std::int32_t slot, std::int32_t width, std::int32_t vocab, bool whole) {
        m.machine().program().logits = slot;
        m.machine().program().vector_width = width;
        m.machine().program().vocab = vocab;
        m.machine().program().whole = whole;
      }, "slot"_a, "width"_a, "vocab"_a, "whole"_a)
      .def("add_target", [](Module& m, std::int32_t inputs, std::int32_t outputs) {
        m.machine().program().targets.push_back({inputs, outputs});
        return static_cast<int>(m.machine().program().targets.size()) - 1;
      }, "inputs"_a, "outputs"_a)
      .def("set_positions", [](Module& m, std::int32_t positions) { m.machine().program().positions = positions; },
           "positions"_a);
}

void bind_instructions(nb::class_<Module>& cls) {
  cls.def("embed", [](Module& m, int table, int out, int width, const std::string& by, int offset) {
        m.emit(EmbedOp{table, out, width, named<EmbedBy>(by, {"token", "position", "none"}), offset});
      }, "table"_a, "out"_a, "width"_a, "by"_a, "offset"_a)
      .def("rms_norm", [](Module& m, int x, int weight, float eps, bool outputs, int width, int heads, int out,
                          int quantized) {
        if (heads < 1 || width % heads != 0) {
          throw std::invalid_argument("a norm of width " + std::to_string(width) + " has no " + std::to_string(heads) +
                                      " equal parts");
        }
        m.emit(NormOp{x, weight, eps, rows_of(outputs), width, heads, out, quantized});
      }, "x"_a, "weight"_a, "eps"_a, "outputs"_a, "width"_a, "heads"_a, "out"_a, "out_quantized"_a)
      .def("glu", [](Module& m, bool gelu_tanh, int gate, int up, bool outputs, int width, int out, int quantized) {
        const Activation activation = gelu_tanh ? Activation::kGeluTanh : Activation::kSilu;
        m.emit(GluOp{activation, gate, up, rows_of(outputs), width, out, quantized});
      }, "gelu_tanh"_a, "gate"_a, "up"_a, "outputs"_a, "width"_a, "out"_a, "out_quantized"_a)
      .def("layer_norm", [](Module& m, int x, int weight, int bias, float eps, bool outputs, int width, int out,
                            int quantized) {
        m.emit(LayerNormOp{x, weight, bias, eps, rows_of(outputs), width, out, quantized});
      }, "x"_a, "weight"_a, "bias"_a, "eps"_a, "outputs"_a, "width"_a, "out"_a, "out_quantized"_a)
      .def("activate", [](Module& m, const std::string& activation, int x, bool outputs, int width, int out,
                          int quantized) {
        const auto kind = named<PlainActivation>(activation, {"silu", "gelu_tanh", "gelu", "relu"});
        m.emit(ActivateOp{kind, x, rows_of(outputs), width, out, quantized});
      }, "activation"_a, "x"_a, "outputs"_a, "width"_a, "out"_a, "out_quantized"_a)
      .def("quantize", [](Module& m, int x, bool outputs, int width, int out) {
        m.emit(QuantizeOp{x, rows_of(outputs), width, out});
      }, "x"_a, "outputs"_a, "width"_a, "out"_a)
      .def("linear", [](Module& m, int x, int x_quantized, bool outputs, int in_width, int out, int out_width,
                        int residual, const std::vector<std::vector<int>>& parts) {
        LinearOp op{x, x_quantized, rows_of(outputs), in_width, out, out_width, residual, {}};
        for (const std::vector<int>& part : parts) {
          op.parts.push_back({part.at(0), part.at(1), part.at(2), part.at(3) != 0, part.at(4)});
        }
        m.emit(std::move(op));
      }, "x"_a, "x_quantized"_a, "outputs"_a, "in_width"_a, "out"_a, "out_width"_a, "residual"_a, "parts"_a)
      .def("rope", [](Module& m, int x, int heads, int head_dim, int rope, int out) {
        m.emit(RopeOp{x, heads, head_dim, rope, out});
      }, "x"_a, "heads"_a, "head_dim"_a, "rope"_a, "out"_a)
      .def("attention", [](Module& m, int q, int k, int v, int heads, int group, int layer, int rope, float scale,
                           int window, float soft_cap, int sinks, int out, bool causal) {
        m.emit(AttentionOp{q, k, v, heads, group, layer, rope, scale, window, soft_cap, sinks, out, causal});
      }, "q"_a, "k"_a, "v"_a, "heads"_a, "group"_a, "layer"_a, "rope"_a, "scale"_a, "window"_a, "soft_cap"_a,
           "sinks"_a, "out"_a, "causal"_a)
      .def("moe", [](Module& m, int x, int scores, int width, int inner, int experts, int chosen, bool normalized,
                     int activation, float alpha, float limit, float scale,
                     const std::vector<std::vector<int>>& weights, int rows, int rows_quantized, int hidden,
                     int hidden_quantized, int out) {
        if (chosen < 1 || chosen > experts) throw std::invalid_argument("a row cannot choose that many experts");
        if (activation < 0 || activation > static_cast<int>(Activation::kClamped)) {
          throw std::invalid_argument("no activation has the number " + std::to_string(activation));
        }
        const auto part = [&](std::size_t i) {
          const std::vector<int>& part = weights.at(i);
          return ExpertWeights{part.at(0), part.at(1) != 0, part.at(2)};
        };
        m.emit(MoeOp{x, scores, width, inner, experts, chosen, normalized, static_cast<Activation>(activation), alpha,
                     limit, scale, part(0), part(1), part(2), rows, rows_quantized, hidden, hidden_quantized, out});
      }, "x"_a, "scores"_a, "width"_a, "inner"_a, "experts"_a, "chosen"_a, "normalized"_a, "activation"_a, "alpha"_a,
           "limit"_a, "scale"_a, "weights"_a, "rows"_a, "rows_quantized"_a, "hidden"_a, "hidden_quantized"_a, "out"_a)
      .def("add", [](Module& m, int a, int b, bool outputs, int width, int out) {
        m.emit(AddOp{a, b, rows_of(outputs), width, out});
      }, "a"_a, "b"_a, "outputs"_a, "width"_a, "out"_a)
      .def("scale", [](Module& m, int x, float factor, bool outputs, int width, int out) {
        m.emit(ScaleOp{x, factor, rows_of(outputs), width, out});
      }, "x"_a, "factor"_a, "outputs"_a, "width"_a, "out"_a)
      .def("sigmoid_gate", [](Module& m, int x, int gate, bool outputs, int width, int out) {
        m.emit(SigmoidGateOp{x, gate, rows_of(outputs), width, out});
      }, "x"_a, "gate"_a, "outputs"_a, "width"_a, "out"_a)
      .def("soft_cap", [](Module& m, int x, float cap, bool outputs, int width, int out) {
        m.emit(SoftCapOp{x, cap, rows_of(outputs), width, out});
      }, "x"_a, "cap"_a, "outputs"_a, "width"_a, "out"_a)
      .def("select", [](Module& m, int x, int width, int out) { m.emit(SelectOp{x, width, out}); },
           "x"_a, "width"_a, "out"_a)
      .def("pool", [](Module& m, const std::string& mode, int x, int width, int out) {
        m.emit(PoolOp{named<PoolMode>(mode, {"mean", "first", "last"}), x, width, out});
      }, "mode"_a, "x"_a, "width"_a, "out"_a);
}

void bind_running(nb::class_<Module>& cls) {
  cls.def("allocate_kv", &Module::allocate_kv, "group"_a, "num_blocks"_a, "block_size"_a, "kv_format"_a)
      .def("add_adapter", &Module::add_adapter, "number"_a, "parts"_a)
      .def("drop_adapter", [](Module& m, std::int64_t number) { m.machine().drop_adapter(number); }, "number"_a)
      .def("submit", &Module::submit, "rows"_a, "sample"_a, "profile"_a = false)
      .def("stage_seconds", &Module::stage_seconds)
      .def("collect", &Module::collect)
      .def("collect_logits", &Module::collect_logits)
      .def("copy_block", &Module::copy_block, "group"_a, "source"_a, "destination"_a)
      .def("read_blocks", &Module::read_blocks, "group"_a, "blocks"_a)
      .def("write_blocks", &Module::write_blocks, "group"_a, "blocks"_a, "data"_a)
      .def("close", &Module::close)
      .def("workspace_bytes", [](Module& m, std::int32_t tokens, std::int32_t outputs) {
        return m.machine().workspace_bytes(tokens, outputs);
      }, "tokens"_a, "outputs"_a)
      .def_prop_ro("seconds", [](Module& m) { return m.machine().seconds(); })
      .def_prop_ro("progress", [](Module& m) { return m.machine().progress(); })
      .def_prop_ro("isa", [](Module& m) { return std::string(m.machine().isa()); })
      .def_prop_ro("threads", [](Module& m) { return m.machine().threads(); })
      .def_prop_ro("packed_bytes", [](Module& m) { return m.machine().weights().packed_bytes(); });
}

}  // namespace
}  // namespace tidemill

NB_MODULE(_native, m) {
  using tidemill::Module;
  m.doc() = "Native kernels and the machine that steps a lowered graph.";
  m.def("supported_isas", &tidemill::supported_isas);
  m.def("refused_isas", [] {
    nb::dict refused;
    for (const auto& [isa, reason] : tidemill::refused_isas()) refused[isa.c_str()] = reason;
    return refused;
  });
  m.def("checksum", &tidemill::checksum_of, "data"_a, "key"_a, "mapped"_a, "release"_a);
  m.def("let_go", [](std::uintptr_t address, std::size_t bytes) {
    tidemill::let_go(reinterpret_cast<const std::uint8_t*>(address), bytes);
  }, "address"_a, "bytes"_a);
  m.def("round_rows", &tidemill::round_rows_of, "data"_a, "format"_a, "columns"_a, "to"_a, "out"_a);
  m.attr("CHECKSUM_KEY") = tidemill::kChecksumKey;
  m.attr("PACKING_VERSION") = tidemill::kPackingVersion;
  m.def("measure_roof", &tidemill::roof_to_python, "isa"_a, "threads"_a, "bytes"_a, "seconds"_a);
  nb::class_<Module> machine(m, "Machine");
  machine.def(nb::init<const std::string&, int, bool, int>(), "isa"_a, "threads"_a, "materialized"_a,
              "row_variant"_a);
  tidemill::bind_building(machine);
  tidemill::bind_instructions(machine);
  tidemill::bind_running(machine);
}
