#include "train/train_loop.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/durable_file.h"
#include "base/json.h"

namespace pith::train {

Status StepLog::Open(const std::string& path, int64_t last_step) {
  std::string kept;
  if (last_step > 0) {
    std::ifstream before(path);
    std::string line;
    while (std::getline(before, line)) {
      const auto json = ParseJson(line, path);
      if (json.ok() && json->is_object() && json->contains("step") && (*json)["step"].is_number_integer() &&
          (*json)["step"].get<int64_t>() <= last_step) {
        kept += line + "\n";
      }
    }
  }
  path_ = path;
  PITH_RETURN_IF_ERROR(WriteFileDurably(path, kept));
  file_.open(path, std::ios::app);
  return status();
}

Status StepLog::status() const {
  if (path_.empty() || file_) return {};
  return Error{ErrorCode::kIo, "cannot write '" + path_ + "'"};
}

void StepLog::Write(const std::string& json) {
  if (file_.is_open()) file_ << json << "\n" << std::flush;
}

Status CheckPositive(int64_t value, const char* option) {
  if (value >= 1) return {};
  return Error{ErrorCode::kInvalidArgument, std::string(option) + " must be at least 1"};
}

Schedule MakeSchedule(ScheduleKind kind, int64_t total_steps, double warmup_ratio, int64_t warmup_steps) {
  Schedule schedule;
  schedule.kind = kind;
  schedule.total_steps = std::max<int64_t>(1, total_steps);
  schedule.warmup_steps =
      warmup_steps > 0 ? warmup_steps
                       : static_cast<int64_t>(std::ceil(warmup_ratio * static_cast<double>(schedule.total_steps)));
  return schedule;
}

Result<double> UpdateParameters(TrainModel& model, AdamW& optimizer, Comm& comm, double learning_rate, double max_norm,
                                int64_t step) {
  if (comm.size() > 1) {
    for (const Parameter& parameter : model.parameters()) {
      PITH_RETURN_IF_ERROR(comm.AllReduceSum(parameter.gradient));
    }
  }
  const double norm = GradientNorm(model.parameters());
  if (!std::isfinite(norm)) {
    return Error{ErrorCode::kNumeric, "step " + std::to_string(step) + ": the gradient is not finite"};
  }
  optimizer.Step(learning_rate, ClipFactor(norm, max_norm));
  return norm;
}

void AppendBatch(TrainBatch from, TrainBatch* to) {
  const auto offset = static_cast<int32_t>(to->prefixes.size());
  for (auto& prefix : from.prefixes) to->prefixes.push_back(std::move(prefix));
  for (Segment& segment : from.segments) {
    if (segment.prefix >= 0) segment.prefix += offset;
    to->segments.push_back(std::move(segment));
  }
}

void OptionsText::Add(const std::string& name, int64_t value) { text_ += name + "=" + Json(value).dump() + "\n"; }
void OptionsText::Add(const std::string& name, uint64_t value) { text_ += name + "=" + Json(value).dump() + "\n"; }
void OptionsText::Add(const std::string& name, double value) { text_ += name + "=" + Json(value).dump() + "\n"; }
void OptionsText::Add(const std::string& name, bool value) { text_ += name + "=" + Json(value).dump() + "\n"; }
void OptionsText::Add(const std::string& name, const std::string& value) {
  text_ += name + "=" + Json(value).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void OptionsText::AddModel(const TrainModel& model) {
  Add("model_seed", model.options().seed);
  Add("base", static_cast<int64_t>(model.base()));
  Add("round_activations", model.options().round_activations);
  Add("round_cache", model.options().round_cache);
  Add("base_fingerprint", model.base_fingerprint());
  Add("trained_elements", model.TrainedElements());
  if (!model.is_lora()) return;
  Add("lora_alpha", model.options().lora->alpha);
  Add("lora_dropout", model.options().lora->dropout);
}

void OptionsText::AddOptimizer(const AdamWOptions& options, double max_grad_norm) {
  Add("beta1", options.beta1);
  Add("beta2", options.beta2);
  Add("epsilon", options.epsilon);
  Add("weight_decay", options.weight_decay);
  Add("max_grad_norm", max_grad_norm);
}

void Hash64::Add(const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) value_ = (value_ ^ at[i]) * 1099511628211ULL;
}

void Hash64::Add(const std::string& text) {
  const uint64_t size = text.size();
  Add(&size, sizeof(size));
  Add(text.data(), text.size());
}

}  // namespace pith::train
