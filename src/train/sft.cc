#include "train/sft.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "base/json.h"
#include "train/train_checkpoint.h"
#include "train/train_loop.h"

namespace pith::train {

namespace {

// Where the run is in its data: a row of an epoch. Rows are a pure function of the seed and the epoch.
class RowSource {
 public:
  RowSource(const std::vector<Sample>& samples, const SftOptions& options) : samples_(samples), options_(options) {}

  int64_t epoch() const { return epoch_; }
  int64_t row() const { return row_; }
  int64_t RowsOfEpoch(int64_t epoch) {
    Prepare(epoch);
    return static_cast<int64_t>(rows_.size());
  }
  void Seek(int64_t epoch, int64_t row) {
    epoch_ = epoch;
    row_ = row;
  }
  const std::vector<int64_t>& Next() {
    Prepare(epoch_);
    if (row_ >= static_cast<int64_t>(rows_.size())) {
      ++epoch_;
      row_ = 0;
      Prepare(epoch_);
    }
    return rows_[static_cast<size_t>(row_++)];
  }
  double Epochs() {
    Prepare(epoch_);
    return static_cast<double>(epoch_) + static_cast<double>(row_) / static_cast<double>(rows_.size());
  }

 private:
  void Prepare(int64_t epoch) {
    if (prepared_ == epoch) return;
    rows_ = PackRows(samples_, EpochOrder(static_cast<int64_t>(samples_.size()), options_.seed, epoch),
                     options_.max_length, options_.packing);
    prepared_ = epoch;
  }

  const std::vector<Sample>& samples_;
  const SftOptions& options_;
  int64_t epoch_ = 0;
  int64_t row_ = 0;
  int64_t prepared_ = -1;
  std::vector<std::vector<int64_t>> rows_;
};

// What must be the same on resume, one field a line.
uint64_t HashOf(const std::vector<Sample>& samples) {
  Hash64 hash;
  for (const Sample& sample : samples) {
    hash.Add(sample.tokens.data(), sample.tokens.size() * sizeof(int32_t));
    hash.Add(sample.labels.data(), sample.labels.size() * sizeof(int32_t));
    hash.Add(&sample.response, sizeof(sample.response));
  }
  return hash.value();
}

std::string CanonicalOptions(const TrainModel& model, const std::vector<Sample>& train, const std::vector<Sample>& eval,
                             const SftOptions& o, const Comm& comm) {
  OptionsText text;
  text.Add("samples", static_cast<int64_t>(train.size()));
  text.Add("data_hash", HashOf(train));
  text.Add("eval_samples", static_cast<int64_t>(eval.size()));
  text.Add("eval_hash", HashOf(eval));
  text.Add("eval_steps", o.eval_steps);
  text.Add("ranks", static_cast<int64_t>(comm.size()));
  text.Add("per_device_train_batch_size", o.per_device_train_batch_size);
  text.Add("gradient_accumulation_steps", o.gradient_accumulation_steps);
  text.Add("max_length", o.max_length);
  text.Add("packing", o.packing);
  text.Add("mask_prompt_adapter", o.mask_prompt_adapter);
  text.Add("learning_rate", o.learning_rate);
  text.Add("schedule", static_cast<int64_t>(o.schedule));
  text.Add("warmup_ratio", o.warmup_ratio);
  text.Add("warmup_steps", o.warmup_steps);
  text.Add("num_train_epochs", o.num_train_epochs);
  text.Add("max_steps", o.max_steps);
  text.AddOptimizer(o.adamw, o.max_grad_norm);
  text.Add("seed", o.seed);
  text.AddModel(model);
  return text.text();
}

class Trainer {
 public:
  Trainer(TrainModel& model, const std::vector<Sample>& train, const std::vector<Sample>& eval,
          const SftOptions& options, Comm& comm)
      : model_(model),
        train_(train),
        eval_(eval),
        options_(options),
        comm_(comm),
        masked_(options.mask_prompt_adapter && model.is_lora()),
        optimizer_(model.parameters(), options.adamw),
        rows_(train, options) {}

