#include "step.h"

#include <algorithm>
#include <cstring>

#include "../kernels/embed.h"
#include "step_rows.h"

namespace tidemill {

namespace {

constexpr int kMaxDrawChunks = 4096;
constexpr std::size_t kExpandedBytes = kHugePage;  // of each thread: a pass of linear_share.h

// Quantised rows [begin, end) as rows of their own: panels before them are full.
QuantizedRows rows_view(const QuantizedRows& rows, std::int32_t begin, std::int32_t end) {
  const auto first = static_cast<std::size_t>(begin);
  const auto k = static_cast<std::size_t>(rows.k);
  return {std::min(end, rows.rows) - begin, rows.k, rows.values + first * k,
          rows.scales + first * (k / kGroup) * kGroupScales};
}

QuantizedRows panel_view(const QuantizedRows& rows, std::int32_t panel) {
  return rows_view(rows, panel * kPanelRows, (panel + 1) * kPanelRows);
}

}  // namespace

StepRunner::StepRunner(Kernels kernels, ThreadPool& pool, StepSettings settings, const Program& program,
                       const Weights& weights, std::vector<RopeTable>& ropes, const std::vector<KvPool>& kv,
                       const Adapters& adapters)
    : kernels_(kernels), pool_(pool), settings_(settings), program_(program), weights_(weights), ropes_(ropes),
      kv_(kv), adapters_(adapters), profile_(pool) {
  const std::size_t panel = kPanelRows * row_stride(program.panel_width());
  scratch_floats_ = align_up(std::max(panel, attention_scratch_floats(program.largest_head_dim())), 64);
  scratch_ = PagedMemory(sizeof(float) * scratch_floats_ * static_cast<std::size_t>(pool.threads()));
  expanded_memory_ = PagedMemory(kExpandedBytes * static_cast<std::size_t>(pool.threads()));
  for (int i = 0; i < pool.threads(); ++i) {
    samplers_.emplace_back(kernels.vector->sampler, program.vocab);
    expanded_.emplace_back(expanded_memory_.data() + kExpandedBytes * static_cast<std::size_t>(i), kExpandedBytes);
  }
  plan_ahead();
}

// While a linear layer runs and until the next one does, threads without work fetch the next one's weights, then those of
// the one after it; after the last one those that the next step begins with.
void StepRunner::plan_ahead() {
  std::vector<std::size_t> layers;
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    if (std::holds_alternative<LinearOp>(program_.instructions[i])) layers.push_back(i);
  }
  ahead_.assign(program_.instructions.size(), nullptr);
  for (std::size_t at = 0; at < layers.size(); ++at) {
    std::vector<std::vector<ByteSpan>> of_thread(static_cast<std::size_t>(pool_.threads()));
    for (std::size_t next = 1; next <= 2; ++next) {
      const auto& op = std::get<LinearOp>(program_.instructions[layers[(at + next) % layers.size()]]);
      const LinearShare share(op, weights_, 1, pool_.threads());
      for (int thread = 0; thread < pool_.threads(); ++thread) {
        std::vector<ByteSpan>& spans = of_thread[static_cast<std::size_t>(thread)];
        for (const ByteSpan& span : share.lane(thread)) spans.push_back(span);
      }
    }
    ahead_[layers[at]] = pool_.keep(Ahead(std::move(of_thread)));
  }
}

const float* StepRunner::logits(std::int32_t row) const {
  return arena_.floats(program_.logits) + static_cast<std::size_t>(row) * row_stride(program_.result_width());
}

void StepRunner::run(const StepPlan& plan, bool sample, bool profile) {
  const std::size_t count = program_.instructions.size();
  if (profile) {
    profile_.start(count);
  } else if (profile_.on()) {
    profile_.stop();  // the step before threw
  }
  prepare(plan);
  if (profile) profile_.mark(2 * count);
  for (instruction_ = 0; instruction_ < count; ++instruction_) {
    std::visit([this](const auto& op) { execute(op); }, program_.instructions[instruction_]);
    progress_.fetch_add(1, std::memory_order_relaxed);
    if (profile) profile_.mark(instruction_);
  }
  if (sample) draw(plan);
  if (profile) {
    profile_.mark(2 * count + 1);
    profile_.stop();
  }
}

