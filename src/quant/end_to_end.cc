#include "quant/end_to_end.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "base/json.h"
#include "kernels/backward.h"
#include "model/safetensors.h"
#include "quant/distill_loss.h"
#include "train/dataset.h"
#include "train/train_checkpoint.h"
#include "train/train_loop.h"

namespace pith::quant {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kHeadRows = 64;  // of the teacher's logits held at a time by each thread
constexpr const char* kState = "trainer_state.json";
constexpr const char* kTensors = "state.safetensors";

OrderedJson HeldOutJson(const HeldOut& at) {
  return {{"divergence", at.divergence}, {"perplexity", at.perplexity}, {"teacher_perplexity", at.teacher_perplexity}};
}

// Throws what the JSON library throws.
HeldOut HeldOutOf(const Json& json) {
  return {json.at("divergence").get<double>(), json.at("perplexity").get<double>(),
          json.at("teacher_perplexity").get<double>()};
}

class Trainer {
 public:
  Trainer(Student& student, train::TrainModel& model, const Teacher& teacher, const EndToEndOptions& options,
          std::string folder, ThreadPool& pool)
      : student_(student),
        model_(model),
        teacher_(teacher),
        options_(options),
        folder_(std::move(folder)),
        pool_(pool),
        optimizer_(student.parameters(), {}),
        schedule_(train::MakeSchedule(train::ScheduleKind::kCosine, options.steps, options.warmup_ratio, 0)) {}

  Result<EndToEndReport> Run(const std::function<void(const EndToEndProgress&)>& on_step,
                             const std::atomic<bool>* cancel) {
    PITH_RETURN_IF_ERROR(Check());
    Describe();
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) return Error{ErrorCode::kIo, "cannot create '" + folder_ + "': " + error.message()};
    PITH_RETURN_IF_ERROR(Resume());
    PITH_RETURN_IF_ERROR(log_.Open(folder_ + "/metrics.jsonl", step_));
    if (step_ == 0) {
      PITH_RETURN_IF_ERROR(student_.Write(pool_));
      PITH_ASSIGN(report_.before, Evaluate());
      Log(report_.before);
    }
    while (step_ < options_.steps) {
      PITH_ASSIGN(const EndToEndProgress progress, Step());
      if (on_step) on_step(progress);
      const bool stop = cancel != nullptr && cancel->load(std::memory_order_relaxed);
      const bool due = options_.save_steps > 0 && step_ % options_.save_steps == 0;
      if (stop || due || step_ == options_.steps) PITH_RETURN_IF_ERROR(Save());
      if (stop && step_ < options_.steps) {
        return Error{ErrorCode::kCancelled, "stopped after step " + std::to_string(step_) + "; the same call goes on"};
      }
    }
    PITH_RETURN_IF_ERROR(student_.Write(pool_));
    PITH_ASSIGN(report_.after, Evaluate());
    Log(report_.after);
    report_.steps = step_;
    report_.tokens = step_ * options_.windows_per_step * teacher_.window();
    PITH_RETURN_IF_ERROR(log_.status());
    return report_;
  }

 private:
  int64_t TrainWindows() const { return teacher_.windows() - options_.held_out; }

  Status Check() const {
    PITH_RETURN_IF_ERROR(train::CheckPositive(options_.steps, "steps"));
    PITH_RETURN_IF_ERROR(train::CheckPositive(options_.windows_per_step, "batch"));
    PITH_RETURN_IF_ERROR(train::CheckPositive(options_.held_out, "held-out"));
    if (!(options_.learning_rate > 0) || !std::isfinite(options_.learning_rate)) {
      return Error{ErrorCode::kInvalidArgument, "the learning rate must be above 0"};
    }
    if (TrainWindows() < 1) {
      return Error{ErrorCode::kInvalidArgument,
                   "end-to-end training needs a longer text: " + std::to_string(options_.held_out) +
                       " windows are held out, and there are " + std::to_string(teacher_.windows()) + " of " +
                       std::to_string(teacher_.window()) + " tokens"};
    }
    return {};
  }

