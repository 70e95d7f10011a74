#include "reason/answer.h"

#include <utility>

#include "reason/batch_runner.h"

namespace pith {
namespace {

constexpr int64_t kMaxParallel = 256;
constexpr int64_t kMaxBudget = int64_t{1} << 24;

Error Invalid(const std::string& message) { return {ErrorCode::kInvalidArgument, message}; }

}  // namespace

const char* RouteName(Route route) { return route == Route::kReason ? "reason" : "direct"; }

ReasonMode DefaultMode(const ReasonModel& model) { return model.switcher ? ReasonMode::kAuto : ReasonMode::kOff; }

int64_t AnswerResult::generated_tokens() const {
  int64_t tokens = 0;
  for (const StreamResult& stream : streams) tokens += static_cast<int64_t>(stream.tokens.size());
  return tokens;
}

Status ValidateQuestion(const ReasonModel& model, const Question& question) {
  const AnswerOptions& options = question.options;
  if (question.prompt.empty()) return Invalid("the prompt is empty");
  if (options.mode == ReasonMode::kAuto && !model.switcher) {
    return Invalid("reasoning cannot be chosen automatically: the model has no switcher head");
  }
  if (options.threshold && !(*options.threshold >= 0 && *options.threshold <= 1)) {
    return Invalid("the threshold must be 0 to 1");
  }
  if (options.budget < 0 || options.budget > kMaxBudget) {
    return Invalid("the budget must be 0 to " + std::to_string(kMaxBudget) + " tokens");
  }
  int64_t larger = options.budget;
  for (const int64_t smaller : options.smaller_budgets) {
    if (smaller < 0 || smaller >= larger)
      return Invalid("smaller budgets must be in descending order, below the budget");
    larger = smaller;
  }
  if (!options.smaller_budgets.empty() &&
      (options.early_stop || options.keep_log_probs || question.sequence != nullptr)) {
    return Invalid("smaller budgets go with neither early stop, nor kept log-probs, nor a conversation");
  }
  if (options.adapter_on_prompt &&
      (options.mode != ReasonMode::kOn || options.keep_states || question.sequence != nullptr)) {
    return Invalid("the adapter on the prompt goes with reasoning on, without kept states, outside of conversations");
  }
  if (options.parallel < 1 || options.parallel > kMaxParallel) {
    return Invalid("the number of parallel streams must be 1 to " + std::to_string(kMaxParallel));
  }
  PITH_RETURN_IF_ERROR(ValidateSampling(options.sampling));
  if (options.parallel > 1 && options.sampling.temperature == 0) {
    return Invalid("parallel streams at temperature 0 would all be the same: choose a temperature");
  }
  for (const auto* prompt : {&question.prompt, &question.reason_prompt}) {
    if (static_cast<int64_t>(prompt->size()) > model.engine->context()) {
      return Error{ErrorCode::kContextOverflow, "the prompt has " + std::to_string(prompt->size()) +
                                                    " tokens, the context holds " +
                                                    std::to_string(model.engine->context())};
    }
  }
  return {};
}

Result<AnswerResult> AnswerQuestion(const ReasonModel& model, Question question) {
  BatchRunner runner(model, {.max_streams = question.options.parallel});
  PITH_RETURN_IF_ERROR(runner.Add(0, std::move(question)));
  while (true) {
    auto finished = runner.Step();
    if (!finished.empty()) return std::move(finished.front().answer);
  }
}

}  // namespace pith