void StepRunner::prepare(const StepPlan& plan) {
  plan_ = &plan;
  tokens_ = plan.tokens();
  outputs_ = plan.outputs();
  arena_.reserve(program_.slots, tokens_, outputs_);
  token_ids_.clear();
  positions_.clear();
  selected_.clear();
  output_of_.clear();
  lora_tokens_.clear();
  lora_outputs_.clear();
  std::int64_t longest = 0;
  for (std::size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    if (const Adapter* adapter = adapters_.find(row.adapter)) {
      lora_tokens_.add(adapter, static_cast<std::int32_t>(token_ids_.size()), row.size());
      lora_outputs_.add(adapter, static_cast<std::int32_t>(selected_.size()), row.outputs);
    }
    for (std::int32_t t = 0; t < row.size(); ++t) {
      if (t >= row.size() - row.outputs) {
        selected_.push_back(static_cast<std::int32_t>(token_ids_.size()));
        output_of_.push_back({static_cast<std::int32_t>(r), t - (row.size() - row.outputs)});
      }
      token_ids_.push_back(row.tokens[static_cast<std::size_t>(t)]);
      positions_.push_back(static_cast<std::int32_t>(row.start + t));
    }
    longest = std::max(longest, row.start + row.size());
  }
  lora_tokens_.group();
  lora_outputs_.group();
  for (RopeTable& rope : ropes_) rope.grow(static_cast<std::int32_t>(longest));
  for (TaskList& list : task_lists_) list.rows.clear();
  if (draws_.size() < static_cast<std::size_t>(outputs_)) draws_.resize(static_cast<std::size_t>(outputs_));
}

// compute(row, destination) for each row, into float rows, quantised rows, or both. For quantised rows alone the floats
// of one panel stay in a thread's scratch.
template <class Compute>
void StepRunner::emit_rows(RowsOf rows, std::int32_t width, std::int32_t out, std::int32_t out_quantized,
                           Compute compute) {
  const std::int32_t count = rows_of(rows);
  const std::size_t stride = row_stride(width);
  float* floats = out == kNone ? nullptr : arena_.floats(out);
  if (out_quantized == kNone) {
    for_rows(count, width, [&](std::int32_t row, int) { compute(row, floats + static_cast<std::size_t>(row) * stride); });
    return;
  }
  const QuantizedRows quantized = arena_.quantized(out_quantized, count, width);
  for_rows((count + kPanelRows - 1) / kPanelRows, kPanelRows * width, [&](std::int32_t panel, int thread) {
    const std::int32_t first = panel * kPanelRows;
    const QuantizedRows view = panel_view(quantized, panel);
    float* destination = floats == nullptr ? scratch(thread) : floats + static_cast<std::size_t>(first) * stride;
    for (std::int32_t i = 0; i < view.rows; ++i) compute(first + i, destination + static_cast<std::size_t>(i) * stride);
    kernels_.linear->quantize(destination, stride, view, 0, width / kGroup);
  });
}

void StepRunner::execute(const EmbedOp& op) {
  const RowTable& table = weights_.table(op.table);
  float* out = arena_.floats(op.out);
  const std::int32_t* by = op.by == EmbedBy::kToken      ? token_ids_.data()
                           : op.by == EmbedBy::kPosition ? positions_.data()
                                                         : nullptr;
  for_rows(tokens_, op.width, [&](std::int32_t row, int) {
    const auto id = static_cast<std::size_t>((by == nullptr ? 0 : by[row]) + op.offset);
    dequantize_row(table.format, table.data + id * table.row_bytes, op.width,
                   out + static_cast<std::size_t>(row) * row_stride(op.width));
  });
}

void StepRunner::execute(const NormOp& op) {
  const float* x = arena_.floats(op.x);
  const float* weight = weights_.vector(op.weight);
  const std::size_t stride = row_stride(op.width);
  const std::int32_t part = op.width / op.heads;
  emit_rows(op.rows, op.width, op.out, op.out_quantized, [&](std::int32_t row, float* out) {
    const float* from = x + static_cast<std::size_t>(row) * stride;
    for (std::int32_t i = 0; i < op.width; i += part) kernels_.vector->rms_norm(from + i, weight, op.eps, part, out + i);
  });
}

void StepRunner::execute(const LayerNormOp& op) {
  const float* x = arena_.floats(op.x);
  const float* weight = weights_.vector(op.weight);
  const float* bias = weights_.vector(op.bias);
  emit_rows(op.rows, op.width, op.out, op.out_quantized, [&](std::int32_t row, float* out) {
    kernels_.vector->layer_norm(x + static_cast<std::size_t>(row) * row_stride(op.width), weight, bias, op.eps, op.width,
                                out);
  });
}

void StepRunner::execute(const ActivateOp& op) {
  const float* x = arena_.floats(op.x);
  const auto activate = kernels_.vector->activate[static_cast<int>(op.activation)];
  emit_rows(op.rows, op.width, op.out, op.out_quantized, [&](std::int32_t row, float* out) {
    activate(x + static_cast<std::size_t>(row) * row_stride(op.width), op.width, out);
  });
}

