#include "train/grpo.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/json.h"
#include "base/random.h"
#include "engine/sampler.h"
#include "train/dataset.h"
#include "train/grpo_watch.h"
#include "train/train_checkpoint.h"
#include "train/train_loop.h"

namespace pith::train {

namespace {

constexpr uint64_t kRolloutStream = 0x726F6C6C6F757400ULL;  // "rollout"

Error Invalid(const std::string& message) { return {ErrorCode::kInvalidArgument, message}; }

// Numbers that are added up over ranks.
class Sums {
 public:
  double& operator[](const std::string& name) { return values_[name]; }
  double at(const std::string& name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? 0.0 : found->second;
  }
  // Mean of `sum` per `count`; nothing when there are none.
  std::optional<double> Mean(const std::string& sum, const std::string& count) const {
    return at(count) > 0 ? std::optional(at(sum) / at(count)) : std::nullopt;
  }
  // All ranks must have the same names. Counts stay exact up to 2^24.
  Status Reduce(Comm& comm) {
    if (comm.size() == 1) return {};
    std::vector<float> flat;
    for (const auto& [name, value] : values_) flat.push_back(static_cast<float>(value));
    PITH_RETURN_IF_ERROR(comm.AllReduceSum(flat));
    size_t at = 0;
    for (auto& [name, value] : values_) value = static_cast<double>(flat[at++]);
    return {};
  }

 private:
  std::map<std::string, double> values_;
};

// A prompt of a step, and what became of it.
struct Group {
  uint64_t position = 0;  // in the order of the run
  const GrpoProblem* problem = nullptr;
  int64_t budget = 0;
  std::vector<Rollout> rollouts;
  std::vector<Verdict> verdicts;
  std::vector<std::optional<double>> rewards;
  GroupAdvantages advantages;
};

// A response that the update learns from.
struct Learned {
  const Rollout* rollout = nullptr;
  double advantage = 0;
  double weight = 0;  // of each token
  std::vector<float> old_log_probs;
  std::vector<float> reference;
  std::vector<float> importance;
};

struct PassOfStep {
  TrainBatch batch;
  std::vector<Learned*> samples;
};

class Trainer {
 public:
  Trainer(TrainModel& model, TextModel& text_model, const ReasoningTexts& texts,
          const std::vector<GrpoProblem>& problems, const GrpoOptions& options, Comm& comm, const Grader& grader)
      : model_(model),
        text_model_(text_model),
        texts_(texts),
        problems_(problems),
        options_(options),
        comm_(comm),
        grader_(grader),
        optimizer_(model.parameters(), options.adamw),
        watch_(options.stuck_steps) {}

  Result<GrpoResult> Run(const std::function<void(const GrpoProgress&)>& on_step, const std::atomic<bool>* cancel) {
    PITH_RETURN_IF_ERROR(Check());
    PITH_RETURN_IF_ERROR(ChooseProblems());
    CountSteps();
    // Before a checkpoint is put in place: the adapter that the run starts from.
    reference_ = model_.CopyParameters();
    canonical_ = CanonicalOptions();
    PITH_ASSIGN(policy_, RolloutPolicy::Create(text_model_, texts_));
    std::error_code error;
    std::filesystem::create_directories(options_.output_dir, error);
    if (error) return Error{ErrorCode::kIo, "cannot create '" + options_.output_dir + "': " + error.message()};
    PITH_RETURN_IF_ERROR(options_.resume ? Resume() : RefuseUsedFolder(options_.output_dir));
    PITH_RETURN_IF_ERROR(OpenLogs());
    const Stopwatch watch;
    const int64_t first_step = step_;
    while (step_ < schedule_.total_steps) {
      const auto progress = Step(cancel);
      if (!progress.ok()) {
        if (progress.error().code == ErrorCode::kCancelled) {
          PITH_RETURN_IF_ERROR(Save());
          return Stopped();
        }
        // What was done before a step that failed is not lost, where that step has changed nothing and no other rank is
        // waiting elsewhere.
        if (comm_.size() == 1 && options_.num_iterations == 1 && step_ > first_step) (void)Save();
        return progress.error();
      }
      if (step_ == first_step + 1) result_.first_reward = progress->reward;
      result_.last_reward = progress->reward;
      result_.tokens += progress->tokens;
      if (on_step) on_step(*progress);
      const bool last = step_ == schedule_.total_steps;
      const bool stuck = options_.stop_when_stuck && watch_.stuck();
      if (last || stuck || (options_.save_steps > 0 && step_ % options_.save_steps == 0)) {
        PITH_RETURN_IF_ERROR(Save());
      }
      if (stuck && !last) {
        return Error{ErrorCode::kInvalidArgument,
                     "stopped after step " + std::to_string(step_) + ": nothing is learned; the warnings say why"};
      }
    }
    result_.steps = step_;
    result_.seconds = watch.Seconds();
    PITH_RETURN_IF_ERROR(Finish());
    return result_;
  }

