// One question under way: what it wants of the next step of the engine, and what it makes of the outcome. The batch
// runner holds many of these; nothing here knows of the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "reason/answer.h"
#include "reason/state_pool.h"

namespace pith {

class QuestionRun {
 public:
  // A valid question (ValidateQuestion).
  static Result<std::unique_ptr<QuestionRun>> Create(const ReasonModel& model, Question question);
  ~QuestionRun();
  QuestionRun(const QuestionRun&) = delete;
  QuestionRun& operator=(const QuestionRun&) = delete;

  // Which part of the question an item of a step belongs to.
  static constexpr int64_t kPrompt = -1;
  struct Want {
    int64_t part;  // kPrompt, or the index of a stream
    StepItem item;
  };
  // Appends what is to be computed next: at most `prefill_tokens` tokens of the prompt (reduced by what is used), or
  // one item for each live stream. The spans stay valid until Take.
  void Collect(int64_t* prefill_tokens, std::vector<Want>* wants);
  // The outcome of an item: its logits row (or empty), its state rows (or empty).
  void Take(int64_t part, std::span<const float> logits, std::span<const float> states);
  // After all outcomes of a step: early stop, progress, cancelling.
  void EndStep();
  // The step failed because of this question.
  void Fail(Error error);

  bool done() const { return phase_ == Phase::kDone; }
  // Streams that decode now or will.
  int64_t live_streams() const;
  int64_t generated_tokens() const;
  // Once, when done.
  Result<AnswerResult> Finish();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kPrompt, kStreams, kDone };
  struct Stream;

  QuestionRun(const ReasonModel& model, Question question, Sampler sampler);
  void Start();
  void BeginPrompt(const std::vector<int32_t>& tokens);
  void EndPrompt(std::span<const float> logits);
  void BeginStreams(std::span<const float> logits);
  ResponseOptions OptionsOf(int64_t index, size_t level) const;
  void Advance(Stream& stream, std::span<const float> logits);
  // Smaller budgets: the shadows of a stream take what it took; those that want something else become streams.
  void Follow(Stream& stream, std::span<const int32_t> tokens, bool forced);
  void Branch(const Stream& stream, size_t level, std::unique_ptr<Response> response);
  void EndResponse(Stream& stream);
  void EndStream(Stream& stream);
  bool Verifies() const;
  const Adapter* adapter() const { return route_ == Route::kReason ? model_.adapter.get() : nullptr; }
  void FillResult(size_t level, AnswerResult* result);
  void StopIfDecided();
  void Cancel();
  double Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  const ReasonModel& model_;
  Question question_;
  Sampler sampler_;
  Clock::time_point start_ = Clock::now();
  Phase phase_ = Phase::kPrompt;
  std::optional<Error> error_;
  Route route_ = Route::kDirect;
  bool routed_ = false;
  std::optional<Sequence> prompt_sequence_;
  const std::vector<int32_t>* prompt_ = nullptr;  // being prefilled
  size_t prefilled_ = 0;                          // of it
  int64_t prefilling_ = 0;                        // in the step under way
  std::optional<StatePool> pool_;
  std::vector<std::unique_ptr<Stream>> streams_;  // those of the budget first, by index; then those of smaller ones
  RunningVote vote_;                              // of the streams that are done, with early_stop
  bool opened_ = false;                           // the prompt has opened the thoughts
  int64_t room_ = 0;                              // for a response
  AnswerResult result_;
};

}  // namespace pith
