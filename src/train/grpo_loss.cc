#include "train/grpo_loss.h"

#include <algorithm>
#include <cmath>

namespace pith::train {

namespace {

constexpr double kDeviationFloor = 1e-4;  // TRL's

}  // namespace

Result<GrpoLossType> ParseGrpoLossType(const std::string& name) {
  if (name == "grpo") return GrpoLossType::kGrpo;
  if (name == "dapo") return GrpoLossType::kDapo;
  if (name == "dr_grpo") return GrpoLossType::kDrGrpo;
  return Error{ErrorCode::kInvalidArgument, "the loss type '" + name + "' is none of grpo, dapo, dr_grpo"};
}

const char* GrpoLossTypeName(GrpoLossType type) {
  switch (type) {
    case GrpoLossType::kGrpo: return "grpo";
    case GrpoLossType::kDapo: return "dapo";
    case GrpoLossType::kDrGrpo: return "dr_grpo";
  }
  return "grpo";
}

Result<ScaleRewards> ParseScaleRewards(const std::string& name) {
  if (name == "group") return ScaleRewards::kGroup;
  if (name == "none") return ScaleRewards::kNone;
  return Error{ErrorCode::kInvalidArgument, "the scale of rewards '" + name + "' is neither group nor none"};
}

const char* ScaleRewardsName(ScaleRewards scale) { return scale == ScaleRewards::kGroup ? "group" : "none"; }

GroupAdvantages ComputeAdvantages(std::span<const std::optional<double>> rewards, ScaleRewards scale) {
  GroupAdvantages group;
  group.advantages.assign(rewards.size(), 0.0);
  double sum = 0;
  double least = 0;
  double most = 0;
  for (const auto& reward : rewards) {
    if (!reward || !std::isfinite(*reward)) continue;
    least = group.valid == 0 ? *reward : std::min(least, *reward);
    most = group.valid == 0 ? *reward : std::max(most, *reward);
    ++group.valid;
    sum += *reward;
  }
  if (group.valid == 0) return group;
  group.mean = sum / static_cast<double>(group.valid);
  if (group.valid < 2) return group;
  // Equal rewards are told by comparing them: a deviation from a rounded mean need not be 0.
  if (least == most) return group;
  group.informative = true;
  double squares = 0;
  for (const auto& reward : rewards) {
    if (reward && std::isfinite(*reward)) squares += (*reward - group.mean) * (*reward - group.mean);
  }
  group.deviation = std::sqrt(squares / static_cast<double>(group.valid - 1));
  const double divisor = scale == ScaleRewards::kGroup ? group.deviation + kDeviationFloor : 1.0;
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (rewards[i] && std::isfinite(*rewards[i])) group.advantages[i] = (*rewards[i] - group.mean) / divisor;
  }
  return group;
}

Status CheckGrpoLoss(const GrpoLossOptions& options) {
  const auto bad = [](const std::string& what) { return Error{ErrorCode::kInvalidArgument, what}; };
  if (!(options.epsilon >= 0 && options.epsilon < 1)) return bad("epsilon must be in [0, 1)");
  if (!(options.high() >= 0 && std::isfinite(options.high()))) return bad("epsilon-high must be a number >= 0");
  if (!(options.beta >= 0 && std::isfinite(options.beta))) return bad("beta must be a number >= 0");
  if (options.max_completion_length < 1) return bad("max-completion-length must be at least 1");
  return {};
}

double TokenWeight(const GrpoLossOptions& options, const StepCounts& counts, int64_t sample_tokens) {
  const auto at_least_one = [](int64_t count) { return static_cast<double>(std::max<int64_t>(count, 1)); };
  switch (options.type) {
    case GrpoLossType::kGrpo: return 1.0 / (at_least_one(counts.samples) * at_least_one(sample_tokens));
    case GrpoLossType::kDapo: return 1.0 / at_least_one(counts.tokens);
    case GrpoLossType::kDrGrpo:
      return 1.0 / (at_least_one(counts.samples) * static_cast<double>(options.max_completion_length));
  }
  return 0;
}

TokenKl K3(double log_prob, double reference) {
  const double difference = reference - log_prob;
  const double bounded = std::min(difference, kMaxLogRatio);
  const double slope = std::expm1(bounded);
  return {slope - bounded + (difference - bounded) * slope, -slope};
}

SampleLoss ComputeSampleLoss(const SampleTokens& tokens, const GrpoLossOptions& options, double token_weight) {
  SampleLoss result;
  result.gradient.resize(tokens.log_probs.size());
  const double low = 1.0 - options.epsilon;
  const double high = 1.0 + options.high();
  for (size_t t = 0; t < tokens.log_probs.size(); ++t) {
    const auto log_prob = static_cast<double>(tokens.log_probs[t]);
    const double ratio = std::exp(std::min(log_prob - static_cast<double>(tokens.old_log_probs[t]), kMaxLogRatio));
    const double importance = tokens.importance.empty() ? 1.0 : static_cast<double>(tokens.importance[t]);
    const double plain = ratio * tokens.advantage;
    const double clipped = std::clamp(ratio, low, high) * tokens.advantage;
    // Where the clipped branch is the smaller one it is a constant.
    const bool constant = clipped < plain;
    double loss = -std::min(plain, clipped) * importance;
    double derivative = constant ? 0.0 : -plain * importance;
    if ((ratio < low && tokens.advantage < 0) || (ratio > high && tokens.advantage > 0)) ++result.clipped;
    if (!tokens.reference.empty()) {
      const TokenKl kl = K3(log_prob, static_cast<double>(tokens.reference[t]));
      result.kl_sum += kl.value;
      loss += options.beta * kl.value;
      derivative += options.beta * kl.derivative;
    }
    result.loss += loss * token_weight;
    result.gradient[t] = static_cast<float>(derivative * token_weight);
  }
  return result;
}

}  // namespace pith::train
