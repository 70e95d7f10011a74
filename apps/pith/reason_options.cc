#include "reason_options.h"

#include <algorithm>
#include <cstdio>

#include "command.h"
#include "engine_options.h"

namespace pith {

bool ReasonFlags::Given(const char* name) const { return app->get_option(name)->count() > 0; }

void AddHeadOptions(CLI::App* app, ReasonModelOptions& heads) {
  const auto path = [app](const std::string& names, std::string& value, const std::string& description) {
    // An empty path, say of an unset variable in a script, must not pass for an option that was not given.
    CLI::Option* option = app->add_option(names, value, description)->check([](const std::string& text) {
      return text.empty() ? std::string("the path is empty") : std::string();
    });
    SetCompletion(option, {.kind = CompletionHint::Kind::kFile, .words = {}});
  };
  path("--adapter,--lora", heads.adapter, "Reasoning adapter: a PEFT LoRA directory");
  path("--switcher", heads.switcher,
       "Head that chooses the mode (default: switcher.safetensors of the adapter directory)");
  path("--verifier", heads.verifier,
       "Head that scores answers (default: verifier.safetensors of the adapter directory)");
}

void AddReasonOptions(CLI::App* app, ReasonFlags& flags) {
  flags.app = app;
  AddHeadOptions(app, flags.heads);
  AddChoiceOption(
      app, "--reason", flags.reason, {"auto", "on", "off"},
      "Reasoning mode: <think> is forced and the adapter is on for the response. auto: the switcher chooses "
      "(default: auto with a switcher, on with an adapter alone, else off)");
  app->add_option("--threshold", flags.threshold, "Switcher score from which on to reason (default: the head's own)")
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--budget", flags.budget,
                  "Most generated tokens of a response, thoughts included; at the end it is made to answer "
                  "(default: when reasoning, what the adapter names or 1024)")
      ->check(CLI::Range(1, 1 << 24));
  app->add_option("-n,--max-tokens,--n-predict", flags.max_tokens,
                  "Most generated tokens of a response, cut there; with --budget the lower one counts")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app->add_option("--parallel", flags.answer.parallel,
                  "Responses that are generated together and vote; temperature 0.7 if not given")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  AddChoiceOption(app, "--verify", flags.verify, {"never", "vote", "always"},
                  "Score responses by the verifier: never, when several vote, or always")
      ->capture_default_str();
  app->add_flag("--early-stop", flags.answer.early_stop, "Stop the other responses once the vote is decided");
  AddSamplingOptions(app, flags.answer.sampling);
}

Result<std::unique_ptr<LoadedReasonModel>> LoadReasonModel(TextModel& text_model, const ReasonModelOptions& heads) {
  PITH_ASSIGN(auto loaded, LoadedReasonModel::Load(text_model, heads));
  if (loaded->model().adapter != nullptr) {
    for (const auto& warning : loaded->model().adapter->file().warnings) {
      std::fprintf(stderr, "pith: %s\n", warning.c_str());
    }
  }
  return loaded;
}

Status CheckThreshold(const ReasonFlags& flags) {
  if (!flags.Given("--threshold") || !flags.Given("--reason") || flags.reason == "auto") return {};
  return Error{ErrorCode::kInvalidArgument,
               "--threshold would be ignored: with --reason " + flags.reason + " the switcher chooses nothing"};
}

Result<AnswerOptions> MakeAnswerOptions(const ReasonFlags& flags, const ReasonModel& model) {
  if (flags.Given("--threshold") && !model.switcher) {
    return Error{ErrorCode::kInvalidArgument,
                 "--threshold would be ignored: there is no switcher (--switcher, or an adapter that has one)"};
  }
  if (flags.verify == "always" && !model.verifier) {
    return Error{ErrorCode::kInvalidArgument,
                 "--verify always needs a verifier: --verifier, or an adapter that has one"};
  }
  AnswerOptions options = flags.answer;
  // An adapter is there to be used: with one, reasoning is on unless it is switched off.
  options.mode = model.adapter != nullptr && !model.switcher ? ReasonMode::kOn : DefaultMode(model);
  if (flags.Given("--reason")) {
    options.mode = flags.reason == "on"    ? ReasonMode::kOn
                   : flags.reason == "off" ? ReasonMode::kOff
                                           : ReasonMode::kAuto;
  }
  if (flags.Given("--threshold")) options.threshold = flags.threshold;
  const bool limited = flags.Given("--max-tokens");
  if (flags.Given("--budget")) {
    options.budget = limited ? std::min(flags.budget, flags.max_tokens) : flags.budget;
  } else if (!limited && options.mode != ReasonMode::kOff) {
    options.budget = model.texts.default_budget;
  } else {
    options.budget = flags.max_tokens;
    options.force_answer = false;
  }
  if (options.parallel > 1 && !flags.Given("--temp")) options.sampling.temperature = 0.7;
  options.verify = flags.verify == "never"    ? AnswerOptions::Verify::kNever
                   : flags.verify == "always" ? AnswerOptions::Verify::kAlways
                                              : AnswerOptions::Verify::kVote;
  return options;
}

Result<Question> MakeQuestion(const TextModel& text_model, const ReasonModel& model,
                              const std::vector<ChatMessage>& messages, const AnswerOptions& options) {
  // A budget that only cuts was not trained for, so it is not told either.
  PITH_ASSIGN(Prompts prompts,
              RenderPrompts(text_model, model.texts, messages, options.force_answer ? options.budget : 0));
  Question question;
  question.prompt = std::move(prompts.direct);
  question.reason_prompt = std::move(prompts.reason);
  question.options = options;
  return question;
}

}  // namespace pith
