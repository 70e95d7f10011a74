// Everything the policy runs on: engine, tokenizer, adapter, heads, and the texts that the adapter was trained with.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/lora.h"
#include "engine/text_model.h"
#include "model/heads.h"
#include "reason/budget.h"
#include "reason/step_engine.h"

namespace pith {

// The optional file of an adapter directory that says what the adapter was trained with (docs/formats.md).
inline constexpr const char* kReasoningFile = "pith_reasoning.json";

// What is asked after a response where nothing else is said. A trained verifier brings its own.
inline constexpr const char* kVerificationPrompt = "Is the solution above correct? Answer yes or no.";

struct ReasoningTexts {
  // Put at the end of the last user message when a budget is given and the question is to be reasoned about. Holds
  // "{budget}" exactly once, or is empty: the adapter was trained without one.
  std::string budget_template;
  std::string answer_prefix = "The final answer is \\boxed{";
  int64_t answer_reserve = 32;    // tokens kept for the answer after the prefix, 1..4096
  int64_t default_budget = 1024;  // of a reasoned response when none is asked for, 1..1048576

  // The template with the budget in it; empty without a template.
  std::string BudgetText(int64_t budget) const;
};

// kMalformed names the field for unknown fields, wrong types and ranges.
Result<ReasoningTexts> ParseReasoningTexts(std::string_view json, const std::string& what);
std::string WriteReasoningTexts(const ReasoningTexts& texts);
// Those of an adapter directory; nothing when it has none.
Result<std::optional<ReasoningTexts>> ReadReasoningTexts(const std::string& adapter_dir);

struct ReasonModel {
  StepEngine* engine = nullptr;  // borrowed; outlives this
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int32_t> stop_ids;           // end tokens
  std::shared_ptr<const Adapter> adapter;  // null: reasoning runs on the base
  std::optional<SwitcherHead> switcher;
  std::optional<VerifierHead> verifier;
  ReasoningTexts texts;

  // Derived by Finish().
  std::shared_ptr<const ForcedTokens> forced;
  // The verifier's turn after a response; empty without a verifier (or set for collecting its states, see features.h).
  std::vector<int32_t> verification;
  bool verification_adapter = false;  // the adapter is on for that turn

  // Encodes what is forced. Call once everything above is set.
  Status Finish();
};

// A model as the command line, the server and the evaluation use it.
struct ReasonModelOptions {
  std::string adapter = {};   // PEFT directory; empty = none
  std::string switcher = {};  // file; empty = the adapter directory's, if it has one
  std::string verifier = {};  // likewise
};

class LoadedReasonModel {
 public:
  // Heads that are named must exist; the adapter directory may lack them. Errors name the file.
  static Result<std::unique_ptr<LoadedReasonModel>> Load(TextModel& text_model, const ReasonModelOptions& options);

  TextModel& text_model() { return text_model_; }
  const ReasonModel& model() const { return model_; }

 private:
  explicit LoadedReasonModel(TextModel& text_model) : text_model_(text_model), engine_(text_model.engine()) {}
  TextModel& text_model_;
  ModelStepEngine engine_;
  ReasonModel model_;
};

// Tokens that follow a response when `prompt` is asked about it: the end of the assistant's turn, the user's turn, the
// header of the next answer. Without a chat template: a blank line and the prompt.
Result<std::vector<int32_t>> VerificationTokens(const TextModel& model, const std::string& prompt);

// The two prompts of a question: without and with the budget template. They are equal when there is no template or no
// budget (0).
struct Prompts {
  std::vector<int32_t> direct;
  std::vector<int32_t> reason;
};
Result<Prompts> RenderPrompts(const TextModel& model, const ReasoningTexts& texts,
                              const std::vector<ChatMessage>& messages, int64_t budget);

}  // namespace pith
