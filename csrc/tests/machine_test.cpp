// A whole machine without Python: a small program steps with the same bits on one thread and several. Run under the
// thread and address sanitizers, this covers the regions of a step, collecting from any thread, and closing.
#include "executor/machine.h"

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tests/check.h"

using namespace tidemill;

namespace {

constexpr std::int32_t kVocab = 96;
constexpr std::int32_t kHeads = 6, kKvHeads = 2, kHeadDim = 16;
constexpr std::int32_t kWidth = kHeads * kHeadDim;
constexpr std::int32_t kMerged = kWidth + 2 * kKvHeads * kHeadDim;

std::vector<float> random_floats(std::size_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<std::int32_t>(seed >> 8) % 2001 - 1000) * 2e-4f;
  }
  return values;
}

const std::uint8_t* bytes(const std::vector<float>& values) {
  return reinterpret_cast<const std::uint8_t*>(values.data());
}

// embed -> norm -> linear q|k|v -> attention with rope -> select -> linear to logits, all in float32.
class SmallMachine {
 public:
  explicit SmallMachine(int threads, AttentionForm form = AttentionForm::kTiled, const std::string& isa = "auto")
      : table_(random_floats(kVocab * kWidth, 1)), qkv_(random_floats(kMerged * kWidth, 2)),
        head_(random_floats(kVocab * kWidth, 3)) {
    machine_ = std::make_unique<Machine>(MachineSettings{isa, threads, {form, 0}});
    Machine& m = *machine_;
    const std::vector<float> ones(kWidth, 1.0f);
    const std::int32_t norm = m.weights().add_vector(ones.data(), ones.size());
    const std::int32_t table = m.weights().add_table(FileFormat::kF32, kVocab, kWidth, bytes(table_));
    const std::int32_t qkv = m.add_matrices(FileFormat::kF32, 1, kMerged, kWidth, bytes(qkv_), false);
    const std::int32_t head = m.add_matrices(FileFormat::kF32, 1, kVocab, kWidth, bytes(head_), false);
    const std::int32_t group = m.add_group({1, kKvHeads, kHeadDim, 0});
    const std::int32_t rope = m.add_rope({1.0, 0.5, 0.25, 0.125, 0.06, 0.03, 0.015, 0.007}, 1.0);
    Program& p = m.program();
    p.vocab = kVocab;
    p.logits = 4;
    p.slots = {{RowsOf::kTokens, kWidth, 0},   {RowsOf::kTokens, kWidth, 0},  {RowsOf::kTokens, kMerged, 0},
               {RowsOf::kOutputs, kWidth, 0}, {RowsOf::kOutputs, kVocab, 0}};
    p.instructions = {
        EmbedOp{table, 0, kWidth},
        NormOp{0, norm, 1e-5f, RowsOf::kTokens, kWidth, 1, 1, kNone},
        LinearOp{1, kNone, RowsOf::kTokens, kWidth, 2, kMerged, kNone, {{qkv, 0, kNone, false}}},
        AttentionOp{2, kNone, kNone, kHeads, group, 0, rope, 0.25f, 0, 0.0f, kNone, 1},
        SelectOp{1, kWidth, 3},
        LinearOp{3, kNone, RowsOf::kOutputs, kWidth, 4, kVocab, kNone, {{head, 0, kNone, false}}},
    };
    m.allocate_kv(0, 32, 16, KvFormat::kF16);
  }

  Machine& machine() { return *machine_; }

 private:
  std::vector<float> table_, qkv_, head_;
  std::unique_ptr<Machine> machine_;
};

StepRow row_of(std::int32_t tokens, std::int32_t first_block) {
  StepRow row;
  for (std::int32_t t = 0; t < tokens; ++t) row.tokens.push_back((7 * t + 3 * first_block) % kVocab);
  row.tables.emplace_back();
  for (std::int32_t b = 0; b < (tokens + 15) / 16; ++b) row.tables[0].push_back(first_block + b);
  row.outputs = 2;
  row.draws = true;
  row.sampling.temperature = 1.0f;
  row.sampling.top_p = 0.9;
  row.sampling.logprobs = 3;
  return row;
}