void StepRunner::execute(const GluOp& op) {
  const bool merged = op.up == kNone;
  const float* gate = arena_.floats(op.gate);
  const float* up = merged ? gate + op.width : arena_.floats(op.up);
  const std::size_t stride = row_stride(merged ? 2 * op.width : op.width);
  const auto glu =
      op.activation == Activation::kSilu ? kernels_.vector->silu_glu : kernels_.vector->gelu_tanh_glu;
  emit_rows(op.rows, op.width, op.out, op.out_quantized, [&](std::int32_t row, float* out) {
    const std::size_t at = static_cast<std::size_t>(row) * stride;
    glu(gate + at, up + at, op.width, out);
  });
}

void StepRunner::execute(const QuantizeOp& op) {
  const float* x = arena_.floats(op.x);
  const std::size_t stride = row_stride(op.width);
  const std::int32_t rows = rows_of(op.rows);
  const QuantizedRows out = arena_.quantized(op.out, rows, op.width);
  for_rows((rows + kPanelRows - 1) / kPanelRows, kPanelRows * op.width, [&](std::int32_t panel, int) {
    kernels_.linear->quantize(x + static_cast<std::size_t>(panel * kPanelRows) * stride, stride, panel_view(out, panel),
                              0, op.width / kGroup);
  });
}

// The chunk's tiles are those of the part.
void StepRunner::multiply(const LinearOp& op, const LinearPart& part, const LinearChunk& chunk, ExpandedTiles* kept) {
  const PackedMatrix& weight = weights_.matrix(part.matrix);
  const std::size_t stride = row_stride(op.out_width);
  const auto first = static_cast<std::size_t>(chunk.row_begin);
  const auto at = [&](std::int32_t slot) { return arena_.floats(slot) + first * stride + part.column; };
  const LinearOutput output{at(op.out), stride, part.bias == kNone ? nullptr : weights_.vector(part.bias),
                            op.residual == kNone ? nullptr : at(op.residual), stride};
  if (part.quantized) {
    const QuantizedRows all = arena_.quantized(op.x_quantized, rows_of(op.rows), op.in_width);
    kernels_.linear->linear_quantized(weight, rows_view(all, chunk.row_begin, chunk.row_end), chunk.tile_begin,
                                      chunk.tile_end, output, settings_.row_variant, kept);
  } else {
    const std::size_t x_stride = row_stride(op.in_width);
    kernels_.linear->linear_float(weight, arena_.floats(op.x) + first * x_stride, x_stride,
                                  chunk.row_end - chunk.row_begin, chunk.tile_begin, chunk.tile_end, output,
                                  settings_.row_variant);
  }
}

void StepRunner::execute(const LinearOp& op) {
  const std::int32_t rows = rows_of(op.rows);
  if (rows == 0) return;
  const LinearShare share(op, weights_, rows, pool_.threads());
  pool_.set_ahead(ahead_[instruction_]);
  const std::uint64_t use = uses_;
  uses_ += static_cast<std::uint64_t>(share.passes());
  pool_.run(share.chunks(), [&](int index, int thread) {
    const LinearChunk chunk = share.chunk(index);
    ExpandedTiles* kept = share.by_rows() ? &expanded_[static_cast<std::size_t>(thread)] : nullptr;
    if (kept != nullptr) kept->begin(use + 1 + static_cast<std::uint64_t>(chunk.pass));
    share.for_parts(chunk.tile_begin, chunk.tile_end, [&](const LinearPart& part, std::int32_t begin, std::int32_t end) {
      multiply(op, part, {chunk.row_begin, chunk.row_end, begin, end, chunk.pass}, kept);
    });
  });
  add_low_rank(op);
}

void StepRunner::execute(const RopeOp& op) {
  const float* x = arena_.floats(op.x);
  float* out = arena_.floats(op.out);
  const RopeView rope = ropes_[static_cast<std::size_t>(op.rope)].view();
  const std::int32_t width = op.heads * op.head_dim;
  for_rows(tokens_, width, [&](std::int32_t row, int) {
    const std::size_t at = static_cast<std::size_t>(row) * row_stride(width);
    const auto angle =
        static_cast<std::size_t>(positions_[static_cast<std::size_t>(row)]) * static_cast<std::size_t>(rope.half);
    for (std::int32_t d = 0; d < width; d += op.head_dim) {
      kernels_.vector->rope(x + at + d, op.head_dim, rope.cos + angle, rope.sin + angle, rope.half, out + at + d);
    }
  });
}