  void Describe() {
    train::OptionsText text;
    train::Hash64 hash;
    for (int64_t w = 0; w < teacher_.windows(); ++w) {
      const std::vector<int32_t> tokens = teacher_.Tokens(w);
      hash.Add(tokens.data(), tokens.size() * sizeof(int32_t));
    }
    int64_t elements = 0;
    for (const train::Parameter& parameter : student_.parameters()) {
      elements += static_cast<int64_t>(parameter.value.size());
    }
    text.Add("text", hash.value());
    text.Add("window", teacher_.window());
    text.Add("steps", options_.steps);
    text.Add("windows_per_step", options_.windows_per_step);
    text.Add("held_out", options_.held_out);
    text.Add("learning_rate", options_.learning_rate);
    text.Add("warmup_ratio", options_.warmup_ratio);
    text.Add("seed", options_.seed);
    text.Add("trained_elements", elements);
    text.Add("description", options_.description);
    canonical_ = text.text();
  }

  // The window of place `position` in the run: epoch after epoch, each in an order of its own.
  int64_t WindowAt(int64_t position) {
    const int64_t epoch = position / TrainWindows();
    if (epoch != order_epoch_) {
      order_ = train::EpochOrder(TrainWindows(), options_.seed, epoch);
      order_epoch_ = epoch;
    }
    return order_[static_cast<size_t>(position % TrainWindows())];
  }

  Result<EndToEndProgress> Step() {
    const train::Stopwatch watch;
    train::TrainBatch batch;
    std::vector<float> states;
    for (int64_t i = 0; i < options_.windows_per_step; ++i) {
      const int64_t window = WindowAt(step_ * options_.windows_per_step + i);
      train::Segment segment;
      segment.tokens = teacher_.Tokens(window);
      segment.labels.assign(segment.tokens.size(), 0);  // all positions count; the labels themselves do not
      batch.segments.push_back(std::move(segment));
      PITH_ASSIGN(const std::vector<float> more, teacher_.States(window));
      states.insert(states.end(), more.begin(), more.end());
    }
    PITH_RETURN_IF_ERROR(student_.Write(pool_));
    model_.ZeroGradients();
    const auto weight = 1.0F / static_cast<float>(batch.Labels());
    const auto distill = [&](int64_t first, int64_t count, float* logits) {
      const int64_t vocab = teacher_.vocab();
      std::vector<float> teacher_logits(static_cast<size_t>(std::min(count, kHeadRows) * vocab));
      double loss = 0;
      for (int64_t begin = 0; begin < count; begin += kHeadRows) {
        const int64_t rows = std::min(kHeadRows, count - begin);
        teacher_.Logits(states.data() + (first + begin) * teacher_.hidden(), rows, teacher_logits.data(), nullptr);
        for (int64_t r = 0; r < rows; ++r) {
          loss += JensenShannon(teacher_logits.data() + r * vocab, logits + (begin + r) * vocab, vocab, weight);
        }
      }
      return loss * static_cast<double>(weight);
    };
    EndToEndProgress progress;
    const auto loss = model_.AccumulateLogits(batch, distill);
    if (!loss.ok()) return loss.error().Wrap("step " + std::to_string(step_ + 1));
    progress.loss = *loss;
    for (const train::Parameter& parameter : student_.parameters()) {
      std::fill(parameter.gradient.begin(), parameter.gradient.end(), 0.0F);
    }
    PITH_RETURN_IF_ERROR(student_.Collect(pool_));
    const double norm = train::GradientNorm(student_.parameters());
    if (!std::isfinite(norm)) {
      return Error{ErrorCode::kNumeric, "step " + std::to_string(step_ + 1) + ": the gradient is not finite"};
    }
    const double rate = options_.learning_rate * schedule_.Factor(step_);
    optimizer_.Step(rate);
    ++step_;
    progress.step = step_;
    progress.total_steps = options_.steps;
    progress.seconds = watch.Seconds();
    const OrderedJson json = {{"step", step_},
                              {"loss", progress.loss},
                              {"grad_norm", norm},
                              {"learning_rate", rate},
                              {"seconds", progress.seconds},
                              {"tokens_per_second", static_cast<double>(batch.LiveTokens()) / progress.seconds}};
    log_.Write(json.dump());
    return progress;
  }

  // Negative log-likelihood of `next` under logits, which are overwritten.
  static double Surprise(float* logits, int64_t vocab, int32_t next) {
    const float at = logits[next];
    return static_cast<double>(SoftmaxWithStats(logits, vocab, 1.0F).log_sum - at);
  }

