// pith features: what the heads are trained on.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>

#include "base/progress.h"
#include "command.h"
#include "engine_options.h"
#include "json_output.h"
#include "reason/features.h"
#include "reason_options.h"

namespace pith {

namespace {

struct FeaturesOptions {
  EngineFlags engine;
  ReasonFlags reason;
  std::string kind;
  std::string input;
  std::string out;
  std::string system;
  std::string verification_prompt;
  int64_t shard_rows = 64;
  int64_t max_streams = 32;
};

std::atomic<bool> interrupted{false};

Status RunFeatures(const Cli& cli, const FeaturesOptions& flags) {
  FeatureOptions options;
  options.kind = flags.kind == "switcher" ? FeatureKind::kSwitcher : FeatureKind::kVerifier;
  PITH_ASSIGN(const auto rows, ReadFeatureRows(flags.input, {.kind = options.kind}));
  PITH_ASSIGN(const auto text_model, LoadTextModel(flags.engine));
  PITH_ASSIGN(const auto reasoner, LoadReasonModel(*text_model, flags.reason.heads));
  ReasonModel model = reasoner->model();
  std::string prompt = model.verifier ? model.verifier->prompt : kVerificationPrompt;
  if (!flags.verification_prompt.empty()) prompt = flags.verification_prompt;
  if (options.kind == FeatureKind::kVerifier) {
    PITH_ASSIGN(model.verification, VerificationTokens(*text_model, prompt));
  }
  options.answer = MakeAnswerOptions(flags.reason, model);
  // The switcher's choice has no place here: responses are of one mode.
  if (options.answer.mode == ReasonMode::kAuto) {
    options.answer.mode = model.adapter != nullptr ? ReasonMode::kOn : ReasonMode::kOff;
  }
  options.render = [&](const std::string& problem) {
    std::vector<ChatMessage> messages;
    if (!flags.system.empty()) messages.push_back({"system", flags.system});
    messages.push_back({"user", problem});
    return text_model->Render(messages);
  };
  options.provenance = text_model->engine().kv_pool().identity().model + " kv " + flags.engine.kv + " system '" +
                       flags.system + "'" +
                       (model.adapter != nullptr ? " adapter " + model.adapter->file().fingerprint : "");
  options.shard_rows = flags.shard_rows;
  options.max_streams = flags.max_streams;
  options.cancel = &interrupted;
  ProgressBar bar("features", rows.size(), ProgressUnit::kItems);
  options.on_progress = [&](int64_t done, int64_t) { bar.Update(static_cast<uint64_t>(done)); };
  std::signal(SIGINT, [](int) { interrupted = true; });
  PITH_ASSIGN(const FeatureReport report, WriteFeatures(model, rows, options, flags.out));
  bar.Clear();
  if (cli.json()) {
    OrderedJson json{{"kind", flags.kind},
                     {"questions", report.questions},
                     {"states", report.states},
                     {"positives", report.positives},
                     {"hidden_size", model.engine->hidden()},
                     {"shards", report.shards},
                     {"shards_found", report.shards_found},
                     {"out", flags.out}};
    if (options.kind == FeatureKind::kVerifier) json["verification_prompt"] = prompt;
    PrintJson(json);
  } else {
    std::printf("%lld states of %lld questions, %lld with label 1, in %lld shards (%lld were there)\n",
                static_cast<long long>(report.states), static_cast<long long>(report.questions),
                static_cast<long long>(report.positives), static_cast<long long>(report.shards),
                static_cast<long long>(report.shards_found));
  }
  return {};
}

}  // namespace

void AddFeaturesCommand(Cli& cli) {
  auto options = std::make_shared<FeaturesOptions>();
  CLI::App* app = cli.AddCommand("features", "Write the states that the switcher or the verifier is trained on.",
                                 "pith features --kind verifier --input train.jsonl --out features --parallel 16");
  AddEngineOptions(app, options->engine);
  const CompletionHint file{.kind = CompletionHint::Kind::kFile, .words = {}};
  AddChoiceOption(app, "--kind", options->kind, {"switcher", "verifier"}, "Which head")->required();
  SetCompletion(
      app->add_option("--input", options->input,
                      "JSON Lines with id, problem and label (switcher) or answer, maybe responses (verifier)")
          ->required(),
      file);
  SetCompletion(
      app->add_option("--out", options->out, "Folder of the shards; a run that was killed goes on there")->required(),
      file);
  app->add_option("--system", options->system, "System prompt (default: the model's own)");
  app->add_option("--verification-prompt", options->verification_prompt,
                  "What is asked after a response (default: the verifier's own, if there is one)");
  app->add_option("--shard-rows", options->shard_rows, "Questions of a shard")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app->add_option("--max-streams", options->max_streams, "Responses that are generated at the same time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  AddReasonOptions(app, options->reason);
  cli.OnRun(app, [&cli, options] { return RunFeatures(cli, *options); });
}

}  // namespace pith