 private:
  Status Check() const {
    const GrpoOptions& o = options_;
    PITH_RETURN_IF_ERROR(CheckPositive(o.per_device_train_batch_size, "per-device-train-batch-size"));
    PITH_RETURN_IF_ERROR(CheckPositive(o.gradient_accumulation_steps, "gradient-accumulation-steps"));
    PITH_RETURN_IF_ERROR(CheckPositive(o.num_iterations, "num-iterations"));
    if (o.num_generations < 2) return Invalid("num-generations must be at least 2: a group compares its responses");
    if (ResponsesPerRank() % o.num_generations != 0) {
      return Invalid("per-device-train-batch-size times gradient-accumulation-steps (" +
                     std::to_string(ResponsesPerRank()) + ") is no multiple of num-generations (" +
                     std::to_string(o.num_generations) + ")");
    }
    if (!(o.temperature > 0)) return Invalid("the temperature must be above 0: a group needs different responses");
    PITH_RETURN_IF_ERROR(ValidateSampling({.temperature = o.temperature}));
    PITH_RETURN_IF_ERROR(CheckGrpoLoss(o.loss));
    PITH_RETURN_IF_ERROR(CheckBudgetWindow(o.window));
    if (o.budgets.empty()) return Invalid("there are no budgets");
    for (const int64_t budget : o.budgets) PITH_RETURN_IF_ERROR(CheckPositive(budget, "a budget"));
    if (!(o.rollout_importance_cap >= 0)) return Invalid("rollout-importance-cap must be a number >= 0");
    if (!(o.learning_rate >= 0) || !std::isfinite(o.learning_rate)) {
      return Invalid("learning-rate must be a number >= 0");
    }
    if (o.max_steps <= 0 && !(o.num_train_epochs > 0)) return Invalid("num-train-epochs must be above 0");
    if (problems_.empty()) return Invalid("there are no problems to train on");
    if (!model_.is_lora()) return Invalid("GRPO trains an adapter: the model has none");
    if (model_.options().lora->dropout > 0) {
      return Invalid("GRPO needs dropout 0: the rollouts come from the adapter without it");
    }
    return {};
  }

  // Those whose prompt leaves room for a whole response.
  Status ChooseProblems() {
    const int64_t context = text_model_.engine().context();
    const int64_t largest = *std::max_element(options_.budgets.begin(), options_.budgets.end());
    for (const GrpoProblem& problem : problems_) {
      const auto prompts = RenderPrompts(text_model_, texts_, problem.messages, largest);
      if (!prompts.ok()) return prompts.error().Wrap("problem '" + problem.id + "'");
      const auto length = static_cast<int64_t>(prompts->reason.size());
      if (length + options_.loss.max_completion_length <= context) usable_.push_back(&problem);
    }
    result_.problems = static_cast<int64_t>(usable_.size());
    result_.too_long = static_cast<int64_t>(problems_.size() - usable_.size());
    if (usable_.empty()) {
      return Invalid("no prompt leaves room for " + std::to_string(options_.loss.max_completion_length) +
                     " tokens in the context of " + std::to_string(context));
    }
    return {};
  }

