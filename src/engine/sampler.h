// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/sampling.h"

namespace pith {

// How to sample. The steps run in the order of transformers' generate(): repetition penalty, temperature, top-k, top-p,
// min-p; each works on what the one before left.
struct SamplingParams {
  double temperature = 1.0;  // 0 = greedy (the filters then change nothing); else 1e-5..100
  int64_t top_k = 0;         // keep the k largest logits, and all equal to the k-th; 0 = off; at most 2^30
  double top_p =
      1.0;  // keep the smallest set of most likely tokens with at least this probability; 0..1; at least one token
  double min_p = 0.0;               // keep tokens with at least this fraction of the largest probability; 0..1
  double repetition_penalty = 1.0;  // logits of seen tokens: divided when positive, multiplied when negative; 0.01..100
  uint64_t seed = 0;
};

// kInvalidArgument, naming the parameter and its range, for anything outside it (NaN included).
Status ValidateSampling(const SamplingParams& params);

struct SampledToken {
  int32_t token = 0;
  float log_prob = 0.0f;  // natural log of the model's own probability: from the unmodified logits, at temperature 1
};

// Natural log of the probability of `token` under softmax(logits / temperature), before any filter; at temperature 0
// that of temperature 1. 0 <= token < logits.size().
float LogProbability(std::span<const float> logits, int32_t token, double temperature);

// A token that may be drawn, with its probability after all steps.
struct TokenProbability {
  int32_t token = 0;
  double probability = 0.0;
};

// Holds validated parameters and scratch memory; not for use by two threads at once. One sampler serves any number of
// streams: a draw depends only on (logits, seen, seed, stream, position).
class Sampler {
 public:
  static Result<Sampler> Create(const SamplingParams& params);

  // Draws from `logits` (one per token of the vocabulary; -inf excludes a token). `seen` are the tokens of prompt and
  // answer so far, in any order and multiplicity; only the repetition penalty reads them. The draw uses the random
  // number at (seed, stream, position). kNumeric for NaN or +infinity among the logits or no token left;
  // kInvalidArgument for a seen id outside the vocabulary or empty logits.
  Result<SampledToken> Sample(std::span<const float> logits, std::span<const int32_t> seen, uint64_t stream,
                              uint64_t position);

  // The distribution that Sample draws from, in index order. Greedy: one token.
  Result<std::vector<TokenProbability>> Distribution(std::span<const float> logits, std::span<const int32_t> seen);

  const SamplingParams& params() const { return params_; }

 private:
  explicit Sampler(const SamplingParams& params) : params_(params) {}

  // Checks the logits and applies the penalty. The result lives until the next call.
  Result<std::span<const float>> Penalize(std::span<const float> logits, std::span<const int32_t> seen);
  bool filtered() const { return params_.top_k > 0 || params_.top_p < 1.0 || params_.min_p > 0.0; }
  // Fills kept_ (index order) and weights_ (exp((logit - largest) / temperature)) with what top-k, top-p and min-p
  // leave.
  void Filter(std::span<const float> logits, float largest);
  void KeepTopP(double total, float largest);
  void ComputeWeights(float largest);

  SamplingParams params_;
  std::vector<float> penalized_;
  std::vector<Candidate> kept_;
  std::vector<float> weights_;
  std::vector<Candidate> bucket_;
};

}  // namespace pith
