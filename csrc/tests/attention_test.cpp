// Attention against a plain softmax in double, and against itself however its work is cut: by queries, tokens, segments.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "executor/isa.h"
#include "executor/kv_pool.h"
#include "kernels/half.h"
#include "tests/check.h"

using namespace tidemill;

namespace {

struct Shape {
  std::int32_t kv_heads;
  std::int32_t group;
  std::int32_t head_dim;
  std::int32_t context;
  std::int32_t queries;  // the last tokens of the context
  std::int32_t window = 0;
  float soft_cap = 0.0f;
  bool sinks = false;
  bool causal = true;
  float scale = 0.25f;
  double tolerance = 2e-6;

  std::int32_t heads() const { return kv_heads * group; }
  std::int32_t start() const { return context - queries; }
};

std::size_t size(std::int32_t a, std::int32_t b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); }

std::vector<float> noise(std::size_t count, std::uint64_t seed, float scale) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    value = scale * (static_cast<float>(seed >> 40) / static_cast<float>(1 << 23) - 1.0f);
  }
  return values;
}

// How the work is cut.
struct Cut {
  std::int32_t queries = kTaskQueries;  // per task
  std::int32_t segments = 0;            // per part of a task, which then run last first; 0: no parts
  bool tokens = false;                  // a sequence of its own for each token
};

// One sequence, its blocks back to front in the pool; slots that nobody wrote hold NaN.
class Sequence {
 public:
  Sequence(const Shape& shape, const VectorKernels& kernels, KvFormat format, std::int32_t block_size)
      : shape_(shape),
        kernels_(kernels.attention[static_cast<int>(format)]),
        format_(format),
        pool_({1, shape.kv_heads, shape.head_dim, shape.window}, (shape.context + block_size - 1) / block_size, block_size,
              format),
        q_(noise(size(shape.context, shape.heads() * shape.head_dim), 1, 2.0f)),
        k_(noise(size(shape.context, shape.kv_heads * shape.head_dim), 2, 1.0f)),
        v_(noise(size(shape.context, shape.kv_heads * shape.head_dim), 3, 1.0f)),
        sinks_(noise(static_cast<std::size_t>(shape.heads()), 4, 3.0f)) {
    for (std::int32_t i = pool_.num_blocks(); i-- > 0;) table_.push_back(i);
    std::memset(pool_.layer(0).base, 0xff, pool_.block_bytes() * table_.size());
    AttentionCall call = call_into(nullptr);
    kernels_.write(call, {0, shape.context, 0, table_.data(), 0}, 0, shape.context);
  }