  int64_t ResponsesPerRank() const {
    return options_.per_device_train_batch_size * options_.gradient_accumulation_steps;
  }
  int64_t PromptsPerRank() const { return ResponsesPerRank() / options_.num_generations; }
  int64_t PromptsPerStep() const { return PromptsPerRank() * comm_.size(); }
  double Epochs() const { return static_cast<double>(step_ * PromptsPerStep()) / static_cast<double>(usable_.size()); }

  void CountSteps() {
    int64_t total = options_.max_steps;
    if (total <= 0) {
      total = static_cast<int64_t>(std::ceil(options_.num_train_epochs * static_cast<double>(usable_.size()) /
                                             static_cast<double>(PromptsPerStep())));
    }
    schedule_ = MakeSchedule(options_.schedule, total, options_.warmup_ratio, options_.warmup_steps);
  }

  std::string CanonicalOptions() const {
    const GrpoOptions& o = options_;
    Hash64 data;
    for (const GrpoProblem* problem : usable_) {
      for (const ChatMessage& message : problem->messages) {
        data.Add(message.role);
        data.Add(message.content);
      }
      data.Add(problem->answer);
    }
    Hash64 start;
    start.Add(reference_.data(), reference_.size() * sizeof(float));
    OptionsText text;
    text.Add("problems", static_cast<int64_t>(usable_.size()));
    text.Add("data_hash", data.value());
    text.Add("start_adapter_hash", start.value());
    text.Add("ranks", static_cast<int64_t>(comm_.size()));
    text.Add("per_device_train_batch_size", o.per_device_train_batch_size);
    text.Add("gradient_accumulation_steps", o.gradient_accumulation_steps);
    text.Add("num_generations", o.num_generations);
    text.Add("temperature", o.temperature);
    text.Add("loss_type", GrpoLossTypeName(o.loss.type));
    text.Add("clip_epsilon", o.loss.epsilon);
    text.Add("clip_epsilon_high", o.loss.high());
    text.Add("beta", o.loss.beta);
    text.Add("max_completion_length", o.loss.max_completion_length);
    text.Add("scale_rewards", ScaleRewardsName(o.scale_rewards));
    text.Add("num_iterations", o.num_iterations);
    text.Add("mask_truncated_completions", o.mask_truncated_completions);
    text.Add("keep_zero_std_groups", o.keep_zero_std_groups);
    text.Add("rollout_importance_cap", o.rollout_importance_cap);
    for (const int64_t budget : o.budgets) text.Add("budget", budget);
    text.Add("budget_window", o.window.half_width);
    text.Add("budget_floor", o.window.floor);
    text.Add("cap_at_window", o.cap_at_window);
    text.Add("reasoning_texts", WriteReasoningTexts(texts_));
    text.Add("num_train_epochs", o.num_train_epochs);
    text.Add("max_steps", o.max_steps);
    text.Add("learning_rate", o.learning_rate);
    text.Add("schedule", static_cast<int64_t>(o.schedule));
    text.Add("warmup_ratio", o.warmup_ratio);
    text.Add("warmup_steps", o.warmup_steps);
    text.AddOptimizer(o.adamw, o.max_grad_norm);
    text.Add("seed", o.seed);
    text.Add("kv", static_cast<int64_t>(text_model_.engine().options().kv));
    text.AddModel(model_);
    return text.text();
  }

  // --------------------------------------------------------------------------------------------------- one step

  // True on every rank when it is true on one of them.
  Result<bool> OnAnyRank(bool here) {
    if (comm_.size() == 1) return here;
    std::vector<float> votes(1, here ? 1.0F : 0.0F);
    PITH_RETURN_IF_ERROR(comm_.AllReduceSum(votes));
    return votes[0] > 0;
  }

