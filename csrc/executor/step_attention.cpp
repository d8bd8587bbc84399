// The attention part of a step: tasks, KV writes, and the two forms.
#include <algorithm>

#include "step.h"

namespace tidemill {

namespace {

constexpr std::int32_t kMaxSplitQueries = 4 * kPanelQueries;  // more queries: what they keep would not be small
constexpr std::size_t kLineFloats = 64 / sizeof(float);

std::int32_t round_up(std::int32_t value, std::int32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

float* aligned_line(float* p) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(p) / sizeof(float) % kLineFloats;
  return p + (kLineFloats - past) % kLineFloats;
}

// Positions that a task's last query reads of its segments, times queries.
std::int64_t task_cost(const AttentionCall& call, const AttentionRow& row, const AttentionTask& task) {
  const std::int32_t position = row.start + (task.end - 1) / call.group();
  const std::int32_t begin = std::max(call.first_read(position), task.first_segment * kSegmentTokens);
  const std::int32_t end = std::min(call.last_read(row, position) + 1, task.last_segment * kSegmentTokens);
  return std::int64_t{end - begin} * (task.end - task.begin);
}

}  // namespace

void StepRunner::execute(const AttentionOp& op) {
  AttentionCall call = attention_call(op);
  TaskList& list = tasks_for(op, call);
  const KvPool& pool = kv_[static_cast<std::size_t>(op.group)];
  const AttentionKernels& kernels = kernels_.vector->attention[static_cast<int>(pool.format())];
  write_kv(call, kernels, list);
  if (profile_.on()) profile_.mark(program_.instructions.size() + instruction_);
  if (settings_.attention == AttentionForm::kMaterialized) {
    if (scores_.size() < list.score_floats) {
      scores_ = std::vector<float>();  // give back first, so that both are never held at once
      scores_.resize(list.score_floats);
    }
    call.scores = scores_.data();
  }
  if (states_.size() < list.state_floats + kLineFloats) states_.resize(list.state_floats + kLineFloats);
  call.states = aligned_line(states_.data());
  attend(call, kernels, list);
}

AttentionCall StepRunner::attention_call(const AttentionOp& op) const {
  const KvPool& pool = kv_[static_cast<std::size_t>(op.group)];
  const KvLayer layer = pool.layer(op.layer);
  const std::int32_t q_width = op.heads * layer.head_dim;
  const std::int32_t kv_width = layer.kv_heads * layer.head_dim;
  AttentionCall call{};
  call.q = arena_.floats(op.q);
  if (op.k == kNone) {
    call.k = call.q + q_width;
    call.v = call.k + kv_width;
    call.q_stride = call.k_stride = call.v_stride = row_stride(q_width + 2 * kv_width);
  } else {
    call.k = arena_.floats(op.k);
    call.v = arena_.floats(op.v);
    call.q_stride = row_stride(q_width);
    call.k_stride = call.v_stride = row_stride(kv_width);
  }
  call.out = arena_.floats(op.out);
  call.out_stride = row_stride(q_width);
  call.heads = op.heads;
  call.scale = op.scale;
  call.soft_cap = op.soft_cap;
  call.window = op.window;
  call.sinks = op.sinks == kNone ? nullptr : weights_.vector(op.sinks);
  call.causal = op.causal;
  call.kv = layer;
  if (op.rope != kNone) {
    const RopeView rope = ropes_[static_cast<std::size_t>(op.rope)].view();
    call.rope_cos = rope.cos;
    call.rope_sin = rope.sin;
    call.rope_half = rope.half;
  }
  return call;
}

// Tasks depend on the group, the number of heads and the window only: layers share them.
StepRunner::TaskList& StepRunner::tasks_for(const AttentionOp& op, const AttentionCall& call) {
  const auto same = [&](const TaskList& list) {
    return list.group == op.group && list.heads == op.heads && list.window == op.window;
  };
  auto found = std::find_if(task_lists_.begin(), task_lists_.end(), same);
  if (found == task_lists_.end()) {
    TaskList list;
    list.group = op.group;
    list.heads = op.heads;
    list.window = op.window;
    found = task_lists_.insert(task_lists_.end(), std::move(list));
  }
  if (found->rows.empty()) build_tasks(*found, call, op.group);
  return *found;
}

void StepRunner::build_tasks(TaskList& list, const AttentionCall& call, std::int32_t group) const {
  // About eight tasks per thread, so that the last ones even out; whole panels, within the scratch.
  const std::int32_t even = tokens_ * call.heads / (8 * pool_.threads());
  const std::int32_t size = std::clamp(round_up(even, kPanelQueries), 4 * kPanelQueries, kTaskQueries);
  list.tasks.clear();
  list.score_floats = 0;
  std::int32_t first_token = 0;
  for (const StepRow& row : plan_->rows) {
    const auto start = static_cast<std::int32_t>(row.start);
    const auto index = static_cast<std::int32_t>(list.rows.size());
    list.rows.push_back({first_token, row.size(), start, row.tables[static_cast<std::size_t>(group)].data(),
                         list.score_floats});
    first_token += row.size();
    list.score_floats += score_row_floats(start + row.size()) * static_cast<std::size_t>(row.size()) *
                         static_cast<std::size_t>(call.heads);
    const std::int32_t queries = row.size() * call.group();
    for (std::int32_t head = 0; head < call.kv.kv_heads; ++head) {
      for (std::int32_t begin = 0; begin < queries; begin += size) {
        const std::int32_t end = std::min(begin + size, queries);
        const std::int32_t first = call.first_read(start + begin / call.group());
        const std::int32_t last = call.last_read(list.rows.back(), start + (end - 1) / call.group());
        list.tasks.push_back({index, head, begin, end, first / kSegmentTokens, last / kSegmentTokens + 1});
      }
    }
  }
  split_tasks(list, call);
  deal_tasks(list, call);
}

// Like cards, the longest first, to the threads' lanes: each begins with its longest, and those that others take from the
// end of its lane are short.
void StepRunner::deal_tasks(TaskList& list, const AttentionCall& call) const {
  const auto cost = [&](const AttentionTask& task) {
    return task_cost(call, list.rows[static_cast<std::size_t>(task.row)], task);
  };
  std::stable_sort(list.tasks.begin(), list.tasks.end(),
                   [&](const AttentionTask& a, const AttentionTask& b) { return cost(a) > cost(b); });
  const auto count = static_cast<int>(list.tasks.size());
  const auto lane_begin = [&](int thread) { return ThreadPool::lane_begin(count, thread, pool_.threads()); };
  std::vector<AttentionTask> dealt;
  dealt.resize(list.tasks.size());
  auto next = list.tasks.begin();
  for (int round = 0; next != list.tasks.end(); ++round) {
    for (int thread = 0; thread < pool_.threads(); ++thread) {
      const int place = lane_begin(thread) + round;
      if (place < lane_begin(thread + 1)) dealt[static_cast<std::size_t>(place)] = *next++;
    }
  }
  list.tasks = std::move(dealt);
}

// Few queries over a long context become parts, so that the threads end together: about four for each thread.
void StepRunner::split_tasks(TaskList& list, const AttentionCall& call) const {
  list.merges.clear();
  list.parts.clear();
  list.state_floats = 0;
  const int threads = pool_.threads();
  if (threads == 1 || settings_.attention == AttentionForm::kMaterialized) return;
  const auto cost = [&](const AttentionTask& task) {
    return task_cost(call, list.rows[static_cast<std::size_t>(task.row)], task);
  };
  std::int64_t total = 0;
  for (const AttentionTask& task : list.tasks) total += cost(task);
  std::vector<AttentionTask> tasks;
  for (const AttentionTask& task : list.tasks) {
    const std::int32_t segments = task.last_segment - task.first_segment;
    const std::int32_t queries = task.end - task.begin;
    const std::int64_t wanted = cost(task) * 4 * threads / std::max<std::int64_t>(total, 1);
    const auto parts = static_cast<std::int32_t>(std::min<std::int64_t>(wanted, segments));
    if (parts <= 1 || queries > kMaxSplitQueries) {
      tasks.push_back(task);
      continue;
    }
    AttentionTask whole = task;
    whole.first_kept = task.first_segment;
    whole.states = list.state_floats;
    whole.whole = static_cast<std::int32_t>(list.merges.size());
    list.state_floats += attention_state_floats(queries, call.kv.padded_dim()) * static_cast<std::size_t>(segments);
    list.merges.push_back(whole);
    list.parts.push_back(parts);
    for (std::int32_t part = 0; part < parts; ++part) {
      AttentionTask one = whole;
      one.first_segment = task.first_segment + segments * part / parts;
      one.last_segment = task.first_segment + segments * (part + 1) / parts;
      tasks.push_back(one);
    }
  }
  list.tasks = std::move(tasks);
  if (list.parts_left.size() < list.parts.size()) {
    list.parts_left = std::vector<std::atomic<std::int32_t>>(list.parts.size());
  }
}

// All of the step's K and V of the layer are in the pool before any of them is read.
void StepRunner::write_kv(const AttentionCall& call, const AttentionKernels& kernels, const TaskList& list) {
  const std::int64_t work = std::int64_t{tokens_} * call.kv.kv_heads * call.kv.head_dim;
  const int chunks = static_cast<int>(std::min<std::int64_t>(std::clamp<std::int64_t>(work / 4096, 1, 16), tokens_));
  pool_.run(chunks, [&](int chunk, int) {
    const auto begin = static_cast<std::int32_t>(std::int64_t{tokens_} * chunk / chunks);
    const auto end = static_cast<std::int32_t>(std::int64_t{tokens_} * (chunk + 1) / chunks);
    for (const AttentionRow& row : list.rows) {
      const std::int32_t first = std::max(begin - row.first_token, 0);
      const std::int32_t last = std::min(end - row.first_token, row.tokens);
      if (first < last) kernels.write(call, row, first, last);
    }
  });
}

// Whoever ends the last part of a task merges them: in ascending order, whoever that is.
void StepRunner::attend(const AttentionCall& call, const AttentionKernels& kernels, TaskList& list) {
  if (settings_.attention == AttentionForm::kMaterialized) return attend_stages(call, kernels, list);
  const AttentionRow* rows = list.rows.data();
  for (std::size_t i = 0; i < list.merges.size(); ++i) {
    list.parts_left[i].store(list.parts[i], std::memory_order_relaxed);
  }
  const auto count = static_cast<int>(list.tasks.size());
  const int chunks = std::min(count, ThreadPool::kMaxChunks);
  pool_.run(chunks, [&](int chunk, int thread) {
    const int lane_end = ThreadPool::lane_begin(chunks, thread + 1, pool_.threads());
    for (int i = chunk; i < count; i += chunks) {
      const AttentionTask& task = list.tasks[static_cast<std::size_t>(i)];
      kernels.attend(call, rows, task, i + 1 < lane_end ? &task + 1 : nullptr, scratch(thread));
      if (!task.is_part()) continue;
      const auto whole = static_cast<std::size_t>(task.whole);
      if (list.parts_left[whole].fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
      kernels.merge(call, rows, list.merges[whole], scratch(thread));
    }
  });
}

void StepRunner::attend_stages(const AttentionCall& call, const AttentionKernels& kernels, const TaskList& list) {
  const auto count = static_cast<int>(list.tasks.size());
  const int chunks = std::min(count, ThreadPool::kMaxChunks);
  for (const auto stage : {kernels.scores, kernels.softmax, kernels.values}) {
    pool_.run(chunks, [&](int chunk, int thread) {
      for (int i = chunk; i < count; i += chunks) {
        const AttentionTask& task = list.tasks[static_cast<std::size_t>(i)];
        stage(call, list.rows[static_cast<std::size_t>(task.row)], task, scratch(thread));
      }
    });
  }
}

}  // namespace tidemill