  Result<SftResult> Run(const std::function<void(const SftProgress&)>& on_step, const std::atomic<bool>* cancel) {
    PITH_RETURN_IF_ERROR(Check());
    CountSteps();
    canonical_ = CanonicalOptions(model_, train_, eval_, options_, comm_);
    std::error_code error;
    std::filesystem::create_directories(options_.output_dir, error);
    if (error) return Error{ErrorCode::kIo, "cannot create '" + options_.output_dir + "': " + error.message()};
    PITH_RETURN_IF_ERROR(options_.resume ? Resume() : RefuseUsedFolder(options_.output_dir));
    PITH_RETURN_IF_ERROR(OpenMetrics());
    const Stopwatch watch;
    const int64_t first_step = step_;
    double loss_sum = 0;
    while (step_ < schedule_.total_steps) {
      cursor_ = {{"epoch", rows_.epoch()}, {"row", rows_.row()}};
      const Result<SftProgress> progress = Step();
      if (!progress.ok()) return SavedBefore(progress.error());
      loss_sum += progress->loss;
      result_.tokens += progress->tokens;
      cursor_ = {{"epoch", rows_.epoch()}, {"row", rows_.row()}};
      if (on_step) on_step(*progress);
      const bool last = step_ == schedule_.total_steps;
      if (!eval_.empty() && (last || (options_.eval_steps > 0 && step_ % options_.eval_steps == 0))) {
        const Status evaluated = Evaluate();
        if (!evaluated.ok()) return SavedBefore(evaluated.error());
      }
      PITH_ASSIGN(const bool stop, OnAnyRank(cancel != nullptr && cancel->load(std::memory_order_relaxed)));
      if (last || stop || (options_.save_steps > 0 && step_ % options_.save_steps == 0) || new_best_) {
        PITH_RETURN_IF_ERROR(Save());
        PITH_RETURN_IF_ERROR(comm_.Barrier());
      }
      if (stop && !last) {
        return Error{ErrorCode::kCancelled, "stopped after step " + std::to_string(step_) + "; --resume goes on"};
      }
    }
    result_.steps = step_;
    if (step_ > first_step) result_.train_loss = loss_sum / static_cast<double>(step_ - first_step);
    result_.seconds = watch.Seconds();
    PITH_RETURN_IF_ERROR(Finish());
    return result_;
  }

 private:
  Status Check() const {
    PITH_RETURN_IF_ERROR(CheckPositive(options_.per_device_train_batch_size, "per-device-train-batch-size"));
    PITH_RETURN_IF_ERROR(CheckPositive(options_.gradient_accumulation_steps, "gradient-accumulation-steps"));
    PITH_RETURN_IF_ERROR(CheckPositive(options_.max_length, "max-length"));
    if (train_.empty()) return Error{ErrorCode::kInvalidArgument, "there are no samples to train on"};
    if (!(options_.learning_rate >= 0) || !std::isfinite(options_.learning_rate)) {
      return Error{ErrorCode::kInvalidArgument, "learning-rate must be a number >= 0"};
    }
    if (options_.max_steps <= 0 && !(options_.num_train_epochs > 0)) {
      return Error{ErrorCode::kInvalidArgument, "num-train-epochs must be above 0"};
    }
    if (masked_) {
      // Only the first response token would be left to learn, and its prediction is the base's.
      const bool any = std::any_of(train_.begin(), train_.end(),
                                   [](const Sample& s) { return static_cast<int64_t>(s.tokens.size()) > s.response; });
      if (!any) {
        return Error{ErrorCode::kInvalidArgument,
                     "no response is longer than one token: under the mask on prompts nothing can be learned"};
      }
    }
    return {};
  }

  int64_t RowsPerStep() const {
    return options_.per_device_train_batch_size * options_.gradient_accumulation_steps * comm_.size();
  }

  void CountSteps() {
    const int64_t rows = rows_.RowsOfEpoch(0);
    int64_t total = options_.max_steps;
    if (total <= 0) {
      total = static_cast<int64_t>(
          std::ceil(options_.num_train_epochs * static_cast<double>(rows) / static_cast<double>(RowsPerStep())));
    }
    schedule_ = MakeSchedule(options_.schedule, total, options_.warmup_ratio, options_.warmup_steps);
  }