  static Error Cancelled() { return {ErrorCode::kCancelled, "stopped"}; }
  Error Stopped() const {
    return {ErrorCode::kCancelled, "stopped after step " + std::to_string(step_) + "; --resume goes on"};
  }
  Error AtStep(const Error& error) const { return error.Wrap("step " + std::to_string(step_ + 1)); }

  Result<GrpoProgress> Step(const std::atomic<bool>* cancel) {
    const Stopwatch whole;
    GrpoProgress progress;
    PITH_ASSIGN(std::vector<Group> groups, Generate(cancel));
    progress.rollout_seconds = whole.Seconds();
    Sums sums = Reward(&groups);

    std::vector<Learned> learned = Choose(groups);
    sums["samples"] = static_cast<double>(learned.size());
    for (const Learned& sample : learned) sums["labels"] += static_cast<double>(sample.rollout->labels());
    PITH_RETURN_IF_ERROR(sums.Reduce(comm_));
    progress.samples = std::llround(sums.at("samples"));
    progress.labels = std::llround(sums.at("labels"));
    progress.learning_rate = options_.learning_rate * schedule_.Factor(step_);
    Sums learning;
    if (progress.samples > 0) {
      const StepCounts counts{progress.samples, progress.labels};
      for (Learned& sample : learned) sample.weight = TokenWeight(options_.loss, counts, sample.rollout->labels());
      std::vector<PassOfStep> passes = Passes(&learned);
      const Stopwatch scoring;
      if (options_.loss.beta > 0) PITH_RETURN_IF_ERROR(ScoreReference(&passes));
      progress.score_seconds = scoring.Seconds();
      const Stopwatch updating;
      PITH_RETURN_IF_ERROR(Update(&passes, progress.learning_rate, &progress, &learning));
      progress.update_seconds = updating.Seconds();
    }
    ++step_;
    Describe(sums, learning, &progress);
    progress.seconds = whole.Seconds();
    Log(groups, progress);
    return progress;
  }

  Result<std::vector<Group>> Generate(const std::atomic<bool>* cancel) {
    PITH_RETURN_IF_ERROR(policy_->Take(model_));
    std::vector<Group> groups(static_cast<size_t>(PromptsPerRank()));
    std::vector<RolloutPrompt> prompts(groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      Group& group = groups[i];
      group.position = static_cast<uint64_t>(step_ * PromptsPerStep() + comm_.rank() * PromptsPerRank()) + i;
      group.problem = &ProblemAt(group.position);
      group.budget = DrawBudget(options_.budgets, options_.seed, group.position);
      PITH_ASSIGN(Prompts rendered, RenderPrompts(text_model_, texts_, group.problem->messages, group.budget));
      prompts[i].tokens = std::move(rendered.reason);
      prompts[i].cap = CapOf(group.budget);
      prompts[i].seed = RandomBits(options_.seed, kRolloutStream, group.position);
    }
    RolloutOptions rollout;
    rollout.generations = options_.num_generations;
    rollout.temperature = options_.temperature;
    rollout.max_streams = options_.max_streams;
    rollout.cancel = cancel;
    auto rollouts = GenerateRollouts(policy_->model(), prompts, rollout);
    if (!rollouts.ok() && rollouts.error().code != ErrorCode::kCancelled) return AtStep(rollouts.error());
    PITH_ASSIGN(const bool stop, OnAnyRank(!rollouts.ok()));
    if (stop) return Cancelled();
    for (size_t i = 0; i < groups.size(); ++i) groups[i].rollouts = std::move((*rollouts)[i]);
    return groups;
  }

  const GrpoProblem& ProblemAt(uint64_t position) {
    const auto epoch = static_cast<int64_t>(position / usable_.size());
    if (epoch != ordered_epoch_) {
      order_ = EpochOrder(static_cast<int64_t>(usable_.size()), options_.seed, epoch);
      ordered_epoch_ = epoch;
    }
    return *usable_[static_cast<size_t>(order_[position % usable_.size()])];
  }