  std::vector<float> attend(const Cut& cut) const {
    std::vector<float> out(q_.size());
    AttentionCall call = call_into(out.data());
    std::vector<AttentionRow> rows;
    for (std::int32_t t = 0; t < (cut.tokens ? shape_.queries : 1); ++t) {
      const std::int32_t first = shape_.start() + t;
      rows.push_back({first, cut.tokens ? 1 : shape_.queries, first, table_.data(), 0});
    }
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::int32_t head = 0; head < shape_.kv_heads; ++head) {
        attend_row(call, rows, static_cast<std::int32_t>(r), head, cut);
      }
    }
    out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(size(shape_.start(), row_width())));
    return out;
  }

  double largest_error(const std::vector<float>& found) const {
    const std::vector<double> k = all_stored(k_), v = all_stored(v_);
    double worst = 0.0;
    for (std::int32_t t = 0; t < shape_.queries; ++t) {
      for (std::int32_t head = 0; head < shape_.heads(); ++head) {
        const std::vector<double> expected = plain(shape_.start() + t, head, k, v);
        const float* one = found.data() + size(t, row_width()) + size(head, shape_.head_dim);
        for (std::size_t d = 0; d < expected.size(); ++d) worst = std::max(worst, std::abs(one[d] - expected[d]));
        for (std::size_t d = 0; d < expected.size(); ++d) worst = std::isfinite(one[d]) ? worst : 1e9;
      }
    }
    return worst;
  }

 private:
  std::int32_t row_width() const { return shape_.heads() * shape_.head_dim; }

  AttentionCall call_into(float* out) const {
    AttentionCall call{};
    call.q = q_.data();
    call.k = k_.data();
    call.v = v_.data();
    call.q_stride = call.out_stride = size(1, row_width());
    call.k_stride = call.v_stride = size(shape_.kv_heads, shape_.head_dim);
    call.out = out;
    call.heads = shape_.heads();
    call.scale = shape_.scale;
    call.soft_cap = shape_.soft_cap;
    call.window = shape_.window;
    call.sinks = shape_.sinks ? sinks_.data() : nullptr;
    call.causal = shape_.causal;
    call.kv = pool_.layer(0);
    return call;
  }

  void attend_row(AttentionCall& call, const std::vector<AttentionRow>& rows, std::int32_t r, std::int32_t head,
                  const Cut& cut) const {
    const AttentionRow& row = rows[static_cast<std::size_t>(r)];
    std::vector<float> scratch(attention_scratch_floats(shape_.head_dim));
    const std::int32_t queries = row.tokens * shape_.group;
    for (std::int32_t begin = 0; begin < queries; begin += cut.queries) {
      const std::int32_t end = std::min(begin + cut.queries, queries);
      const std::int32_t first = call.first_read(row.start + begin / shape_.group) / kSegmentTokens;
      const std::int32_t last = call.last_read(row, row.start + (end - 1) / shape_.group) / kSegmentTokens;
      AttentionTask task{r, head, begin, end, first, last + 1};
      if (cut.segments == 0) {
        kernels_.attend(call, rows.data(), task, &task, scratch.data());
        continue;
      }
      task.first_kept = first;
      const std::size_t state = attention_state_floats(end - begin, call.kv.padded_dim());
      std::vector<float> states(state * static_cast<std::size_t>(last + 1 - first) + 16, std::nanf(""));
      call.states = states.data() + (64 - reinterpret_cast<std::uintptr_t>(states.data()) % 64) % 64 / 4;
      for (std::int32_t at = last + 1; at > first; at -= cut.segments) {
        AttentionTask part = task;
        part.first_segment = std::max(at - cut.segments, first);
        part.last_segment = at;
        kernels_.attend(call, rows.data(), part, nullptr, scratch.data());
      }
      kernels_.merge(call, rows.data(), task, scratch.data());
    }
  }

  // Numbers [begin, begin + count) of a head, which share a scale, as the format keeps them, by its own definition.
  void store_group(const float* begin, std::int32_t count, double* out) const {
    const auto magnitude_less = [](float a, float b) { return std::abs(a) < std::abs(b); };
    const float largest = *std::max_element(begin, begin + count, magnitude_less);
    const float step = format_ == KvFormat::kQ8 ? std::abs(largest) / 127.0f : largest / -8.0f;
    const double kept_step = half_to_float(float_to_half(step));
    for (std::int32_t i = 0; i < count; ++i) {
      const float scaled = begin[i] * (step == 0.0f ? 0.0f : 1.0f / step);
      out[i] = kept_step * (format_ == KvFormat::kQ8 ? std::round(scaled) : std::min(std::trunc(scaled + 8.5f), 15.0f) - 8.0f);
    }
  }

  std::vector<double> all_stored(const std::vector<float>& values) const {
    std::vector<double> out(values.begin(), values.end());
    if (format_ == KvFormat::kF16) {
      for (double& value : out) value = half_to_float(float_to_half(static_cast<float>(value)));
    }
    if (format_ == KvFormat::kF16 || format_ == KvFormat::kF32) return out;
    for (std::size_t head = 0; head < values.size(); head += static_cast<std::size_t>(shape_.head_dim)) {
      for (std::int32_t d = 0; d < shape_.head_dim; d += kKvGroup) {
        const std::size_t at = head + static_cast<std::size_t>(d);
        store_group(&values[at], std::min(kKvGroup, shape_.head_dim - d), &out[at]);
      }
    }
    return out;
  }

  // The definition.
  std::vector<double> plain(std::int32_t position, std::int32_t head, const std::vector<double>& k, const std::vector<double>& v) const {
    const std::int32_t last = shape_.causal ? position : shape_.context - 1;
    const std::int32_t first = shape_.window == 0 ? 0 : std::max(0, position - shape_.window + 1);
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    const float* q = q_.data() + size(position, row_width()) + size(head, shape_.head_dim);
    const auto at = [&](std::int32_t t) { return size(t * shape_.kv_heads + head / shape_.group, shape_.head_dim); };
    std::vector<double> scores;
    for (std::int32_t t = first; t <= last; ++t) {
      double score = 0.0;
      for (std::size_t d = 0; d < dim; ++d) score += double{shape_.scale} * q[d] * k[at(t) + d];
      scores.push_back(shape_.soft_cap == 0.0f ? score : shape_.soft_cap * std::tanh(score / shape_.soft_cap));
    }
    const double sink = sinks_[static_cast<std::size_t>(head)];
    double largest = shape_.sinks ? sink : -INFINITY;
    for (const double score : scores) largest = std::max(largest, score);
    double total = shape_.sinks ? std::exp(sink - largest) : 0.0;
    std::vector<double> out(dim);
    for (std::int32_t t = first; t <= last; ++t) {
      const double weight = std::exp(scores[static_cast<std::size_t>(t - first)] - largest);
      total += weight;
      for (std::size_t d = 0; d < dim; ++d) out[d] += weight * v[at(t) + d];
    }
    for (double& value : out) value /= total;
    return out;
  }

  Shape shape_;
  AttentionKernels kernels_;
  KvFormat format_;
  KvPool pool_;
  std::vector<float> q_, k_, v_, sinks_;
  std::vector<std::int32_t> table_;
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), sizeof(float) * a.size()) == 0;
}

