// GRPO with budgets: rollouts of the policy, their rewards, one update (or several) of the adapter on them, again.
//
// A step takes the next prompts, draws a budget for each and writes it into the prompt by the reasoning texts'
// template, lets the engine generate a group of responses to each, rewards them (reward.h), and updates the adapter on
// the samples of groups that tell something (grpo_loss.h). Rollouts, log-probabilities and reference have the adapter
// on at the same tokens: all samples go through AddSample. The reference of the KL term is the adapter that the run
// started from.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/text_model.h"
#include "grade/grade.h"
#include "model/chat_template.h"
#include "reason/reason_model.h"
#include "train/comm.h"
#include "train/grpo_loss.h"
#include "train/optimizer.h"
#include "train/reward.h"
#include "train/rollout.h"
#include "train/train_model.h"

namespace pith::train {

struct GrpoProblem {
  std::string id;
  std::vector<ChatMessage> messages;  // the budget is added to the last user message
  std::string answer;                 // the key
};

// Whether a response is right. The default compares the answer found in it with the key.
using Grader = std::function<Verdict(const GrpoProblem& problem, const Rollout& rollout)>;
Verdict GradeRollout(const GrpoProblem& problem, const Rollout& rollout);

// Names follow TRL's where it has them.
struct GrpoOptions {
  std::string output_dir;
  // A step has per_device_train_batch_size * gradient_accumulation_steps responses on each rank, a multiple of
  // num_generations; a pass of the update has per_device_train_batch_size of them.
  int64_t per_device_train_batch_size = 8;
  int64_t gradient_accumulation_steps = 4;
  int64_t num_generations = 8;
  double temperature = 0.8;
  GrpoLossOptions loss{.beta = 1e-3};  // max_completion_length caps the rollouts
  ScaleRewards scale_rewards = ScaleRewards::kGroup;
  int64_t num_iterations = 1;               // updates on the rollouts of a step
  bool mask_truncated_completions = false;  // truncated responses are rewarded, but nothing is learned from them
  // Groups whose rewards are all equal take part, with advantage 0: the KL term acts on them, and they count in what
  // the loss is divided by. By default they are left out of both.
  bool keep_zero_std_groups = false;
  // The policy term of a token is weighed by exp(trainer's log-prob - engine's), at most this; 0 = not weighed.
  double rollout_importance_cap = 3;
  std::vector<int64_t> budgets = {100, 200, 300, 400};
  BudgetWindow window;
  // Stop a response where its budget's window ends (then the reward is the window's floor whatever comes), not at
  // max_completion_length.
  bool cap_at_window = false;
  int64_t max_streams = 64;  // of the rollouts, at the same time
  double num_train_epochs = 1;
  int64_t max_steps = -1;  // > 0 overrides the epochs
  double learning_rate = 2e-5;
  double warmup_ratio = 0.05;
  int64_t warmup_steps = 0;  // > 0 overrides the ratio
  ScheduleKind schedule = ScheduleKind::kCosine;
  AdamWOptions adamw;
  double max_grad_norm = 1.0;
  uint64_t seed = 42;
  int64_t save_steps = 20;
  int64_t save_total_limit = 2;  // 0 = keep all
  bool resume = false;
  std::string base_model;  // noted in the adapter
  // After so many steps in a row in which nothing can be learned there is a warning, or the run ends (0 = never).
  int64_t stuck_steps = 5;
  bool stop_when_stuck = false;
};

// One step. Means are over the responses of all ranks, or over their learned tokens.
struct GrpoProgress {
  int64_t step = 0;
  int64_t total_steps = 0;
  double epoch = 0;
  double reward = 0;      // over valid ones
  double reward_std = 0;  // mean over groups of the deviation within each
  double accuracy = 0;
  double valid = 0;  // share of responses that have a reward
  double mean_length = 0;
  int64_t max_length = 0;
  double truncated = 0;             // share
  double answer_think_ratio = 0;    // tokens of answers / tokens of thoughts
  double repetition = 0;            // share of tokens equal to the one before
  double frac_reward_zero_std = 0;  // of groups
  int64_t samples = 0;              // that the update used
  int64_t labels = 0;               // their tokens
  // Nothing where no sample was used; of the first of num_iterations, but for the clip ratio (mean over them).
  std::optional<double> loss, kl, entropy, gradient_norm;
  std::optional<double> clip_ratio;          // share of tokens outside the clip range
  std::optional<double> rollout_difference;  // mean |engine's - trainer's log-prob| of a token
  double learning_rate = 0;
  int64_t tokens = 0;  // generated
  double rollout_seconds = 0, score_seconds = 0, update_seconds = 0, seconds = 0;
  std::vector<std::string> warnings;
};

struct GrpoResult {
  int64_t steps = 0;
  int64_t problems = 0;     // that were used
  int64_t too_long = 0;     // whose prompt leaves no room for a response: left out
  double first_reward = 0;  // of the first and the last step of this run
  double last_reward = 0;
  int64_t tokens = 0;
  double seconds = 0;
};

// Trains the adapter of `model` in place. `text_model` runs the same base. output_dir gets metrics.jsonl (a line a
// step), samples.jsonl (a line a response; of other ranks samples-rankN.jsonl), checkpoints, and at the end the adapter
// with its reasoning texts. `cancel`: a step whose rollouts are under way is dropped, one whose update is under way is
// finished; then there is a checkpoint, and kCancelled. kInvalidArgument for options that do not go together, a model
// without LoRA or with dropout; kNumeric names the step.
Result<GrpoResult> TrainGrpo(TrainModel& model, TextModel& text_model, const ReasoningTexts& texts,
                             const std::vector<GrpoProblem>& problems, const GrpoOptions& options, Comm& comm,
                             const std::function<void(const GrpoProgress&)>& on_step = {},
                             const std::atomic<bool>* cancel = nullptr, const Grader& grader = GradeRollout);

}  // namespace pith::train