  // One optimizer step over RowsPerStep() rows. Every rank draws all rows and computes its own share, so that the mean
  // is over the labels of all of them.
  Result<SftProgress> Step() {
    const Stopwatch watch;
    const int64_t passes = options_.gradient_accumulation_steps;
    SftProgress progress;
    std::vector<TrainBatch> batches(static_cast<size_t>(passes));
    int64_t labels = 0;
    for (int64_t pass = 0; pass < passes; ++pass) {
      for (int rank = 0; rank < comm_.size(); ++rank) {
        for (int64_t i = 0; i < options_.per_device_train_batch_size; ++i) {
          TrainBatch row;
          for (const int64_t index : rows_.Next()) AddLearnable(train_[static_cast<size_t>(index)], &row);
          labels += row.Labels();
          progress.tokens += row.PrefixTokens() + row.LiveTokens();
          if (rank == comm_.rank()) AppendBatch(std::move(row), &batches[static_cast<size_t>(pass)]);
        }
      }
    }
    model_.ZeroGradients();
    std::vector<float> loss(1, 0.0F);
    double loss_sum = 0;
    for (size_t pass = 0; pass < batches.size(); ++pass) {
      const auto n = static_cast<size_t>(batches[pass].Labels());
      if (n == 0) continue;
      const std::vector<float> weights(n, 1.0F / static_cast<float>(labels));
      const uint64_t key =
          (static_cast<uint64_t>(step_) * static_cast<uint64_t>(passes) + pass) * static_cast<uint64_t>(comm_.size()) +
          static_cast<uint64_t>(comm_.rank());
      const auto scores = model_.Accumulate(batches[pass], weights, key);
      if (!scores.ok()) return scores.error().Wrap("step " + std::to_string(step_ + 1));
      for (const float log_prob : scores->log_probs) loss_sum -= static_cast<double>(log_prob);
    }
    if (comm_.size() > 1) {
      loss[0] = static_cast<float>(loss_sum);
      PITH_RETURN_IF_ERROR(comm_.AllReduceSum(loss));
      loss_sum = static_cast<double>(loss[0]);
    }
    progress.labels = labels;
    progress.loss = labels > 0 ? loss_sum / static_cast<double>(labels) : 0.0;
    progress.learning_rate = options_.learning_rate * schedule_.Factor(step_);
    PITH_ASSIGN(progress.gradient_norm,
                UpdateParameters(model_, optimizer_, comm_, progress.learning_rate, options_.max_grad_norm, step_ + 1));
    ++step_;
    progress.step = step_;
    progress.total_steps = schedule_.total_steps;
    progress.epoch = rows_.Epochs();
    progress.seconds = watch.Seconds();
    if (options_.logging_steps > 0 && step_ % options_.logging_steps == 0) {
      Log({{"step", step_},
           {"epoch", progress.epoch},
           {"loss", progress.loss},
           {"grad_norm", progress.gradient_norm},
           {"learning_rate", progress.learning_rate},
           {"tokens", progress.tokens},
           {"labels", progress.labels},
           {"seconds", progress.seconds},
           {"tokens_per_second", static_cast<double>(progress.tokens) / progress.seconds}});
    }
    return progress;
  }

  void AddLearnable(const Sample& sample, TrainBatch* batch) const {
    // Under the mask a response of one token has no label left.
    if (masked_ && static_cast<int64_t>(sample.tokens.size()) <= sample.response) return;
    AddSample(sample, masked_, batch);
  }

  Status Evaluate() {
    PITH_ASSIGN(const double loss, EvaluateLoss(model_, eval_, masked_, options_.max_length));
    result_.eval_loss = loss;
    new_best_ = !result_.best_eval_loss || loss < *result_.best_eval_loss;
    if (new_best_) {
      result_.best_eval_loss = loss;
      result_.best_step = step_;
    }
    Log({{"step", step_}, {"eval_loss", loss}, {"best", new_best_}});
    return {};
  }

  // Of the steps that are done; rank 0 writes.
  Status Save() {
    const bool best_now = std::exchange(new_best_, false);
    if (comm_.rank() != 0 || (saved_step_ == step_ && !best_now)) return {};
    TrainerState state;
    state.step = step_;
    state.cursor = cursor_;
    if (result_.best_eval_loss) {
      state.metrics = {{"best_eval_loss", *result_.best_eval_loss},
                       {"best_step", static_cast<double>(result_.best_step)}};
    }
    state.options = canonical_;
    std::optional<int64_t> best;
    if (result_.best_eval_loss) best = result_.best_step;
    PITH_RETURN_IF_ERROR(SaveCheckpoint(options_.output_dir, model_, optimizer_, state, options_.save_total_limit, best,
                                        options_.base_model));
    saved_step_ = step_;
    return metrics_.status();
  }

  // A step that failed has changed no parameter: what was done before it is not lost.
  Error SavedBefore(const Error& error) {
    const Status saved = step_ > 0 ? Save() : Status();
    return saved.ok() ? error : error.Wrap(saved.error().message);
  }