// Heads of whole vectors and not, groups that fill a panel and not, contexts that end anywhere.
const Shape kShapes[] = {
    {1, 3, 64, 530, 70},
    {2, 1, 20, 300, 300},
    {1, 7, 24, 769, 9},
    {1, 6, 80, 515, 21},
    {2, 2, 16, 700, 40, 300},
    {1, 4, 40, 600, 33, 7, 2.0f},
    {1, 3, 32, 513, 20, 0, 0.0f, true},
    {1, 2, 24, 700, 30, 260, 1.5f, true},
    {1, 2, 16, 280, 280, 0, 0.0f, false, false},
    {1, 3, 24, 530, 70, 90, 0.0f, false, true, 8.0f, 5e-5},  // most weights are too small for a float
};

void one_shape(const Shape& shape, const std::string& isa, KvFormat format) {
  const VectorKernels& kernels = *select_kernels(isa).vector;
  const auto name = [&](const char* what) {
    return isa + " dim " + std::to_string(shape.head_dim) + " context " + std::to_string(shape.context) + " " + what;
  };
  const std::vector<float> whole = Sequence(shape, kernels, format, 16).attend({});
  const double error = Sequence(shape, kernels, format, 16).largest_error(whole);
  CHECK_CASE(error < shape.tolerance, "%s: off by %g", name("").c_str(), error);
  for (const std::int32_t block_size : {16, 32, 64}) {
    const Sequence sequence(shape, kernels, format, block_size);
    CHECK_CASE(same(whole, sequence.attend({kTaskQueries, 1})), "%s", name("split into single segments").c_str());
    CHECK_CASE(same(whole, sequence.attend({24, 2})), "%s", name("split into two segments, 24 queries").c_str());
    CHECK_CASE(same(whole, sequence.attend({6, 0})), "%s", name("six queries at a time").c_str());
    if (!shape.causal) continue;  // its sequences are whole
    CHECK_CASE(same(whole, sequence.attend({kTaskQueries, 0, true})), "%s", name("token by token").c_str());
    CHECK_CASE(same(whole, sequence.attend({kTaskQueries, 1, true})), "%s", name("token by token, split").c_str());
  }
}

}  // namespace

int main() {
  for (const std::string& isa : supported_isas()) {
    for (const Shape& shape : kShapes) {
      for (const KvFormat format : {KvFormat::kF16, KvFormat::kF32, KvFormat::kQ8, KvFormat::kQ4}) {
        one_shape(shape, isa, format);
      }
    }
  }
  return test::finish("attention");
}
