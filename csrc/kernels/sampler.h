// The draw of one token from one row of logits.
//
// Order: logits -> bias -> repetition, presence and frequency penalties -> mask -> temperature -> top-k -> top-p -> min-p
// -> draw. A mask is a bit per token, token i being bit i mod 32 of word i div 32; tokens whose bit is 0 are not drawn,
// and where it leaves none, token 0 stands for the draw. Tokens are ranked by (logit descending, id ascending), and each cut keeps a prefix of that ranking:
//   top-k  exactly k tokens
//   top-p  the shortest prefix whose probability, among the tokens that top-k kept, reaches top_p
//   min-p  tokens at least min_p times as likely as the first
// At temperature <= 1e-5 the token is the first of the ranking.
//
// The draw is Gumbel-max: the kept token with the largest y_i + g_i, ties to the lowest id, where
//   y_i = (logit_i - largest logit) / temperature                      in float32
//   g_i = -ln(-ln(1 - u_i)),  u_i = min((w_i + 1/2) / 2^32, 1 - 2^-24)
//   w_i = word (i mod 4) of Philox4x32-10 (Salmon et al., SC 2011, doi:10.1145/2063384.2063405) with
//         key     = (seed mod 2^32, seed div 2^32)
//         counter = (i div 4, choice, position mod 2^32, kDrawStream)   i = token id
// position is that of the drawn token: one more than that of the token whose logits these are. The noise of a token
// depends on nothing else, so a draw is the same whatever is computed beside it (rule 8).
//
// NaN logits count as -inf, infinite ones as the largest finite number.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "inline.h"

namespace tidemill {

inline constexpr float kGreedyTemperature = 1e-5f;
inline constexpr std::uint32_t kDrawStream = 0;

struct NoiseKey {
  std::uint64_t seed;
  std::uint32_t choice;
  std::uint32_t position;
};

// Where a scan for the best token stands.
struct BestToken {
  float value;
  std::int32_t id;
};

struct SamplerKernels {
  // out = x with NaN and infinities made finite; returns the largest value.
  float (*finite)(const float* x, std::int32_t n, float* out);
  // First index of the largest value; NaN never wins.
  std::int32_t (*argmax)(const float* x, std::int32_t n);
  // y = (x - largest) / temperature.
  void (*temper)(const float* x, std::int32_t n, float largest, float temperature, float* y);
  // Sum of exp(x - largest) in double: eight partial sums over index mod 8.
  double (*sum_exp)(const float* x, std::int32_t n, float largest);
  // Ascending indices i with x[i] >= threshold, into ids; returns how many.
  std::int32_t (*at_least)(const float* x, std::int32_t n, float threshold, std::int32_t* ids);
  // Best y + noise over all n tokens, or over the `count` candidate ids (with y[id]) if ids is not null.
  BestToken (*gumbel)(const float* y, std::int32_t n, const std::int32_t* ids, std::int32_t count, NoiseKey key);
};

struct TokenBias {
  std::int32_t id;
  float value;
};

struct TokenCount {
  std::int32_t id;
  std::int32_t output_count;  // 0: only in the prompt
};

struct SamplingParameters {
  float temperature = 0.0f;
  std::int32_t top_k = 0;  // <= 0: all
  double top_p = 1.0;
  double min_p = 0.0;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;
  std::int32_t logprobs = -1;  // -1: none
  std::vector<TokenBias> bias;
  std::vector<TokenCount> counts;  // ascending ids
  std::vector<std::int32_t> targets;  // tokens that the first outputs score instead of drawing
  std::vector<std::vector<std::uint32_t>> masks;  // none, or one per output; an empty one allows every token

  bool greedy() const { return temperature <= kGreedyTemperature; }
  std::span<const std::uint32_t> mask(std::size_t output) const {
    return masks.empty() ? std::span<const std::uint32_t>() : masks[output];
  }
  bool penalised() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

struct RankedToken {
  std::int32_t id;
  double logprob;
};

struct Draw {
  std::int32_t token = 0;
  double logprob = 0.0;
  std::vector<RankedToken> top;
};

// One thread's working memory, and the draw itself.
class Sampler {
 public:
  Sampler(const SamplerKernels& kernels, std::int32_t vocab);

  // `proposals` are the tokens assumed to follow those in parameters.counts; position is that of the token drawn, and
  // mask, if not empty, says which may be.
  void draw(const float* logits, const SamplingParameters& parameters, std::span<const std::int32_t> proposals,
            std::int64_t position, std::span<const std::uint32_t> mask, Draw& out);
  // No draw: the token is given, and its log-probability is asked for with those of the k most likely ones.
  void score(const float* logits, std::int32_t token, std::int32_t k, Draw& out);

 private:
  void adjust(const SamplingParameters& parameters, std::span<const std::int32_t> proposals);
  bool keep_allowed(std::span<const std::uint32_t> mask);
  void penalise(const SamplingParameters& parameters, std::int32_t id, std::int32_t output_count);
  std::int32_t sample(const SamplingParameters& parameters, std::int64_t position);
  bool rank_candidates(const SamplingParameters& parameters);
  void rank_best(const float* values, std::int32_t k);
  void rank_nucleus(double top_p, double total);
  void cut_top_p(double top_p, double total);
  double candidate_weight(std::int32_t rank) const;
  double candidate_mass() const;
  void log_probabilities(const float* logits, std::int32_t k, Draw& out);

  const SamplerKernels& kernels_;
  std::int32_t vocab_;
  std::vector<float> adjusted_;          // finite logits after bias and penalties
  std::vector<float> tempered_;          // y
  std::vector<std::int32_t> ids_;        // candidates: the first count_, ranked
  std::int32_t count_ = 0;
};

}  // namespace tidemill
