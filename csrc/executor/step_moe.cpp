// Mixture of experts: choose, gather rows by expert, gate and up, gate them, down, combine by token.
#include <algorithm>
#include <cstring>

#include "step_rows.h"

namespace tidemill {

namespace {

constexpr std::int64_t kTasks = 32;  // per product, beside one per expert

std::size_t part_stride(const MoeOp& op) { return row_stride(op.inner); }

}  // namespace

void StepRunner::execute(const MoeOp& op) {
  choose_experts(op);
  gather_rows(op);
  const std::int32_t rows = groups_.rows();
  const auto quantized = [&](std::int32_t slot, std::int32_t k) {
    return slot == kNone ? QuantizedRows{} : arena_.quantized(slot, rows, k);
  };
  float* x = arena_.floats(op.rows);
  float* hidden = arena_.floats(op.hidden);
  const std::size_t stride = row_stride(op.width);
  const ExpertProduct::Part gate_up[] = {{op.gate, 0}, {op.up, part_stride(op)}};
  multiply_experts({gate_up, x, stride, quantized(op.rows_quantized, op.width), hidden, 2 * part_stride(op)});
  gate_rows(op);
  const ExpertProduct::Part down[] = {{op.down, 0}};
  multiply_experts({down, hidden, 2 * part_stride(op), quantized(op.hidden_quantized, op.inner), x, stride});
  combine_rows(op);
}

void StepRunner::choose_experts(const MoeOp& op) {
  const float* scores = arena_.floats(op.scores);
  groups_.reset(tokens_, op.chosen);
  expert_shares_.resize(static_cast<std::size_t>(pool_.threads()) * row_stride(op.experts));
  for_rows(tokens_, op.experts, [&](std::int32_t token, int thread) {
    const float* row = scores + static_cast<std::size_t>(token) * row_stride(op.experts);
    float* all = expert_shares_.data() + static_cast<std::size_t>(thread) * row_stride(op.experts);
    std::int32_t* choices = groups_.choices(token);
    float* shares = groups_.shares(token);
    choose_best(row, op.experts, op.chosen, choices);
    kernels_.vector->softmax(row, op.experts, all);
    float total = 0.0f;
    for (std::int32_t i = 0; i < op.chosen; ++i) total += shares[i] = all[choices[i]];
    const float factor = op.normalized ? op.scale / total : op.scale;
    for (std::int32_t i = 0; i < op.chosen; ++i) shares[i] *= factor;
  });
  groups_.group(op.experts);
}

void StepRunner::gather_rows(const MoeOp& op) {
  const float* x = arena_.floats(op.x);
  float* rows = arena_.floats(op.rows);
  const std::size_t stride = row_stride(op.width);
  QuantizedRows quantized{};
  if (op.rows_quantized != kNone) quantized = arena_.quantized(op.rows_quantized, groups_.rows(), op.width);
  const std::span<const ExpertRows> panels = groups_.panels();
  for_rows(static_cast<std::int32_t>(panels.size()), kPanelRows * op.width, [&](std::int32_t index, int) {
    const ExpertRows& panel = panels[static_cast<std::size_t>(index)];
    float* first = rows + static_cast<std::size_t>(panel.begin) * stride;
    for (std::int32_t row = panel.begin; row < panel.end; ++row) {
      std::memcpy(rows + static_cast<std::size_t>(row) * stride,
                  x + static_cast<std::size_t>(groups_.token(row)) * stride,
                  sizeof(float) * static_cast<std::size_t>(op.width));
    }
    if (op.rows_quantized != kNone) kernels_.linear->quantize(first, stride, expert_view(quantized, panel), 0, quantized.k / kGroup);
  });
}

// The product takes the gate's place.
void StepRunner::gate_rows(const MoeOp& op) {
  float* hidden = arena_.floats(op.hidden);
  const std::size_t stride = 2 * part_stride(op);
  const auto glu = op.activation == Activation::kSilu ? kernels_.vector->silu_glu : kernels_.vector->gelu_tanh_glu;
  QuantizedRows quantized{};
  if (op.hidden_quantized != kNone) quantized = arena_.quantized(op.hidden_quantized, groups_.rows(), op.inner);
  const std::span<const ExpertRows> panels = groups_.panels();
  for_rows(static_cast<std::int32_t>(panels.size()), kPanelRows * op.inner, [&](std::int32_t index, int) {
    const ExpertRows& panel = panels[static_cast<std::size_t>(index)];
    float* first = hidden + static_cast<std::size_t>(panel.begin) * stride;
    for (std::int32_t i = 0; i < panel.end - panel.begin; ++i) {
      float* row = first + static_cast<std::size_t>(i) * stride;
      const float* up = row + part_stride(op);
      if (op.activation == Activation::kClamped) {
        kernels_.vector->clamped_glu(row, up, op.inner, op.alpha, op.limit, row);
      } else {
        glu(row, up, op.inner, row);
      }
    }
    if (op.hidden_quantized != kNone) kernels_.linear->quantize(first, stride, expert_view(quantized, panel), 0, quantized.k / kGroup);
  });
}

void StepRunner::combine_rows(const MoeOp& op) {
  float* rows = arena_.floats(op.rows);
  const std::size_t stride = row_stride(op.width);
  float* outs = arena_.floats(op.out);
  for_rows(tokens_, op.width * op.chosen, [&](std::int32_t token, int) {
    float* out = outs + static_cast<std::size_t>(token) * stride;
    for (std::int32_t i = 0; i < op.chosen; ++i) {
      float* row = rows + static_cast<std::size_t>(groups_.places(token)[i]) * stride;
      kernels_.vector->scale(row, groups_.shares(token)[i], op.width, i == 0 ? out : row);
      if (i > 0) kernels_.vector->add(out, row, op.width, out);
    }
  });
}

void StepRunner::multiply_experts(const ExpertProduct& product) {
  const std::span<const ExpertRows> groups = groups_.groups();
  std::int32_t tiles = 0;
  for (const ExpertProduct::Part& part : product.parts) tiles += weights_.matrix(part.weights.first).tiles();
  expert_tasks_.clear();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    // An expert with more rows is cut into more tasks.
    const std::int64_t share = kTasks * (groups[g].end - groups[g].begin) / groups_.rows() + 1;
    const auto cuts = static_cast<std::int32_t>(std::min<std::int64_t>(share, tiles));
    for (std::int32_t cut = 0; cut < cuts; ++cut) {
      expert_tasks_.push_back({groups[g], tiles * cut / cuts, tiles * (cut + 1) / cuts});
    }
  }
  const auto count = static_cast<int>(expert_tasks_.size());
  const int chunks = std::min(count, ThreadPool::kMaxChunks);
  pool_.run(chunks, [&](int chunk, int) {
    for (int i = chunk; i < count; i += chunks) multiply_expert(product, expert_tasks_[static_cast<std::size_t>(i)]);
  });
}

