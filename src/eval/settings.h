// What an evaluation does: prompts, sampling, caps, streams. Everything that its results depend on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/sampler.h"
#include "eval/suite.h"
#include "grade/grade.h"
#include "model/chat_template.h"
#include "reason/answer.h"

namespace pith {

// One configuration for both ends: how the model is asked, and where its answer is looked for.
struct PromptFormat {
  std::string name = "boxed";
  // Holds "{problem}" exactly once.
  std::string user = "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}.";
  std::optional<std::string> system;  // nothing = the model's own default
  // Answers that were found in another way count as no answer.
  std::vector<AnswerSource> accept = {AnswerSource::kBox, AnswerSource::kStated, AnswerSource::kWhole,
                                      AnswerSource::kLast};

  std::vector<ChatMessage> Messages(std::string_view problem) const;
  // The answer in the visible text of a response, where this format looks for it.
  std::optional<ExtractedAnswer> Extract(std::string_view text, bool truncated) const;
};

// A built-in format ("boxed", "plain": the problem alone) or a JSON file with the fields user, system, accept.
// kInvalidArgument or kMalformed: an unknown name or field, "{problem}" not exactly once, an unknown way in `accept`;
// also when the two ends disagree: only boxes are accepted but the prompt does not ask for \boxed, or it does and boxes
// are not accepted.
Result<PromptFormat> LoadPromptFormat(const std::string& name_or_path);
Result<PromptFormat> ParsePromptFormat(std::string_view json, const std::string& what);

// "auto", "on", "off".
const char* ReasonModeName(ReasonMode mode);
Result<ReasonMode> ParseReasonMode(std::string_view name);

struct EvalSettings {
  // The model, its formats, adapter and heads, by name and value: written down and compared, not looked into.
  std::vector<std::pair<std::string, std::string>> model;
  std::string suite;
  std::string suite_sha256;
  int64_t problems = 0;  // the first so many of the suite
  PromptFormat prompt;
  // The protocol of arXiv 2603.16867 but for what is trained on OpenThoughts3 (there 0.7 and 1.0). The seed of a
  // question comes from this one, its id and the repeat.
  SamplingParams sampling{.temperature = 0.6, .top_p = 0.95};
  std::vector<ReasonMode> modes = {ReasonMode::kOff};    // each question is done in each of them; no repetition
  std::optional<double> threshold;                       // of kAuto; nothing = the head's own
  std::vector<int64_t> caps = {1024, 2048, 4096, 6144};  // of a stream's tokens, ascending
  int64_t parallel = 1;                                  // streams of a question
  int64_t repeats = 1;                                   // of every question, with other seeds
  bool force_answer = true;                              // at the cap; else the stream is cut
  bool adapter_on_prompt = false;                        // with kOn alone: AnswerOptions::adapter_on_prompt
};

// "1K,2K,512": 1K is 1024 tokens. Sorted, repetitions dropped. kInvalidArgument names the part; 1..1M each.
Result<std::vector<int64_t>> ParseCaps(std::string_view text);
// "0.1,0.25": 0..1 each, sorted, repetitions dropped.
Result<std::vector<double>> ParseThresholds(std::string_view text);

// kInvalidArgument names what is out of range or does not go together.
Status ValidateSettings(const EvalSettings& settings);

// One JSON object, the same text for the same settings.
std::string SettingsJson(const EvalSettings& settings);
// The prompt format in such an object. kMalformed.
Result<PromptFormat> PromptFormatOfSettings(const std::string& settings_json);
// What differs between two such objects, as "sampling.temperature: 0.7 there, 0.6 here". kMalformed for `stored`.
Result<std::vector<std::string>> SettingsDifferences(const std::string& stored, const std::string& now,
                                                     const std::string& what);

// The seed of one question; a function of these three only.
uint64_t QuestionSeed(uint64_t seed, std::string_view id, int64_t repeat);

}  // namespace pith
