// What the loops of SFT and GRPO share: the log of steps, the schedule, the update of the parameters, the text of
// options that a checkpoint is bound to.
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/comm.h"
#include "train/optimizer.h"
#include "train/train_batch.h"
#include "train/train_model.h"

namespace pith::train {

class Stopwatch {
 public:
  double Seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// A file of JSON objects, one a line, each with an integer "step".
class StepLog {
 public:
  // Keeps the lines of steps up to `last_step` and drops the others: those steps are done again after a resume. The old
  // file is there until the new one is whole. kIo.
  Status Open(const std::string& path, int64_t last_step);
  // Appends a line and flushes it. Nothing happens before Open.
  void Write(const std::string& json);
  // kIo once a line could not be written.
  Status status() const;

 private:
  std::string path_;
  std::ofstream file_;
};

// kInvalidArgument names the option when its value is below 1.
Status CheckPositive(int64_t value, const char* option);

// warmup_steps > 0 overrides the ratio; at least one step in all.
Schedule MakeSchedule(ScheduleKind kind, int64_t total_steps, double warmup_ratio, int64_t warmup_steps);

// Sums the gradients over ranks, checks them, clips them to `max_norm` (0 = never), takes one step. Returns the norm
// before clipping. kNumeric names the step when the gradient is not finite; nothing was changed then.
Result<double> UpdateParameters(TrainModel& model, AdamW& optimizer, Comm& comm, double learning_rate, double max_norm,
                                int64_t step);

// Appends the segments and prefixes of one batch to another.
void AppendBatch(TrainBatch from, TrainBatch* to);

// What must be the same on resume: one "name=value" a line. Values as JSON writes them.
class OptionsText {
 public:
  void Add(const std::string& name, int64_t value);
  void Add(const std::string& name, uint64_t value);
  void Add(const std::string& name, double value);
  void Add(const std::string& name, bool value);
  void Add(const std::string& name, const std::string& value);
  void Add(const std::string& name, const char* value) { Add(name, std::string(value)); }
  // What is common to all trainers.
  void AddModel(const TrainModel& model);
  void AddOptimizer(const AdamWOptions& options, double max_grad_norm);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// FNV-1a, to tell one data set or adapter from another.
class Hash64 {
 public:
  void Add(const void* data, size_t bytes);
  void Add(const std::string& text);  // with its length
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 1469598103934665603ULL;
};

}  // namespace pith::train
