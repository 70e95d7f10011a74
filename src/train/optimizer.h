// AdamW and the schedule of the learning rate, on plain floats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/train_model.h"

namespace pith::train {

// Decoupled weight decay (Loshchilov & Hutter 2019), as torch.optim.AdamW computes it in float32.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

class AdamW {
 public:
  // The moments start at zero. Keeps references to the parameters' spans.
  AdamW(const std::vector<Parameter>& parameters, const AdamWOptions& options);

  // One step with the gradients times `gradient_scale` (clipping).
  void Step(double learning_rate, double gradient_scale = 1.0);

  int64_t steps() const { return steps_; }
  // State for checkpoints: first and second moments, one after the other in the order of parameters.
  const std::vector<float>& first() const { return first_; }
  const std::vector<float>& second() const { return second_; }
  // kInvalidArgument for other sizes.
  Status Restore(int64_t steps, std::vector<float> first, std::vector<float> second);

 private:
  std::vector<Parameter> parameters_;
  AdamWOptions options_;
  int64_t steps_ = 0;
  std::vector<float> first_, second_;
};

// L2 norm over all gradients, in double; not finite when one is not.
double GradientNorm(const std::vector<Parameter>& parameters);
// The factor that brings a norm down to max_norm: max_norm / (norm + 1e-6), at most 1; 1 when max_norm <= 0.
double ClipFactor(double norm, double max_norm);

enum class ScheduleKind { kCosine, kLinear, kConstant };
Result<ScheduleKind> ParseSchedule(const std::string& name);  // "cosine", "linear", "constant", "constant_with_warmup"

// The factor on the learning rate for step 0, 1, ...: linear from 0 over the warm-up, then cosine or linear to 0 (or
// 1), as transformers' schedules.
struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;
  double Factor(int64_t step) const;
};

}  // namespace pith::train