void StepRunner::multiply_expert(const ExpertProduct& product, const ExpertTask& task) {
  const auto row = static_cast<std::size_t>(task.rows.begin);
  std::int32_t begin = task.begin, end = task.end;
  for (const ExpertProduct::Part& part : product.parts) {
    const PackedMatrix& weight = weights_.matrix(part.weights.first + task.rows.expert);
    const std::int32_t from = std::max(begin, 0), to = std::min(end, weight.tiles());
    const float* bias = part.weights.bias == kNone ? nullptr
                                                   : weights_.vector(part.weights.bias) +
                                                         static_cast<std::size_t>(task.rows.expert) *
                                                             static_cast<std::size_t>(weight.n);
    const LinearOutput output{product.out + row * product.out_stride + part.column, product.out_stride, bias, nullptr,
                              0};
    if (from < to && part.weights.quantized) {
      kernels_.linear->linear_quantized(weight, expert_view(product.x_quantized, task.rows), from, to, output,
                                        settings_.row_variant, nullptr);
    } else if (from < to) {
      kernels_.linear->linear_float(weight, product.x + row * product.x_stride, product.x_stride,
                                    task.rows.end - task.rows.begin, from, to, output, settings_.row_variant);
    }
    begin -= weight.tiles();
    end -= weight.tiles();
  }
}

}  // namespace tidemill