  int64_t CapOf(int64_t budget) const {
    const int64_t most = options_.loss.max_completion_length;
    if (!options_.cap_at_window) return most;
    // The first length beyond the window.
    const double end = (1.0 + options_.window.half_width) * static_cast<double>(budget);
    return std::min(most, static_cast<int64_t>(std::floor(end)) + 1);
  }

  // Grades all, and computes rewards and advantages.
  Sums Reward(std::vector<Group>* groups) {
    Sums sums;
    for (const char* name : {"responses", "valid", "right", "reward", "deviation", "groups", "zero_std", "length",
                             "truncated", "thought", "answered", "repetition", "samples", "labels"}) {
      sums[name] = 0;
    }
    for (int rank = 0; rank < comm_.size(); ++rank) sums[LongestOf(rank)] = 0;
    double& longest = sums[LongestOf(comm_.rank())];
    for (Group& group : *groups) {
      for (const Rollout& rollout : group.rollouts) {
        group.verdicts.push_back(grader_(*group.problem, rollout));
        group.rewards.push_back(BudgetReward(group.verdicts.back(), rollout.length, group.budget, options_.window));
        sums["responses"] += 1;
        sums["valid"] += group.rewards.back() ? 1 : 0;
        sums["right"] += group.verdicts.back() == Verdict::kEqual ? 1 : 0;
        sums["reward"] += group.rewards.back().value_or(0);
        sums["length"] += static_cast<double>(rollout.length);
        sums["truncated"] += rollout.truncated ? 1 : 0;
        sums["thought"] += static_cast<double>(rollout.reasoning_tokens);
        sums["answered"] += static_cast<double>(rollout.answer_tokens());
        sums["repetition"] += rollout.repetition;
        longest = std::max(longest, static_cast<double>(rollout.length));
      }
      group.advantages = ComputeAdvantages(group.rewards, options_.scale_rewards);
      sums["groups"] += 1;
      sums["deviation"] += group.advantages.deviation;
      sums["zero_std"] += group.advantages.informative ? 0 : 1;
    }
    return sums;
  }

  static std::string LongestOf(int rank) { return "longest" + std::to_string(rank); }

  // The one mask of the update: a response is in every sum and count of the loss, or in none.
  std::vector<Learned> Choose(const std::vector<Group>& groups) const {
    std::vector<Learned> learned;
    for (const Group& group : groups) {
      if (!group.advantages.informative && (!options_.keep_zero_std_groups || group.advantages.valid < 2)) continue;
      for (size_t i = 0; i < group.rollouts.size(); ++i) {
        const Rollout& rollout = group.rollouts[i];
        if (!group.rewards[i] || rollout.labels() == 0) continue;
        if (options_.mask_truncated_completions && rollout.truncated) continue;
        Learned sample;
        sample.rollout = &rollout;
        sample.advantage = group.advantages.advantages[i];
        learned.push_back(std::move(sample));
      }
    }
    return learned;
  }

  std::vector<PassOfStep> Passes(std::vector<Learned>* learned) const {
    std::vector<PassOfStep> passes;
    for (Learned& sample : *learned) {
      if (passes.empty() ||
          static_cast<int64_t>(passes.back().samples.size()) == options_.per_device_train_batch_size) {
        passes.emplace_back();
        passes.back().batch.temperature = static_cast<float>(options_.temperature);
      }
      AddSample(sample.rollout->sample, true, &passes.back().batch);
      passes.back().samples.push_back(&sample);
    }
    return passes;
  }

  // Log-probabilities under the adapter that the run started from.
  Status ScoreReference(std::vector<PassOfStep>* passes) {
    const std::vector<float> policy = model_.CopyParameters();
    PITH_RETURN_IF_ERROR(model_.SetParameters(reference_));
    Status status;
    for (PassOfStep& pass : *passes) {
      const auto scores = model_.Score(pass.batch);
      if (!scores.ok()) {
        status = AtStep(scores.error());
        break;
      }
      auto at = scores->log_probs.begin();
      for (Learned* sample : pass.samples) {
        sample->reference.assign(at, at + sample->rollout->labels());
        at += sample->rollout->labels();
      }
    }
    PITH_RETURN_IF_ERROR(model_.SetParameters(policy));
    return status;
  }