struct Result {
  std::vector<float> logits;
  std::vector<std::int32_t> tokens;
};

Result run(Machine& machine) {
  StepPlan plan;
  plan.rows = {row_of(70, 0), row_of(3, 6), row_of(40, 8), row_of(130, 12)};
  machine.submit(plan, true);
  machine.collect();
  Result result;
  for (std::int32_t i = 0; i < machine.result().outputs(); ++i) {
    const float* logits = machine.result().logits(i);
    result.logits.insert(result.logits.end(), logits, logits + kVocab);
  }
  for (const Draw& draw : machine.result().draws()) result.tokens.push_back(draw.token);
  return result;
}

bool same(const Result& a, const Result& b) {
  return a.tokens == b.tokens && a.logits.size() == b.logits.size() &&
         std::memcmp(a.logits.data(), b.logits.data(), sizeof(float) * a.logits.size()) == 0;
}

void threads_change_nothing(AttentionForm form, const std::string& isa) {
  SmallMachine one(1, form, isa);
  const Result expected = run(one.machine());
  CHECK(expected.tokens.size() == 8 && expected.logits.size() == 8 * kVocab);
  for (const int threads : {2, 3}) {
    SmallMachine many(threads, form, isa);
    for (int repeat = 0; repeat < 5; ++repeat) {
      CHECK_CASE(same(expected, run(many.machine())), "%s, %d threads, step %d", isa.c_str(), threads, repeat);
    }
  }
}

// One token over 490 to 509: its segments are parts of tasks, merged by whichever thread ends the last.
void one_token_over_a_long_context(const std::string& isa) {
  const auto decode = [&](int threads) {
    SmallMachine small(threads, AttentionForm::kTiled, isa);
    StepPlan plan;
    plan.rows = {row_of(490, 0)};
    plan.rows[0].tables[0].push_back(31);
    std::vector<float> logits;
    for (std::int32_t step = 0; step < 20; ++step) {
      if (step > 0) plan.rows[0].start += plan.rows[0].size();
      if (step > 0) plan.rows[0].tokens = {step};
      plan.rows[0].outputs = 1;
      small.machine().submit(plan, true);
      small.machine().collect();
      const float* row = small.machine().result().logits(0);
      logits.insert(logits.end(), row, row + kVocab);
    }
    return logits;
  };
  const std::vector<float> expected = decode(1);
  for (const int threads : {2, 5}) CHECK_CASE(decode(threads) == expected, "%s, %d threads", isa.c_str(), threads);
}

// Whoever collects computes in the pool's floating-point mode, and gets his own back.
void a_collectors_float_mode_changes_nothing() {
  SmallMachine small(2);
  const Result expected = run(small.machine());
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  const unsigned towards_zero = before | 0x6000;
  _mm_setcsr(towards_zero);
  CHECK(same(expected, run(small.machine())));
  CHECK(_mm_getcsr() == towards_zero);
  _mm_setcsr(before);
#else
  CHECK(same(expected, run(small.machine())));
#endif
}

// From a thread that did not submit, and one after the other from several.
void any_thread_may_collect() {
  SmallMachine small(2);
  const Result expected = run(small.machine());
  for (int repeat = 0; repeat < 3; ++repeat) {
    Result found;
    std::thread([&] { found = run(small.machine()); }).join();
    CHECK_CASE(same(expected, found), "thread %d", repeat);
  }
}

void closing_drops_the_step_in_flight() {
  SmallMachine small(2);
  StepPlan plan;
  plan.rows = {row_of(200, 0)};
  small.machine().submit(plan, true);
  small.machine().close();
  small.machine().close();
  CHECK(!small.machine().in_flight());
}

}  // namespace

int main() {
  for (const std::string& isa : supported_isas()) {
    threads_change_nothing(AttentionForm::kTiled, isa);
    threads_change_nothing(AttentionForm::kMaterialized, isa);
    one_token_over_a_long_context(isa);
  }
  a_collectors_float_mode_changes_nothing();
  any_thread_may_collect();
  closing_drops_the_step_in_flight();
  return tidemill::test::finish("machine");
}