  Result<HeldOut> Evaluate() {
    HeldOut held_out;
    const int64_t vocab = teacher_.vocab(), window = teacher_.window();
    double student_surprise = 0, teacher_surprise = 0;
    int64_t positions = 0, scored = 0;
    for (int64_t w = TrainWindows(); w < teacher_.windows(); ++w) {
      train::TrainBatch batch;
      train::Segment segment;
      segment.tokens = teacher_.Tokens(w);
      segment.labels.assign(segment.tokens.size(), train::kNoLabel);
      batch.segments.push_back(segment);
      PITH_ASSIGN(auto outputs, model_.Run(batch, /*adapter=*/false));
      PITH_ASSIGN(const std::vector<float> states, teacher_.States(w));
      std::vector<float> logits(static_cast<size_t>(kHeadRows * vocab));
      for (int64_t begin = 0; begin < window; begin += kHeadRows) {
        const int64_t rows = std::min(kHeadRows, window - begin);
        teacher_.Logits(states.data() + begin * teacher_.hidden(), rows, logits.data(), &pool_);
        for (int64_t r = 0; r < rows; ++r) {
          float* taught = logits.data() + r * vocab;
          float* learned = outputs.logits.data() + (begin + r) * vocab;
          if (begin + r + 1 < window) {
            const int32_t next = segment.tokens[static_cast<size_t>(begin + r + 1)];
            std::vector<float> copy(taught, taught + vocab);
            teacher_surprise += Surprise(copy.data(), vocab, next);
            copy.assign(learned, learned + vocab);
            student_surprise += Surprise(copy.data(), vocab, next);
            ++scored;
          }
          held_out.divergence += JensenShannon(taught, learned, vocab, 1.0F);
          ++positions;
        }
      }
    }
    held_out.divergence /= static_cast<double>(positions);
    held_out.perplexity = std::exp(student_surprise / static_cast<double>(std::max<int64_t>(scored, 1)));
    held_out.teacher_perplexity = std::exp(teacher_surprise / static_cast<double>(std::max<int64_t>(scored, 1)));
    if (!std::isfinite(held_out.divergence)) return Error{ErrorCode::kNumeric, "the held-out loss is not finite"};
    return held_out;
  }

  void Log(const HeldOut& held_out) {
    const OrderedJson json = {{"step", step_},
                              {"held_out_divergence", held_out.divergence},
                              {"held_out_perplexity", held_out.perplexity},
                              {"teacher_perplexity", held_out.teacher_perplexity}};
    log_.Write(json.dump());
  }

  // --- checkpoints: folder/checkpoint-<step>, whole or not there; only the last one is kept ---

  std::string CheckpointDir(int64_t step) const { return folder_ + "/checkpoint-" + std::to_string(step); }

  Status Save() {
    const std::string temporary = folder_ + "/.checkpoint.partial";
    std::error_code error;
    fs::remove_all(temporary, error);
    fs::create_directories(temporary, error);
    if (error) return Error{ErrorCode::kIo, "cannot create '" + temporary + "': " + error.message()};
    std::vector<SafetensorsEntry> entries;
    for (const train::Parameter& parameter : student_.parameters()) {
      entries.push_back({parameter.name, DType::kF32, {static_cast<int64_t>(parameter.value.size())}});
    }
    const auto moments = static_cast<int64_t>(optimizer_.first().size());
    entries.push_back({"optimizer.first", DType::kF32, {moments}});
    entries.push_back({"optimizer.second", DType::kF32, {moments}});
    PITH_ASSIGN(const auto writer, SafetensorsWriter::Create(temporary + "/" + kTensors, entries));
    for (const train::Parameter& parameter : student_.parameters()) {
      PITH_RETURN_IF_ERROR(writer->Write(parameter.name, std::as_bytes(parameter.value)));
    }
    PITH_RETURN_IF_ERROR(writer->Write("optimizer.first", std::as_bytes(std::span(optimizer_.first()))));
    PITH_RETURN_IF_ERROR(writer->Write("optimizer.second", std::as_bytes(std::span(optimizer_.second()))));
    PITH_RETURN_IF_ERROR(writer->Finish());
    const OrderedJson json = {{"version", 1},
                              {"step", step_},
                              {"optimizer_steps", optimizer_.steps()},
                              {"before", HeldOutJson(report_.before)},
                              {"options", canonical_}};
    std::ofstream file(temporary + "/" + kState, std::ios::binary);
    file << json.dump(2) << "\n";
    file.close();
    if (!file) return Error{ErrorCode::kIo, "cannot write '" + temporary + "/" + kState + "'"};
    PITH_RETURN_IF_ERROR(train::MakeDirectoryDurable(temporary, CheckpointDir(step_)));
    if (saved_step_ && *saved_step_ != step_) fs::remove_all(CheckpointDir(*saved_step_), error);
    saved_step_ = step_;
    return log_.status();
  }