  Status Update(std::vector<PassOfStep>* passes, double learning_rate, GrpoProgress* progress, Sums* sums) {
    for (const char* name : {"loss", "kl", "entropy", "difference", "clipped"}) (*sums)[name] = 0;
    for (int64_t iteration = 0; iteration < options_.num_iterations; ++iteration) {
      model_.ZeroGradients();
      for (PassOfStep& pass : *passes) {
        const auto gradient = [&](const TokenScores& scores) -> Result<std::vector<float>> {
          return LossGradient(scores, iteration, &pass, sums);
        };
        const auto scores = model_.AccumulateScores(pass.batch, gradient);
        if (!scores.ok()) return AtStep(scores.error());
        if (iteration > 0) continue;
        for (const float entropy : scores->entropies) (*sums)["entropy"] += static_cast<double>(entropy);
      }
      PITH_ASSIGN(const double norm,
                  UpdateParameters(model_, optimizer_, comm_, learning_rate, options_.max_grad_norm, step_ + 1));
      if (iteration == 0) progress->gradient_norm = norm;
    }
    return sums->Reduce(comm_);
  }

  // d loss / d log p of the labels of a pass. On the first iteration the policy is the one of the rollouts: its
  // log-probabilities are the old ones of this and of later iterations.
  Result<std::vector<float>> LossGradient(const TokenScores& scores, int64_t iteration, PassOfStep* pass,
                                          Sums* sums) const {
    std::vector<float> gradient;
    std::span<const float> rest = scores.log_probs;
    for (Learned* sample : pass->samples) {
      const auto count = static_cast<size_t>(sample->rollout->labels());
      const auto log_probs = rest.first(count);
      rest = rest.subspan(count);
      if (iteration == 0) {
        sample->old_log_probs.assign(log_probs.begin(), log_probs.end());
        CompareWithEngine(sample, sums);
      }
      const SampleLoss loss = ComputeSampleLoss({.log_probs = log_probs,
                                                 .old_log_probs = sample->old_log_probs,
                                                 .reference = sample->reference,
                                                 .importance = sample->importance,
                                                 .advantage = sample->advantage},
                                                options_.loss, sample->weight);
      if (!std::isfinite(loss.loss)) return Error{ErrorCode::kNumeric, "the loss is not finite"};
      (*sums)["clipped"] += static_cast<double>(loss.clipped);
      if (iteration == 0) {
        (*sums)["loss"] += loss.loss;
        (*sums)["kl"] += loss.kl_sum;
      }
      gradient.insert(gradient.end(), loss.gradient.begin(), loss.gradient.end());
    }
    return gradient;
  }

  // The engine and the trainer round differently; where the engine drew what the trainer finds unlikely, the weight
  // corrects for it, bounded on the other side.
  void CompareWithEngine(Learned* sample, Sums* sums) const {
    const double cap = options_.rollout_importance_cap;
    for (size_t t = 0; t < sample->old_log_probs.size(); ++t) {
      const double difference =
          static_cast<double>(sample->old_log_probs[t]) - static_cast<double>(sample->rollout->log_probs[t]);
      (*sums)["difference"] += std::abs(difference);
      if (cap > 0)
        sample->importance.push_back(static_cast<float>(std::min(std::exp(std::min(difference, 80.0)), cap)));
    }
  }

  // ------------------------------------------------------------------------------------------------- reporting

