#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pith::train {

AdamW::AdamW(const std::vector<Parameter>& parameters, const AdamWOptions& options)
    : parameters_(parameters), options_(options) {
  size_t total = 0;
  for (const Parameter& parameter : parameters_) total += parameter.value.size();
  first_.assign(total, 0.0F);
  second_.assign(total, 0.0F);
}

void AdamW::Step(double learning_rate, double gradient_scale) {
  ++steps_;
  const double correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(steps_));
  const double correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(steps_));
  const auto step_size = static_cast<float>(learning_rate / correction1);
  const auto root2 = static_cast<float>(std::sqrt(correction2));
  const auto beta1 = static_cast<float>(options_.beta1);
  const auto beta2 = static_cast<float>(options_.beta2);
  const auto keep1 = static_cast<float>(1.0 - options_.beta1);
  const auto keep2 = static_cast<float>(1.0 - options_.beta2);
  const auto epsilon = static_cast<float>(options_.epsilon);
  const auto scale = static_cast<float>(gradient_scale);
  size_t at = 0;
  for (const Parameter& parameter : parameters_) {
    const auto shrink = static_cast<float>(parameter.decay ? 1.0 - learning_rate * options_.weight_decay : 1.0);
    float* value = parameter.value.data();
    const float* gradient = parameter.gradient.data();
    float* m = first_.data() + at;
    float* v = second_.data() + at;
    const size_t n = parameter.value.size();
    for (size_t i = 0; i < n; ++i) {
      const float g = gradient[i] * scale;
      m[i] = beta1 * m[i] + keep1 * g;
      v[i] = beta2 * v[i] + keep2 * g * g;
      value[i] = shrink * value[i] - step_size * m[i] / (std::sqrt(v[i]) / root2 + epsilon);
    }
    at += n;
  }
}

Status AdamW::Restore(int64_t steps, std::vector<float> first, std::vector<float> second) {
  if (first.size() != first_.size() || second.size() != second_.size()) {
    return Error{ErrorCode::kInvalidArgument, "the optimizer's state has " + std::to_string(first.size()) +
                                                  " elements, the parameters " + std::to_string(first_.size())};
  }
  steps_ = steps;
  first_ = std::move(first);
  second_ = std::move(second);
  return {};
}

double GradientNorm(const std::vector<Parameter>& parameters) {
  double total = 0;
  for (const Parameter& parameter : parameters) {
    for (const float g : parameter.gradient) total += static_cast<double>(g) * static_cast<double>(g);
  }
  return std::sqrt(total);
}

double ClipFactor(double norm, double max_norm) {
  return max_norm <= 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
}

Result<ScheduleKind> ParseSchedule(const std::string& name) {
  if (name == "cosine") return ScheduleKind::kCosine;
  if (name == "linear") return ScheduleKind::kLinear;
  if (name == "constant" || name == "constant_with_warmup") return ScheduleKind::kConstant;
  return Error{ErrorCode::kInvalidArgument,
               "unknown schedule '" + name + "' (cosine, linear, constant, constant_with_warmup)"};
}

double Schedule::Factor(int64_t step) const {
  if (step < warmup_steps) return static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup_steps));
  if (kind == ScheduleKind::kConstant) return 1.0;
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  if (kind == ScheduleKind::kLinear) return std::max(0.0, 1.0 - progress);
  return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

}  // namespace pith::train