  Status Resume() {
    PITH_ASSIGN(const std::vector<int64_t> steps, train::ListCheckpoints(folder_));
    if (steps.empty()) return {};
    const std::string dir = CheckpointDir(steps.back());
    PITH_ASSIGN(const Json json, ReadJsonFile(dir + "/" + kState));
    int64_t optimizer_steps = 0;
    try {
      if (json.at("options").get<std::string>() != canonical_) {
        return Error{ErrorCode::kMismatch, "'" + dir + "' was made with other options or another text"};
      }
      step_ = json.at("step").get<int64_t>();
      optimizer_steps = json.at("optimizer_steps").get<int64_t>();
      report_.before = HeldOutOf(json.at("before"));
    } catch (const Json::exception& exception) {
      return Error{ErrorCode::kMalformed, "'" + dir + "/" + kState + "': " + exception.what()};
    }
    PITH_ASSIGN(const auto file, SafetensorsFile::Open(dir + "/" + kTensors));
    for (const train::Parameter& parameter : student_.parameters()) {
      const Tensor* tensor = file->Find(parameter.name);
      if (tensor == nullptr || tensor->type != DType::kF32 || tensor->data.size() != parameter.value.size_bytes()) {
        return Error{ErrorCode::kMismatch, "'" + dir + "': '" + parameter.name + "' is missing or has another size"};
      }
      std::memcpy(parameter.value.data(), tensor->data.data(), tensor->data.size());
    }
    const Tensor *first = file->Find("optimizer.first"), *second = file->Find("optimizer.second");
    if (first == nullptr || second == nullptr) {
      return Error{ErrorCode::kMalformed, "'" + dir + "' lacks the optimizer's state"};
    }
    PITH_ASSIGN(auto first_values, ToFloats(*first));
    PITH_ASSIGN(auto second_values, ToFloats(*second));
    PITH_RETURN_IF_ERROR(optimizer_.Restore(optimizer_steps, std::move(first_values), std::move(second_values)));
    saved_step_ = step_;
    report_.resumed = true;
    return {};
  }

  Student& student_;
  train::TrainModel& model_;
  const Teacher& teacher_;
  const EndToEndOptions& options_;
  std::string folder_;
  ThreadPool& pool_;
  train::AdamW optimizer_;
  train::Schedule schedule_;
  train::StepLog log_;
  std::string canonical_;
  std::vector<int64_t> order_;
  int64_t order_epoch_ = -1;
  int64_t step_ = 0;
  std::optional<int64_t> saved_step_;
  EndToEndReport report_;
};

}  // namespace

std::string EndToEndReportText(const EndToEndReport& report) {
  const OrderedJson json = {{"steps", report.steps},
                            {"tokens", report.tokens},
                            {"held_out_before", HeldOutJson(report.before)},
                            {"held_out_after", HeldOutJson(report.after)}};
  return json.dump(2) + "\n";
}

Result<EndToEndReport> ReadEndToEndReport(const std::string& path) {
  PITH_ASSIGN(const Json json, ReadJsonFile(path));
  EndToEndReport report;
  try {
    report.steps = json.at("steps").get<int64_t>();
    report.tokens = json.at("tokens").get<int64_t>();
    report.before = HeldOutOf(json.at("held_out_before"));
    report.after = HeldOutOf(json.at("held_out_after"));
  } catch (const Json::exception& exception) {
    return Error{ErrorCode::kMalformed, "'" + path + "': " + exception.what()};
  }
  return report;
}

Result<EndToEndReport> TrainEndToEnd(Student& student, train::TrainModel& model, const Teacher& teacher,
                                     const EndToEndOptions& options, const std::string& folder, ThreadPool& pool,
                                     const std::function<void(const EndToEndProgress&)>& on_step,
                                     const std::atomic<bool>* cancel) {
  if (student.parameters().empty()) {
    return Error{ErrorCode::kInvalidArgument, "there is nothing to train"};
  }
  return Trainer(student, model, teacher, options, folder, pool).Run(on_step, cancel);
}

}  // namespace pith::quant