  void Describe(const Sums& sums, const Sums& learning, GrpoProgress* progress) {
    GrpoProgress& p = *progress;
    p.step = step_;
    p.total_steps = schedule_.total_steps;
    p.epoch = Epochs();
    p.reward = sums.Mean("reward", "valid").value_or(0);
    p.reward_std = sums.Mean("deviation", "groups").value_or(0);
    p.accuracy = sums.Mean("right", "valid").value_or(0);
    p.valid = sums.Mean("valid", "responses").value_or(0);
    p.mean_length = sums.Mean("length", "responses").value_or(0);
    for (int rank = 0; rank < comm_.size(); ++rank) {
      p.max_length = std::max<int64_t>(p.max_length, std::llround(sums.at(LongestOf(rank))));
    }
    p.truncated = sums.Mean("truncated", "responses").value_or(0);
    p.answer_think_ratio = sums.Mean("answered", "thought").value_or(0);
    p.repetition = sums.Mean("repetition", "responses").value_or(0);
    p.frac_reward_zero_std = sums.Mean("zero_std", "groups").value_or(0);
    p.tokens = std::llround(sums.at("length"));
    if (p.samples > 0) {
      const auto labels = static_cast<double>(p.labels);
      p.loss = learning.at("loss");
      if (options_.loss.beta > 0) p.kl = learning.at("kl") / labels;
      p.entropy = learning.at("entropy") / labels;
      p.rollout_difference = learning.at("difference") / labels;
      p.clip_ratio = learning.at("clipped") / (labels * static_cast<double>(options_.num_iterations));
    }
    p.warnings = watch_.Take({.zero_std = p.frac_reward_zero_std,
                              .truncated = p.truncated,
                              .accuracy = p.accuracy,
                              .repetition = p.repetition,
                              .difference = p.rollout_difference,
                              .entropy = p.entropy,
                              .vocab = model_.config().vocab});
  }

  void Log(const std::vector<Group>& groups, const GrpoProgress& p) {
    for (const Group& group : groups) LogSamples(group);
    OrderedJson json = {{"step", p.step},
                        {"epoch", p.epoch},
                        {"reward", p.reward},
                        {"reward_std", p.reward_std},
                        {"accuracy", p.accuracy},
                        {"valid", p.valid},
                        {"mean_length", p.mean_length},
                        {"max_length", p.max_length},
                        {"truncated", p.truncated},
                        {"answer_think_ratio", p.answer_think_ratio},
                        {"repetition", p.repetition},
                        {"frac_reward_zero_std", p.frac_reward_zero_std},
                        {"samples", p.samples},
                        {"labels", p.labels}};
    const auto add = [&json](const char* name, const std::optional<double>& value) {
      if (value) json[name] = *value;
    };
    add("loss", p.loss);
    add("kl", p.kl);
    add("entropy", p.entropy);
    add("grad_norm", p.gradient_norm);
    add("clip_ratio", p.clip_ratio);
    add("rollout_logp_difference", p.rollout_difference);
    json["learning_rate"] = p.learning_rate;
    json["tokens"] = p.tokens;
    if (!p.warnings.empty()) json["warnings"] = p.warnings;
    json["rollout_seconds"] = p.rollout_seconds;
    json["score_seconds"] = p.score_seconds;
    json["update_seconds"] = p.update_seconds;
    json["seconds"] = p.seconds;
    metrics_.Write(json.dump());
  }