void StepRunner::execute(const AddOp& op) {
  const float* a = arena_.floats(op.a);
  const float* b = arena_.floats(op.b);
  emit_rows(op.rows, op.width, op.out, kNone, [&](std::int32_t row, float* out) {
    const std::size_t at = static_cast<std::size_t>(row) * row_stride(op.width);
    kernels_.vector->add(a + at, b + at, op.width, out);
  });
}

void StepRunner::execute(const ScaleOp& op) {
  const float* x = arena_.floats(op.x);
  emit_rows(op.rows, op.width, op.out, kNone, [&](std::int32_t row, float* out) {
    kernels_.vector->scale(x + static_cast<std::size_t>(row) * row_stride(op.width), op.factor, op.width, out);
  });
}

void StepRunner::execute(const SigmoidGateOp& op) {
  const float* x = arena_.floats(op.x);
  const float* gate = arena_.floats(op.gate);
  emit_rows(op.rows, op.width, op.out, kNone, [&](std::int32_t row, float* out) {
    const auto index = static_cast<std::size_t>(row);
    kernels_.vector->sigmoid_gate(x + index * row_stride(op.width), gate[index * row_stride(1)], op.width, out);
  });
}

void StepRunner::execute(const SoftCapOp& op) {
  const float* x = arena_.floats(op.x);
  emit_rows(op.rows, op.width, op.out, kNone, [&](std::int32_t row, float* out) {
    kernels_.vector->soft_cap(x + static_cast<std::size_t>(row) * row_stride(op.width), op.cap, op.width, out);
  });
}

void StepRunner::execute(const SelectOp& op) {
  const float* x = arena_.floats(op.x);
  const std::size_t stride = row_stride(op.width);
  emit_rows(RowsOf::kOutputs, op.width, op.out, kNone, [&](std::int32_t row, float* out) {
    const auto token = static_cast<std::size_t>(selected_[static_cast<std::size_t>(row)]);
    std::memcpy(out, x + token * stride, sizeof(float) * static_cast<std::size_t>(op.width));
  });
}

// A mean is a sum in the order of the tokens, then a product: nothing depends on what else is in the step.
void StepRunner::execute(const PoolOp& op) {
  const float* x = arena_.floats(op.x);
  const std::size_t stride = row_stride(op.width);
  emit_rows(RowsOf::kOutputs, op.width, op.out, kNone, [&](std::int32_t output, float* out) {
    const auto last = selected_[static_cast<std::size_t>(output)];
    const StepRow& row = plan_->rows[static_cast<std::size_t>(output_of_[static_cast<std::size_t>(output)].row)];
    const std::int32_t first = last + 1 - row.size();
    const auto from = [&](std::int32_t token) { return x + static_cast<std::size_t>(token) * stride; };
    std::memcpy(out, from(op.mode == PoolMode::kLast ? last : first), sizeof(float) * static_cast<std::size_t>(op.width));
    if (op.mode != PoolMode::kMean) return;
    for (std::int32_t token = first + 1; token <= last; ++token) {
      kernels_.vector->add(out, from(token), op.width, out);
    }
    kernels_.vector->scale(out, 1.0f / static_cast<float>(row.size()), op.width, out);
  });
}

void StepRunner::draw(const StepPlan& plan) {
  const int chunks = std::min(outputs_, kMaxDrawChunks);
  pool_.run(chunks, [&](int chunk, int thread) {
    for (std::int32_t output = chunk; output < outputs_; output += chunks) draw(plan, output, thread);
  });
}

void StepRunner::draw(const StepPlan& plan, std::int32_t output, int thread) {
  const auto index = static_cast<std::size_t>(output);
  const OutputOf of = output_of_[index];
  const StepRow& row = plan.rows[static_cast<std::size_t>(of.row)];
  const SamplingParameters& sampling = row.sampling;
  Sampler& sampler = samplers_[static_cast<std::size_t>(thread)];
  const auto place = static_cast<std::size_t>(of.index);
  const std::size_t scored = sampling.targets.size();
  if (place < scored) {
    sampler.score(logits(output), sampling.targets[place], std::max(sampling.logprobs, 0), draws_[index]);
    return;
  }
  // The tokens after the first position that is drawn from, up to this one, are proposals taken as accepted.
  const auto first = static_cast<std::size_t>(row.size() - row.outputs) + scored + 1;
  const std::span<const std::int32_t> proposals(row.tokens.data() + first, place - scored);
  const std::int64_t position = row.start + row.size() - row.outputs + of.index + 1;
  sampler.draw(logits(output), sampling, proposals, position, sampling.mask(place), draws_[index]);
}

}  // namespace tidemill
