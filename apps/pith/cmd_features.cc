// pith features: what the heads are trained on.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <set>

#include "base/progress.h"
#include "command.h"
#include "engine_options.h"
#include "eval/settings.h"
#include "json_output.h"
#include "reason/features.h"
#include "reason_options.h"

namespace pith {

namespace {

struct FeaturesOptions {
  EngineFlags engine;
  ReasonFlags reason;
  std::string kind;
  std::vector<std::string> input;
  std::vector<std::string> direct;
  std::vector<std::string> reasoned;
  std::string out;
  std::string prompt = "plain";
  std::string system;
  std::string verification_prompt;
  int64_t limit = 0;
  int64_t shard_rows = 64;
  int64_t max_streams = 32;
  bool label_by_grading = false;
  bool verification_adapter = false;
};

std::atomic<bool> interrupted{false};

// The rows of all files; ids of several files begin with the file's name.
Result<std::vector<FeatureRow>> ReadRows(const FeaturesOptions& flags, FeatureKind kind) {
  struct Source {
    const std::vector<std::string>& paths;
    std::optional<bool> label;
  };
  if (kind == FeatureKind::kVerifier && (!flags.direct.empty() || !flags.reasoned.empty() || flags.label_by_grading)) {
    return Error{ErrorCode::kInvalidArgument, "--direct, --reasoned and --label-by-grading are for the switcher"};
  }
  const bool several = flags.input.size() + flags.direct.size() + flags.reasoned.size() > 1;
  std::vector<FeatureRow> rows;
  std::set<std::string> prefixes;
  for (const Source& source : {Source{flags.input, {}}, Source{flags.direct, false}, Source{flags.reasoned, true}}) {
    for (const std::string& path : source.paths) {
      FeatureRowOptions options{.kind = kind, .label = source.label};
      options.grade_labels = flags.label_by_grading;
      options.limit = flags.limit;
      if (several) options.id_prefix = std::filesystem::path(path).stem().string() + "/";
      if (!prefixes.insert(options.id_prefix).second) {
        return Error{ErrorCode::kInvalidArgument, "two files are called '" + path + "' but for their folder or ending"};
      }
      PITH_ASSIGN(auto some, ReadFeatureRows(path, options));
      std::move(some.begin(), some.end(), std::back_inserter(rows));
    }
  }
  if (rows.empty()) return Error{ErrorCode::kInvalidArgument, "no file was named: --input, --direct, --reasoned"};
  return rows;
}

void SayWhatIsLeftOut(const FeatureReport& report) {
  if (!report.too_long_questions.empty()) {
    constexpr size_t kNamed = 5;
    std::string names;
    for (size_t i = 0; i < std::min(kNamed, report.too_long_questions.size()); ++i) {
      names += (i > 0 ? ", '" : "'") + report.too_long_questions[i] + "'";
    }
    if (report.too_long_questions.size() > kNamed) names += ", ...";
    std::fprintf(stderr, "features: left out, longer than the context: %zu questions (%s)\n",
                 report.too_long_questions.size(), names.c_str());
  }
  if (report.too_long_responses > 0) {
    std::fprintf(stderr, "features: left out, no room for them in the context: %lld responses of other questions\n",
                 static_cast<long long>(report.too_long_responses));
  }
}

Status RunFeatures(const Cli& cli, const FeaturesOptions& flags) {
  FeatureOptions options;
  options.kind = flags.kind == "switcher" ? FeatureKind::kSwitcher : FeatureKind::kVerifier;
  for (const char* name : {"--threshold", "--verify", "--early-stop"}) {
    if (!flags.reason.Given(name)) continue;
    return Error{ErrorCode::kInvalidArgument, std::string(name) + " would be ignored: no head chooses or votes here"};
  }
  PITH_ASSIGN(const auto rows, ReadRows(flags, options.kind));
  PITH_ASSIGN(PromptFormat format, LoadPromptFormat(flags.prompt));
  if (!flags.system.empty()) format.system = flags.system;
  PITH_ASSIGN(const auto text_model, LoadTextModel(flags.engine));
  PITH_ASSIGN(const auto reasoner, LoadReasonModel(*text_model, flags.reason.heads));
  ReasonModel model = reasoner->model();
  std::string prompt = model.verifier ? model.verifier->prompt : kVerificationPrompt;
  if (!flags.verification_prompt.empty()) prompt = flags.verification_prompt;
  if (options.kind == FeatureKind::kVerifier) {
    PITH_ASSIGN(model.verification, VerificationTokens(*text_model, prompt));
    if (flags.verification_adapter) model.verification_adapter = true;
    if (model.verification_adapter && model.adapter == nullptr) {
      return Error{ErrorCode::kInvalidArgument, "--verification-adapter needs an adapter"};
    }
    options.verification_prompt = prompt;
  }
  PITH_ASSIGN(options.answer, MakeAnswerOptions(flags.reason, model));
  // The switcher's choice has no place here: responses are of one mode.
  if (options.answer.mode == ReasonMode::kAuto) {
    options.answer.mode = model.adapter != nullptr ? ReasonMode::kOn : ReasonMode::kOff;
  }
  // As at run time: responses that are reasoned about are told their budget, where the adapter was trained so; the
  // switcher reads the prompt without it.
  const bool reasons = options.kind == FeatureKind::kVerifier && options.answer.mode == ReasonMode::kOn;
  const int64_t told = reasons && options.answer.force_answer ? options.answer.budget : 0;
  options.render = [&](const std::string& problem) -> Result<std::vector<int32_t>> {
    PITH_ASSIGN(Prompts prompts, RenderPrompts(*text_model, model.texts, format.Messages(problem), told));
    return reasons ? std::move(prompts.reason) : std::move(prompts.direct);
  };
  options.provenance = text_model->engine().kv_pool().identity().model + " kv " + flags.engine.kv +
                       (model.adapter != nullptr ? " adapter " + model.adapter->file().fingerprint : "");
  options.prompts = "user '" + format.user + "' system '" + format.system.value_or("") + "'" +
                    (told > 0 ? model.texts.BudgetText(told) : "");
  options.shard_rows = flags.shard_rows;
  options.max_streams = flags.max_streams;
  options.cancel = &interrupted;
  ProgressBar bar("features", rows.size(), ProgressUnit::kItems);
  options.on_progress = [&](int64_t done, int64_t) { bar.Update(static_cast<uint64_t>(done)); };
  std::signal(SIGINT, [](int) { interrupted = true; });
  PITH_ASSIGN(const FeatureReport report, WriteFeatures(model, rows, options, flags.out));
  bar.Clear();
  SayWhatIsLeftOut(report);
  if (cli.json()) {
    OrderedJson json{{"kind", flags.kind},
                     {"questions", report.questions},
                     {"states", report.states},
                     {"positives", report.positives},
                     {"hidden_size", model.engine->hidden()},
                     {"shards", report.shards},
                     {"shards_found", report.shards_found},
                     {"too_long_questions", report.too_long_questions},
                     {"too_long_responses", report.too_long_responses},
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
                      "JSON Lines with id, problem and label (switcher) or answer, maybe responses (verifier)"),
      file);
  SetCompletion(app->add_option("--direct", options->direct, "Switcher: files of questions to be answered directly"),
                file);
  SetCompletion(app->add_option("--reasoned", options->reasoned, "Switcher: files of questions to be reasoned about"),
                file);
  app->add_flag(
      "--label-by-grading", options->label_by_grading,
      "Switcher: rows of --input without a label are answered directly, --parallel times; those with less than "
      "half of the answers right are to be reasoned about");
  app->add_option("--limit", options->limit, "So many rows of each file, spread evenly over it")
      ->check(CLI::Range(1, 1 << 30));
  SetCompletion(
      app->add_option("--out", options->out, "Folder of the shards; a run that was killed goes on there")->required(),
      file);
  SetCompletion(
      app->add_option("--prompt", options->prompt, "How problems are put: plain, boxed, or a JSON file, as in eval")
          ->capture_default_str(),
      file);
  app->add_option("--system", options->system, "System prompt (default: the model's own)");
  app->add_option("--verification-prompt", options->verification_prompt,
                  "What is asked after a response (default: the verifier's own, if there is one)");
  app->add_flag("--verification-adapter", options->verification_adapter,
                "The adapter, not the base, reads the verification turn");
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
