#include "plan.h"

#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace nb = nanobind;

namespace tidemill {
namespace {

// Where in the plan a value stands, for error messages.
struct Field {
  std::size_t row;
  const char* name;

  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("plan row " + std::to_string(row) + ": " + name + " " + what);
  }
};

std::int64_t integer(nb::handle value, Field field) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    field.fail("is not an integer");
  }
  const long long number = PyLong_AsLongLong(index.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    field.fail("is out of range");
  }
  return number;
}

std::int32_t small_integer(nb::handle value, Field field) {
  const std::int64_t number = integer(value, field);
  if (number < std::numeric_limits<std::int32_t>::min() || number > std::numeric_limits<std::int32_t>::max()) {
    field.fail("= " + std::to_string(number) + " is out of range");
  }
  return static_cast<std::int32_t>(number);
}

double number(nb::handle value, Field field) {
  const double result = PyFloat_AsDouble(value.ptr());
  if (result == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    field.fail("is not a number");
  }
  return result;
}

std::uint64_t bits64(nb::handle value, Field field) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    field.fail("is not an integer");
  }
  return PyLong_AsUnsignedLongLongMask(index.ptr());  // modulo 2^64
}

// Items of any sequence, without a check per item for lists and tuples.
class Items {
 public:
  Items(nb::handle value, Field field) : items_(nb::steal(PySequence_Fast(value.ptr(), ""))) {
    if (!items_.is_valid()) {
      PyErr_Clear();
      field.fail("is not a sequence");
    }
  }
  std::size_t size() const { return static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items_.ptr())); }
  nb::handle operator[](std::size_t i) const {
    return PySequence_Fast_GET_ITEM(items_.ptr(), static_cast<Py_ssize_t>(i));
  }

 private:
  nb::object items_;
};

std::vector<std::int32_t> integers(nb::handle value, Field field) {
  const Items items(value, field);
  std::vector<std::int32_t> result(items.size());
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = small_integer(items[i], field);
  return result;
}

void read_penalties(nb::handle penalties, std::size_t row, SamplingParameters& out) {
  const auto ids = integers(penalties.attr("ids"), {row, "penalties.ids"});
  const auto counts = integers(penalties.attr("output_counts"), {row, "penalties.output_counts"});
  if (ids.size() != counts.size()) {
    Field{row, "penalties.output_counts"}.fail("has another length than penalties.ids");
  }
  for (std::size_t i = 0; i < ids.size(); ++i) out.counts.push_back({ids[i], counts[i]});
}

void read_bias(nb::handle value, std::size_t row, SamplingParameters& out) {
  const Field field{row, "logit_bias"};
  const Items items(value, field);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Items pair(items[i], field);
    if (pair.size() != 2) field.fail("has an entry that is not a pair");
    out.bias.push_back({small_integer(pair[0], field), static_cast<float>(number(pair[1], field))});
  }
}

void read_masks(nb::handle value, std::size_t row, SamplingParameters& out) {
  const Field field{row, "masks"};
  const Items items(value, field);
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::vector<std::uint32_t>& mask = out.masks.emplace_back();
    if (items[i].is_none()) continue;
    if (!nb::isinstance<nb::bytes>(items[i])) field.fail("has an entry that is neither bytes nor None");
    const auto bytes = nb::borrow<nb::bytes>(items[i]);
    if (bytes.size() == 0 || bytes.size() % sizeof(std::uint32_t) != 0) field.fail("has an entry of no whole words");
    mask.resize(bytes.size() / sizeof(std::uint32_t));
    std::memcpy(mask.data(), bytes.c_str(), bytes.size());
  }
}

SamplingParameters read_options(nb::handle options, std::size_t row) {
  const auto floating = [&](const char* name) { return number(options.attr(name), {row, name}); };
  SamplingParameters out;
  out.temperature = static_cast<float>(floating("temperature"));
  out.top_k = small_integer(options.attr("top_k"), {row, "top_k"});
  out.top_p = floating("top_p");
  out.min_p = floating("min_p");
  out.repetition_penalty = static_cast<float>(floating("repetition_penalty"));
  out.presence_penalty = static_cast<float>(floating("presence_penalty"));
  out.frequency_penalty = static_cast<float>(floating("frequency_penalty"));
  out.seed = bits64(options.attr("seed"), {row, "seed"});
  out.choice = static_cast<std::uint32_t>(bits64(options.attr("choice"), {row, "choice"}));
  read_bias(options.attr("logit_bias"), row, out);
  const nb::object logprobs = options.attr("logprobs");
  if (!logprobs.is_none()) {
    out.logprobs = small_integer(logprobs, {row, "logprobs"});
    if (out.logprobs < 0) Field{row, "logprobs"}.fail("is negative");
  }
  out.targets = integers(options.attr("targets"), {row, "targets"});
  const nb::object masks = options.attr("masks");
  if (!masks.is_none()) read_masks(masks, row, out);
  const nb::object penalties = options.attr("penalties");
  if (!penalties.is_none()) read_penalties(penalties, row, out);
  if (penalties.is_none() == out.penalised()) {
    Field{row, "penalties"}.fail("must be present exactly if one of the three penalties is on");
  }
  return out;
}

StepRow read_row(nb::handle source, std::size_t row) {
  StepRow out;
  out.tokens = integers(source.attr("tokens"), {row, "tokens"});
  out.start = integer(source.attr("start"), {row, "start"});
  out.outputs = small_integer(source.attr("num_outputs"), {row, "num_outputs"});
  out.adapter = integer(source.attr("adapter"), {row, "adapter"});
  const Field field{row, "block_tables"};
  const nb::object tables = source.attr("block_tables");
  const Items items(tables, field);
  for (std::size_t i = 0; i < items.size(); ++i) out.tables.push_back(integers(items[i], field));
  const nb::object options = source.attr("options");
  out.draws = !options.is_none();
  if (out.draws) out.sampling = read_options(options, row);
  return out;
}

nb::tuple as_tuple(const nb::list& items) { return nb::tuple(items); }

nb::tuple logprobs_of(const Draw& draw) {
  nb::list top;
  for (const RankedToken& token : draw.top) top.append(nb::make_tuple(token.id, token.logprob));
  return nb::make_tuple(draw.token, draw.logprob, as_tuple(top));
}

}  // namespace

StepPlan plan_from_python(nb::handle rows) {
  const Items items(rows, {0, "rows"});
  StepPlan plan;
  plan.rows.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) plan.rows.push_back(read_row(items[i], i));
  return plan;
}

nb::list draws_to_python(const StepPlan& plan, std::span<const Draw> draws) {
  nb::list result;
  std::size_t next = 0;
  for (const StepRow& row : plan.rows) {
    nb::list tokens;
    nb::list logprobs;
    for (std::int32_t j = 0; j < row.outputs; ++j, ++next) {
      tokens.append(draws[next].token);
      if (row.sampling.logprobs >= 0) logprobs.append(logprobs_of(draws[next]));
    }
    const bool with_logprobs = row.outputs > 0 && row.sampling.logprobs >= 0;
    result.append(nb::make_tuple(as_tuple(tokens), with_logprobs ? nb::object(as_tuple(logprobs)) : nb::none()));
  }
  return result;
}

}  // namespace tidemill
