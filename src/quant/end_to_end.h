// End-to-end training of a quantized model on a text: the float model is the teacher, the loss is the Jensen-Shannon
// divergence between next-token distributions.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "quant/student.h"
#include "quant/teacher.h"
#include "train/optimizer.h"
#include "train/train_model.h"

namespace pith::quant {

struct EndToEndOptions {
  int64_t steps = 0;
  int64_t windows_per_step = 4;  // of the teacher's
  int64_t held_out = 4;          // windows at the end of the text that are not trained on; less than all
  double learning_rate = 1e-3;   // AdamW without decay; cosine to 0
  double warmup_ratio = 0.05;
  uint64_t seed = 0;        // of the order of windows
  int64_t save_steps = 25;  // a checkpoint every so many steps; 0 = at the end only
  std::string description;  // what else must be the same on resume
};

struct EndToEndProgress {
  int64_t step = 0, total_steps = 0;
  double loss = 0;
  double seconds = 0;  // of this step
};

// On the held-out windows.
struct HeldOut {
  double divergence = 0;  // mean JSD in nats
  double perplexity = 0;  // of the student
  double teacher_perplexity = 0;
};

struct EndToEndReport {
  int64_t steps = 0;
  int64_t tokens = 0;  // per run, all steps
  bool resumed = false;
  HeldOut before, after;
};

// As a JSON object, and back from a file. kIo, kMalformed.
std::string EndToEndReportText(const EndToEndReport& report);
Result<EndToEndReport> ReadEndToEndReport(const std::string& path);

// Trains `student`, whose weights are in `model`, and leaves the trained weights there. `folder` gets metrics.jsonl and
// checkpoints; a call with the same arguments goes on from the last one and gives the same bits as an uninterrupted
// run. kInvalidArgument: too few windows; kMismatch: the folder belongs to other options; kNumeric: the loss or a
// gradient is not finite; kCancelled: after the step under way, with a checkpoint.
Result<EndToEndReport> TrainEndToEnd(Student& student, train::TrainModel& model, const Teacher& teacher,
                                     const EndToEndOptions& options, const std::string& folder, ThreadPool& pool,
                                     const std::function<void(const EndToEndProgress&)>& on_step = {},
                                     const std::atomic<bool>* cancel = nullptr);

}  // namespace pith::quant
