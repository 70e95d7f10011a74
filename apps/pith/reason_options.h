// Options of the subcommands that answer questions: adapter, heads, reasoning, budget, streams.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "reason/answer.h"

namespace pith {

struct ReasonFlags {
  ReasonModelOptions heads;
  std::string reason = "auto";
  std::string verify = "vote";
  int64_t budget = 0;
  int64_t max_tokens = 512;
  double threshold = 0.5;
  AnswerOptions answer;  // what needs no translation: sampling, parallel, early_stop, stop, ignore_eos
  const CLI::App* app = nullptr;

  // Whether an option was given on the command line.
  bool Given(const char* name) const;
};

// --adapter, --switcher, --verifier.
void AddHeadOptions(CLI::App* app, ReasonModelOptions& heads);
// AddHeadOptions, --reason, --threshold, --budget, -n, --parallel, --verify, --early-stop and the
// options of AddSamplingOptions.
void AddReasonOptions(CLI::App* app, ReasonFlags& flags);

// For a single question, whose mode does not change: kInvalidArgument for --threshold with --reason on or off.
Status CheckThreshold(const ReasonFlags& flags);

// Adapter and heads; what they warn about goes to standard error.
Result<std::unique_ptr<LoadedReasonModel>> LoadReasonModel(TextModel& text_model, const ReasonModelOptions& heads);

// The options of a question by the rules of docs/cli.md: which mode is the default, what -n and --budget mean together,
// and the temperature of several streams. kInvalidArgument for what would have no effect: --threshold without a
// switcher,
// --verify always without a verifier.
Result<AnswerOptions> MakeAnswerOptions(const ReasonFlags& flags, const ReasonModel& model);

// A question from messages: both prompts.
Result<Question> MakeQuestion(const TextModel& text_model, const ReasonModel& model,
                              const std::vector<ChatMessage>& messages, const AnswerOptions& options);

}  // namespace pith