  Result<bool> OnAnyRank(bool here) {
    if (comm_.size() == 1) return here;
    float votes[1] = {here ? 1.0F : 0.0F};
    PITH_RETURN_IF_ERROR(comm_.AllReduceSum(votes));
    return votes[0] > 0;
  }

  Status Resume() {
    PITH_ASSIGN(const std::vector<int64_t> steps, ListCheckpoints(options_.output_dir));
    if (steps.empty()) return {};
    const std::string dir = options_.output_dir + "/checkpoint-" + std::to_string(steps.back());
    PITH_ASSIGN(const TrainerState state, LoadCheckpoint(dir, canonical_, &model_, &optimizer_));
    step_ = state.step;
    saved_step_ = state.step;
    const auto cursor = [&](const char* name) {
      const auto found = state.cursor.find(name);
      return found == state.cursor.end() ? int64_t{0} : found->second;
    };
    if (cursor("epoch") < 0 || cursor("row") < 0) {
      return Error{ErrorCode::kMalformed, "'" + dir + "' has a data cursor below 0"};
    }
    rows_.Seek(cursor("epoch"), cursor("row"));
    if (const auto best = state.metrics.find("best_eval_loss"); best != state.metrics.end()) {
      result_.best_eval_loss = best->second;
      const auto at = state.metrics.find("best_step");
      result_.best_step = at == state.metrics.end() ? step_ : static_cast<int64_t>(at->second);
    }
    return {};
  }

  Status OpenMetrics() {
    return comm_.rank() == 0 ? metrics_.Open(options_.output_dir + "/metrics.jsonl", step_) : Status();
  }

  void Log(const OrderedJson& json) { metrics_.Write(json.dump()); }

  // The result in output_dir itself: the best checkpoint's weights where there is an evaluation.
  Status Finish() {
    if (comm_.rank() != 0) return {};
    if (result_.best_eval_loss && result_.best_step != step_) {
      const std::string best = options_.output_dir + "/checkpoint-" + std::to_string(result_.best_step);
      PITH_RETURN_IF_ERROR(LoadCheckpoint(best, canonical_, &model_, &optimizer_));
    }
    return model_.is_lora() ? model_.SaveAdapter(options_.output_dir, AdapterStorage::kF32, options_.base_model)
                            : model_.SaveModel(options_.output_dir, DType::kF32);
  }

  TrainModel& model_;
  const std::vector<Sample>& train_;
  const std::vector<Sample>& eval_;
  const SftOptions& options_;
  Comm& comm_;
  bool masked_;
  AdamW optimizer_;
  RowSource rows_;
  Schedule schedule_;
  std::string canonical_;
  StepLog metrics_;
  int64_t step_ = 0;
  int64_t saved_step_ = -1;
  std::map<std::string, int64_t> cursor_;  // in the data, after the steps that are done
  bool new_best_ = false;
  SftResult result_;
};

}  // namespace

Result<SftResult> TrainSft(TrainModel& model, const std::vector<Sample>& train, const std::vector<Sample>& eval,
                           const SftOptions& options, Comm& comm,
                           const std::function<void(const SftProgress&)>& on_step, const std::atomic<bool>* cancel) {
  return Trainer(model, train, eval, options, comm).Run(on_step, cancel);
}

Result<double> EvaluateLoss(TrainModel& model, const std::vector<Sample>& samples, bool masked, int64_t row_length) {
  std::vector<int64_t> order(samples.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  double loss = 0;
  int64_t labels = 0;
  for (const auto& row : PackRows(samples, order, row_length, true)) {
    TrainBatch batch;
    for (const int64_t index : row) {
      const Sample& sample = samples[static_cast<size_t>(index)];
      if (masked && static_cast<int64_t>(sample.tokens.size()) <= sample.response) continue;
      AddSample(sample, masked, &batch);
    }
    if (batch.segments.empty()) continue;
    PITH_ASSIGN(const TokenScores scores, model.Score(batch));
    for (const float log_prob : scores.log_probs) loss -= static_cast<double>(log_prob);
    labels += static_cast<int64_t>(scores.log_probs.size());
  }
  if (labels == 0) return Error{ErrorCode::kInvalidArgument, "the evaluation set has no labels"};
  return loss / static_cast<double>(labels);
}

}  // namespace pith::train
