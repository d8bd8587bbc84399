#include "sampler.h"

#include <algorithm>
#include <cmath>

namespace tidemill {

namespace {

// Ranks ids by (value descending, id ascending).
struct Ranking {
  const float* values;
  bool operator()(std::int32_t a, std::int32_t b) const {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  }
};

}  // namespace

Sampler::Sampler(const SamplerKernels& kernels, std::int32_t vocab)
    : kernels_(kernels), vocab_(vocab), adjusted_(static_cast<std::size_t>(vocab)),
      tempered_(static_cast<std::size_t>(vocab)), ids_(static_cast<std::size_t>(vocab)) {}

void Sampler::draw(const float* logits, const SamplingParameters& parameters,
                   std::span<const std::int32_t> proposals, std::int64_t position,
                   std::span<const std::uint32_t> mask, Draw& out) {
  const bool plain = parameters.bias.empty() && !parameters.penalised() && mask.empty();
  if (parameters.greedy() && plain) {
    out.token = kernels_.argmax(logits, vocab_);
  } else {
    kernels_.finite(logits, vocab_, adjusted_.data());
    adjust(parameters, proposals);
    if (!mask.empty() && !keep_allowed(mask)) {
      out.token = 0;
    } else {
      out.token = parameters.greedy() ? kernels_.argmax(adjusted_.data(), vocab_) : sample(parameters, position);
    }
  }
  out.top.clear();
  if (parameters.logprobs >= 0) log_probabilities(logits, parameters.logprobs, out);
}

void Sampler::score(const float* logits, std::int32_t token, std::int32_t k, Draw& out) {
  out.token = token;
  out.top.clear();
  log_probabilities(logits, k, out);
}

void Sampler::penalise(const SamplingParameters& parameters, std::int32_t id, std::int32_t output_count) {
  float& logit = adjusted_[static_cast<std::size_t>(id)];
  logit = logit > 0.0f ? logit / parameters.repetition_penalty : logit * parameters.repetition_penalty;
  if (output_count > 0) {
    logit -= parameters.frequency_penalty * static_cast<float>(output_count) + parameters.presence_penalty;
  }
}

// Tokens that the mask leaves out rank below all others; false if it leaves out all.
bool Sampler::keep_allowed(std::span<const std::uint32_t> mask) {
  bool any = false;
  for (std::int32_t first = 0; first < vocab_; first += 32) {
    const std::uint32_t word = mask[static_cast<std::size_t>(first / 32)];
    const std::int32_t count = std::min(32, vocab_ - first);
    const std::uint32_t all = count == 32 ? ~0u : (1u << count) - 1u;
    any = any || (word & all) != 0;
    if ((word & all) == all) continue;
    for (std::int32_t bit = 0; bit < count; ++bit) {
      if ((word >> bit & 1u) == 0) adjusted_[static_cast<std::size_t>(first + bit)] = -INFINITY;
    }
  }
  return any;
}

void Sampler::adjust(const SamplingParameters& parameters, std::span<const std::int32_t> proposals) {
  for (const TokenBias& bias : parameters.bias) adjusted_[static_cast<std::size_t>(bias.id)] += bias.value;
  if (!parameters.penalised()) return;
  const auto proposed = [&](std::int32_t id) {
    return static_cast<std::int32_t>(std::count(proposals.begin(), proposals.end(), id));
  };
  for (const TokenCount& seen : parameters.counts) {
    penalise(parameters, seen.id, seen.output_count + proposed(seen.id));
  }
  for (auto it = proposals.begin(); it != proposals.end(); ++it) {
    const bool counted = std::find(proposals.begin(), it, *it) != it;
    const bool seen = std::binary_search(parameters.counts.begin(), parameters.counts.end(), TokenCount{*it, 0},
                                         [](const TokenCount& a, const TokenCount& b) { return a.id < b.id; });
    if (!counted && !seen) penalise(parameters, *it, proposed(*it));
  }
}

std::int32_t Sampler::sample(const SamplingParameters& parameters, std::int64_t position) {
  const float largest = adjusted_[static_cast<std::size_t>(kernels_.argmax(adjusted_.data(), vocab_))];
  kernels_.temper(adjusted_.data(), vocab_, largest, parameters.temperature, tempered_.data());
  const NoiseKey key{parameters.seed, parameters.choice, static_cast<std::uint32_t>(position)};
  const bool cut = rank_candidates(parameters);
  return kernels_.gumbel(tempered_.data(), vocab_, cut ? ids_.data() : nullptr, count_, key).id;
}

// Leaves the tokens that the cuts keep in ids_, ranked; false if there is no cut.
bool Sampler::rank_candidates(const SamplingParameters& parameters) {
  const bool top_k = parameters.top_k > 0 && parameters.top_k < vocab_;
  const bool top_p = parameters.top_p < 1.0;
  const bool min_p = parameters.min_p > 0.0;
  if (!top_k && !top_p && !min_p) return false;
  const float least = min_p ? static_cast<float>(std::log(parameters.min_p)) : 0.0f;
  if (top_k) {
    rank_best(adjusted_.data(), parameters.top_k);
    if (top_p) cut_top_p(parameters.top_p, candidate_mass());
  } else if (top_p) {
    rank_nucleus(parameters.top_p, kernels_.sum_exp(tempered_.data(), vocab_, 0.0f));
  } else {
    count_ = kernels_.at_least(tempered_.data(), vocab_, least, ids_.data());
  }
  if (min_p) {
    const auto below = [&](std::int32_t id) { return tempered_[static_cast<std::size_t>(id)] < least; };
    count_ = static_cast<std::int32_t>(std::find_if(ids_.begin() + 1, ids_.begin() + count_, below) - ids_.begin());
  }
  return true;
}

// The k best of values (no NaN), ranked, in ids_.
void Sampler::rank_best(const float* values, std::int32_t k) {
  for (std::int32_t i = 0; i < k; ++i) ids_[static_cast<std::size_t>(i)] = i;
  const Ranking ranking{values};
  const auto begin = ids_.begin();
  std::make_heap(begin, begin + k, ranking);  // front: the worst of the best
  for (std::int32_t id = k; id < vocab_; ++id) {
    if (values[id] <= values[ids_[0]]) continue;  // an equal value has a higher id and ranks below
    std::pop_heap(begin, begin + k, ranking);
    ids_[static_cast<std::size_t>(k - 1)] = id;
    std::push_heap(begin, begin + k, ranking);
  }
  std::sort_heap(begin, begin + k, ranking);
  count_ = k;
}

// The shortest prefix of the ranking that reaches top_p of `total`, over the whole vocabulary: only tokens above a
// threshold are sorted, and the threshold falls until they hold enough.
void Sampler::rank_nucleus(double top_p, double total) {
  for (const float depth : {4.0f, 8.0f, 16.0f, 32.0f, INFINITY}) {
    count_ = kernels_.at_least(tempered_.data(), vocab_, -depth, ids_.data());
    if (candidate_mass() >= top_p * total * (1.0 + 1e-6)) break;  // a margin for the sums' different roundings
  }
  std::sort(ids_.begin(), ids_.begin() + count_, Ranking{tempered_.data()});
  cut_top_p(top_p, total);
}

// exp(y) of the candidate at this rank.
double Sampler::candidate_weight(std::int32_t rank) const {
  const auto id = static_cast<std::size_t>(ids_[static_cast<std::size_t>(rank)]);
  return std::exp(static_cast<double>(tempered_[id]));
}

double Sampler::candidate_mass() const {
  double mass = 0.0;
  for (std::int32_t i = 0; i < count_; ++i) mass += candidate_weight(i);
  return mass;
}

void Sampler::cut_top_p(double top_p, double total) {
  double mass = 0.0;
  for (std::int32_t i = 0; i < count_; ++i) {
    mass += candidate_weight(i);
    if (mass >= top_p * total) {
      count_ = i + 1;
      return;
    }
  }
}

void Sampler::log_probabilities(const float* logits, std::int32_t k, Draw& out) {
  const float largest = kernels_.finite(logits, vocab_, adjusted_.data());
  const double total = std::log(kernels_.sum_exp(adjusted_.data(), vocab_, largest)) + static_cast<double>(largest);
  const auto logprob = [&](std::int32_t id) {
    return static_cast<double>(adjusted_[static_cast<std::size_t>(id)]) - total;
  };
  out.logprob = logprob(out.token);
  if (k == 0) return;
  rank_best(adjusted_.data(), std::min(k, vocab_));
  for (std::int32_t i = 0; i < count_; ++i) {
    const std::int32_t id = ids_[static_cast<std::size_t>(i)];
    out.top.push_back({id, logprob(id)});
  }
}

}  // namespace tidemill
