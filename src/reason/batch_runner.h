// Many questions at once: the streams of all of them, and the prompts of those that come next, share the steps of one
// engine (continuous batching). Results do not depend on what shares a step.
//
//   BatchRunner runner(model, {.max_streams = 32});
//   while (true) {
//     while (more() && runner.HasRoom(parallel)) runner.Add(id, next());
//     if (runner.idle()) break;
//     for (auto& [id, answer] : runner.Step()) save(id, answer);
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "reason/answer.h"
#include "reason/reason_model.h"

namespace pith {

struct BatchOptions {
  int64_t max_streams = 32;      // that decode at the same time; a question with more of them runs alone
  int64_t prefill_tokens = 128;  // of prompts, in one step
};

class BatchRunner {
 public:
  struct Finished {
    uint64_t id;
    Result<AnswerResult> answer;
  };

  // `model` is borrowed and must be finished (ReasonModel::Finish).
  BatchRunner(const ReasonModel& model, const BatchOptions& options);
  ~BatchRunner();
  BatchRunner(const BatchRunner&) = delete;
  BatchRunner& operator=(const BatchRunner&) = delete;

  // Whether a question with so many streams would begin at once.
  bool HasRoom(int64_t streams) const;
  // Puts a question in the queue; it begins when there is room, in the order of adding. Errors as ValidateQuestion.
  Status Add(uint64_t id, Question question);
  bool idle() const;

  // Runs one step of the engine and returns the questions that it finished. An error belongs to one question; the
  // others go on.
  std::vector<Finished> Step();

  // So far, of all questions.
  int64_t generated_tokens() const;
  int64_t steps() const;

 private:
  struct Active;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pith
