// Supervised fine-tuning: the loop over data, steps, evaluations and checkpoints.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/comm.h"
#include "train/dataset.h"
#include "train/optimizer.h"
#include "train/train_model.h"

namespace pith::train {

// Names follow TRL and transformers.
struct SftOptions {
  std::string output_dir;
  int64_t per_device_train_batch_size = 2;  // rows of one pass
  int64_t gradient_accumulation_steps = 4;  // passes of one step
  int64_t max_length = 1024;                // tokens of a row
  bool packing = true;
  bool mask_prompt_adapter = true;  // ignored without LoRA
  double num_train_epochs = 1;
  int64_t max_steps = -1;  // > 0 overrides the epochs
  double learning_rate = 2e-4;
  double warmup_ratio = 0.1;
  int64_t warmup_steps = 0;  // > 0 overrides the ratio
  ScheduleKind schedule = ScheduleKind::kCosine;
  AdamWOptions adamw;
  double max_grad_norm = 1.0;
  uint64_t seed = 42;
  int64_t logging_steps = 1;
  int64_t eval_steps = 0;  // 0 = at the end only
  int64_t save_steps = 50;
  int64_t save_total_limit = 2;  // 0 = keep all
  bool resume = false;           // from the last checkpoint in output_dir, if there is one
  std::string base_model;        // noted in the adapter
};

struct SftProgress {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0;  // mean over the labels of the step
  double gradient_norm = 0;
  double learning_rate = 0;
  double epoch = 0;
  int64_t tokens = 0;  // of the step, prompts too
  int64_t labels = 0;
  double seconds = 0;
};

struct SftResult {
  int64_t steps = 0;
  double train_loss = 0;  // mean over steps of this run
  std::optional<double> eval_loss;
  std::optional<double> best_eval_loss;
  int64_t best_step = 0;
  int64_t tokens = 0;
  double seconds = 0;
};

// Trains. output_dir gets metrics.jsonl (one object per step or evaluation), checkpoints, and at the end the adapter
// (or the model) itself; the one with the best evaluation loss when there is an evaluation set. `cancel`: ends after
// the step under way with a checkpoint, kCancelled. kNumeric: loss or gradient not finite, with the step.
Result<SftResult> TrainSft(TrainModel& model, const std::vector<Sample>& train, const std::vector<Sample>& eval,
                           const SftOptions& options, Comm& comm,
                           const std::function<void(const SftProgress&)>& on_step = {},
                           const std::atomic<bool>* cancel = nullptr);

// Mean negative log-likelihood per label.
Result<double> EvaluateLoss(TrainModel& model, const std::vector<Sample>& samples, bool masked, int64_t row_length);

}  // namespace pith::train