  void LogSamples(const Group& group) {
    for (size_t i = 0; i < group.rollouts.size(); ++i) {
      const Rollout& rollout = group.rollouts[i];
      const auto& tokens = rollout.sample.tokens;
      const auto prompt = std::span(tokens).first(static_cast<size_t>(rollout.sample.response));
      OrderedJson json = {{"step", step_},
                          {"position", group.position},
                          {"id", group.problem->id},
                          {"budget", group.budget},
                          {"length", rollout.length},
                          {"reasoning_tokens", rollout.reasoning_tokens},
                          {"truncated", rollout.truncated},
                          {"verdict", VerdictName(group.verdicts[i])},
                          {"answer", rollout.answer ? OrderedJson(rollout.answer->text) : OrderedJson()},
                          {"reward", group.rewards[i] ? OrderedJson(*group.rewards[i]) : OrderedJson()},
                          {"advantage", group.advantages.advantages[i]},
                          {"prompt", text_model_.tokenizer()->Decode(prompt, false)},
                          {"completion", rollout.completion}};
      samples_.Write(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    }
  }

  // ------------------------------------------------------------------------------------------------------ files

  Status OpenLogs() {
    const std::string& out = options_.output_dir;
    if (comm_.rank() != 0) return samples_.Open(out + "/samples-rank" + std::to_string(comm_.rank()) + ".jsonl", step_);
    PITH_RETURN_IF_ERROR(metrics_.Open(out + "/metrics.jsonl", step_));
    return samples_.Open(out + "/samples.jsonl", step_);
  }

  Status Save() {
    if (saved_step_ == step_) return {};
    saved_step_ = step_;
    if (comm_.rank() != 0) return comm_.Barrier();
    TrainerState state;
    state.step = step_;
    state.cursor = watch_.counts();
    state.options = canonical_;
    state.files = {{kReasoningFile, WriteReasoningTexts(texts_)}};
    PITH_RETURN_IF_ERROR(SaveCheckpoint(options_.output_dir, model_, optimizer_, state, options_.save_total_limit,
                                        std::nullopt, options_.base_model));
    PITH_RETURN_IF_ERROR(metrics_.status());
    PITH_RETURN_IF_ERROR(samples_.status());
    return comm_.Barrier();
  }

  Status Resume() {
    PITH_ASSIGN(const std::vector<int64_t> steps, ListCheckpoints(options_.output_dir));
    if (steps.empty()) return {};
    const std::string dir = options_.output_dir + "/checkpoint-" + std::to_string(steps.back());
    PITH_ASSIGN(const TrainerState state, LoadCheckpoint(dir, canonical_, &model_, &optimizer_));
    if (state.step < 0) return Error{ErrorCode::kMalformed, "'" + dir + "' has a step below 0"};
    step_ = state.step;
    saved_step_ = state.step;
    watch_.Restore(state.cursor);
    return {};
  }

  Status Finish() {
    if (comm_.rank() != 0) return {};
    PITH_RETURN_IF_ERROR(model_.SaveAdapter(options_.output_dir, AdapterStorage::kF32, options_.base_model));
    const std::string path = options_.output_dir + "/" + kReasoningFile;
    std::ofstream file(path, std::ios::binary);
    file << WriteReasoningTexts(texts_);
    file.close();
    return file ? Status() : Status(Error{ErrorCode::kIo, "cannot write '" + path + "'"});
  }

  TrainModel& model_;
  TextModel& text_model_;
  const ReasoningTexts& texts_;
  const std::vector<GrpoProblem>& problems_;
  const GrpoOptions& options_;
  Comm& comm_;
  const Grader& grader_;
  AdamW optimizer_;
  GrpoWatch watch_;
  std::vector<const GrpoProblem*> usable_;
  Schedule schedule_;
  std::vector<float> reference_;
  std::string canonical_;
  std::unique_ptr<RolloutPolicy> policy_;
  std::vector<int64_t> order_;  // of the problems, in `ordered_epoch_`
  int64_t ordered_epoch_ = -1;
  StepLog metrics_;
  StepLog samples_;
  int64_t step_ = 0;
  int64_t saved_step_ = -1;
  GrpoResult result_;
};

}  // namespace

Verdict GradeRollout(const GrpoProblem& problem, const Rollout& rollout) {
  if (!rollout.answer) return Verdict::kNoAnswer;
  const auto key = ExtractAnswer(problem.answer);
  if (!key) return Verdict::kTooHard;  // a key that cannot be read tells nothing about the response
  return CompareAnswers(key->text, rollout.answer->text);
}

Result<GrpoResult> TrainGrpo(TrainModel& model, TextModel& text_model, const ReasoningTexts& texts,
                             const std::vector<GrpoProblem>& problems, const GrpoOptions& options, Comm& comm,
                             const std::function<void(const GrpoProgress&)>& on_step, const std::atomic<bool>* cancel,
                             const Grader& grader) {
  return Trainer(model, text_model, texts, problems, options, comm, grader).Run(on_step, cancel);
}

}  // namespace pith::train
