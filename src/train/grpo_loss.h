// GRPO as arithmetic on log-probabilities: advantages of groups, the loss and its derivative. Pure functions, no model.
//
//   A_i = (r_i - mean) / (std + 1e-4)            std unbiased (n - 1), over the valid rewards of the group
//   ratio = exp(logp - old)
//   l = -min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A) * w + beta (expm1(d) - d),   d = ref - logp
//   grpo:    mean over samples of the mean over tokens      (DeepSeekMath, arXiv 2402.03300)
//   dapo:    mean over all tokens of the step               (arXiv 2503.14476)
//   dr_grpo: sum / (samples * max_completion_length)        (arXiv 2503.20783; with scale_rewards none)
//
// Loss, gradient and advantages are those of TRL 0.26.2 (golden vectors), but for what TRL leaves undefined: rewards
// that are missing, and exponents beyond kMaxLogRatio. So loss and gradient are finite for any finite input.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace pith::train {

enum class GrpoLossType { kGrpo, kDapo, kDrGrpo };
Result<GrpoLossType> ParseGrpoLossType(const std::string& name);  // "grpo", "dapo", "dr_grpo"
const char* GrpoLossTypeName(GrpoLossType type);

enum class ScaleRewards { kGroup, kNone };
Result<ScaleRewards> ParseScaleRewards(const std::string& name);  // "group", "none"
const char* ScaleRewardsName(ScaleRewards scale);

// Log-ratios act as if they were at most this: e^20 is far outside of any clip range, and squares of it are finite.
// Where a k3 term is beyond, it goes on as a straight line.
inline constexpr double kMaxLogRatio = 20;

// A group of responses to one prompt. A reward that could not be given is no value: it does not enter mean and
// deviation. Fewer than two valid rewards compare nothing: then all advantages are 0.
struct GroupAdvantages {
  std::vector<double> advantages;  // one per reward, 0 where there is none
  int64_t valid = 0;               // rewards that have a value
  double mean = 0;                 // of the valid ones
  double deviation = 0;            // unbiased; 0 for fewer than two
  bool informative = false;        // at least two valid rewards, and not all of them equal
};
GroupAdvantages ComputeAdvantages(std::span<const std::optional<double>> rewards, ScaleRewards scale);

struct GrpoLossOptions {
  GrpoLossType type = GrpoLossType::kDapo;
  double epsilon = 0.2;                     // lower side of the clip range
  std::optional<double> epsilon_high = {};  // upper side; nothing = epsilon
  double beta = 0.0;                        // of the KL term; 0 = none
  int64_t max_completion_length = 256;

  double high() const { return epsilon_high.value_or(epsilon); }
};
// kInvalidArgument names the option.
Status CheckGrpoLoss(const GrpoLossOptions& options);

// What the sums of a step are divided by, over all of its passes and ranks: samples that take part, and their learned
// tokens. A sample is in all of these counts or in none (what is masked out of the numerator is not in the
// denominator).
struct StepCounts {
  int64_t samples = 0;
  int64_t tokens = 0;
};

// The factor on a token's loss, for a sample with this many learned tokens.
double TokenWeight(const GrpoLossOptions& options, const StepCounts& counts, int64_t sample_tokens);

// One sample's learned tokens. All spans have the same length; `old` may be logp itself (on policy); `reference` may be
// empty when beta is 0; `importance` weighs the policy term of each token (rollout correction), empty = 1.
struct SampleTokens {
  std::span<const float> log_probs;
  std::span<const float> old_log_probs;
  std::span<const float> reference;
  std::span<const float> importance;
  double advantage = 0;
};

struct SampleLoss {
  double loss = 0;              // sum over tokens of l, times the token weight
  double kl_sum = 0;            // sum over tokens of the k3 term, without beta and weight
  int64_t clipped = 0;          // tokens whose ratio is outside the range on the side where clipping acts
  std::vector<float> gradient;  // d loss / d log_probs
};
SampleLoss ComputeSampleLoss(const SampleTokens& tokens, const GrpoLossOptions& options, double token_weight);

// k3 of one token and its derivative with respect to logp.
struct TokenKl {
  double value = 0;
  double derivative = 0;
};
TokenKl K3(double log_prob, double reference);

}  // namespace pith::train
