// pith eval: accuracy of a model on a set of problems, with budgets, votes and the switcher.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "base/progress.h"
#include "command.h"
#include "describe_model.h"
#include "engine_options.h"
#include "eval/report.h"
#include "eval/run_eval.h"
#include "eval/settings.h"
#include "eval/suite.h"
#include "json_output.h"
#include "pull/pull.h"
#include "reason_options.h"

namespace pith {

namespace {

struct EvalOptions {
  EngineFlags engine;
  ReasonModelOptions heads;
  EvalSettings settings;
  std::string suite;
  std::string data;
  std::string fields;
  std::string prompt = "boxed";
  std::string reason;  // empty: what the model has decides
  std::string budgets = "1K,2K,4K,6K";
  std::string thresholds;
  std::string out;
  std::string report;
  int64_t limit = 0;
  int64_t repeats = 0;  // 0: the suite decides
  int64_t max_streams = 32;
  bool cut = false;
  bool list = false;
  const CLI::App* app = nullptr;
};

std::atomic<bool> interrupted{false};

std::string DataFolder(const EvalOptions& options) {
  if (!options.data.empty()) return options.data;
  const char* data = std::getenv("PITH_DATA");
  return data == nullptr ? "" : data;
}

Status ListAll(const Cli& cli, const EvalOptions& options) {
  OrderedJson suites = OrderedJson::array();
  for (const ListedSuite& suite : ListSuites(DataFolder(options))) {
    if (cli.json()) {
      suites.push_back({{"name", suite.name},
                        {"about", suite.about},
                        {"repeats", suite.repeats},
                        {"path", suite.path.empty() ? OrderedJson(nullptr) : OrderedJson(suite.path)}});
    } else {
      std::printf("%-16s %-45s %s\n", suite.name.c_str(), suite.about.c_str(),
                  suite.path.empty() ? "(not here)" : suite.path.c_str());
    }
  }
  if (cli.json()) PrintJson({{"suites", suites}});
  return {};
}

Result<Suite> OpenSuite(const EvalOptions& options) {
  PITH_ASSIGN(const SuiteFields fields, ParseSuiteFields(options.fields));
  if (IsDatasetReference(options.suite)) {
    if (!options.suite.ends_with(".jsonl")) {
      return Error{ErrorCode::kUnsupported, "'" + options.suite +
                                                "': only .jsonl files of the hub can be read, not "
                                                "Parquet or CSV; name one as hf:datasets/org/name:FILE.jsonl"};
    }
    PullOptions pull = PullOptionsFromEnvironment();
    pull.on_message = [](const std::string& message) { std::fprintf(stderr, "eval: %s\n", message.c_str()); };
    PITH_ASSIGN(const PullReport report, PullDatasetFile(options.suite, pull));
    return LoadSuite(options.suite, report.path, fields);
  }
  PITH_ASSIGN(const std::string path, ResolveSuite(options.suite, DataFolder(options)));
  const std::string name = path == options.suite ? std::filesystem::path(path).stem().string() : options.suite;
  return LoadSuite(name, path, fields);
}

Result<std::vector<ReasonMode>> ModesOf(const EvalOptions& options, const ReasonModel& model) {
  std::string reason = options.reason;
  if (reason.empty()) reason = model.switcher ? "auto" : model.adapter ? "on" : "off";
  if (reason == "auto" && !model.switcher) {
    return Error{ErrorCode::kInvalidArgument, "--reason auto needs a switcher: --switcher, or an adapter that has one"};
  }
  if (reason == "both") return std::vector{ReasonMode::kOff, ReasonMode::kOn};
  PITH_ASSIGN(const ReasonMode mode, ParseReasonMode(reason));
  return std::vector{mode};
}

// Completes the settings from suite and model, and checks them.
Result<EvalSettings> SettingsOf(const EvalOptions& options, Suite& suite, TextModel& text_model,
                                const ReasonModel& model, const std::vector<double>& thresholds) {
  EvalSettings settings = options.settings;
  settings.model = DescribeModel(options.engine, text_model, model);
  settings.suite = suite.name;
  settings.suite_sha256 = suite.sha256;
  if (options.limit > 0 && static_cast<size_t>(options.limit) < suite.problems.size()) {
    suite.problems.resize(static_cast<size_t>(options.limit));
  }
  settings.problems = static_cast<int64_t>(suite.problems.size());
  PITH_ASSIGN(settings.prompt, LoadPromptFormat(options.prompt));
  PITH_ASSIGN(settings.caps, ParseCaps(options.budgets));
  PITH_ASSIGN(settings.modes, ModesOf(options, model));
  settings.force_answer = !options.cut;
  settings.repeats = options.repeats;
  if (settings.repeats == 0) {
    const KnownSuite* known = FindKnownSuite(suite.name);
    settings.repeats = known == nullptr || settings.sampling.temperature == 0 ? 1 : known->repeats;
  }
  if (settings.modes.front() == ReasonMode::kAuto) {
    if (thresholds.size() > 1) {
      return Error{ErrorCode::kInvalidArgument,
                   "--reason auto runs with one threshold; --reason both gives the results of all of them"};
    }
    if (!thresholds.empty()) settings.threshold = thresholds.front();
  }
  PITH_RETURN_IF_ERROR(ValidateSettings(settings));
  return settings;
}

void PrintResults(const std::string& summary_text, const std::string& folder) {
  const auto summary = ParseJson(summary_text, "summary.json");
  if (!summary.ok()) return;
  std::printf("%-6s %7s %9s %15s %9s %9s %8s %9s %7s %9s\n", "mode", "cap", "accuracy", "95 %", "majority", "weighted",
              "tokens", "truncated", "forced", "no answer");
  for (const Json& result : (*summary)["results"]) {
    const auto percent = [](const Json& value) { return 100 * value.get<double>(); };
    const Json& accuracy = result["accuracy"];
    char weighted[16] = "-";
    if (!result["weighted"].is_null()) {
      std::snprintf(weighted, sizeof(weighted), "%.1f %%", percent(result["weighted"]["value"]));
    }
    std::printf("%-6s %7lld %7.1f %% %5.1f - %5.1f %% %7.1f %% %9s %8.1f %7.1f %% %5.1f %% %7.1f %%\n",
                result["mode"].get<std::string>().c_str(), result["cap"].get<long long>(), percent(accuracy["value"]),
                percent(accuracy["low"]), percent(accuracy["high"]), percent(result["majority"]["value"]), weighted,
                result["tokens"]["mean"].get<double>(), percent(result["truncated_share"]),
                percent(result["forced_share"]), percent(result["no_answer_share"]));
  }
  const Json& timing = (*summary)["timing"];
  std::printf("%lld tokens in %s (%.1f tokens/s); report: %s/report.html\n", timing["tokens"].get<long long>(),
              HumanSeconds(timing["seconds"].get<double>()).c_str(), timing["tokens_per_second"].get<double>(),
              folder.c_str());
}

// Writes summary and report, and says what they hold.
Status Conclude(const Cli& cli, const EvalFolder& folder, const std::vector<double>& thresholds) {
  PITH_ASSIGN(const std::string summary, WriteReport(folder, thresholds));
  if (!cli.json()) {
    PrintResults(summary, folder.path());
    return {};
  }
  PITH_ASSIGN(const Json json, ParseJson(summary, "summary.json"));
  PrintJson({{"folder", folder.path()}, {"report", folder.path() + "/report.html"}, {"summary", OrderedJson(json)}});
  return {};
}

void SayWaiting() { std::fprintf(stderr, "eval: waiting for another run in the same folder\n"); }

Error Ignored(const std::string& option, const std::string& why) {
  return {ErrorCode::kInvalidArgument, option + " would be ignored: " + why};
}

// An error when something was given beside `mode` that is none of `allowed`.
Status OnlyWith(const CLI::App& app, const std::string& mode, const std::set<std::string>& allowed) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->count() > 0 && name != mode && name != "--json" && !allowed.contains(name)) {
      return Ignored(name == "suite" ? "the suite" : name, mode + " reads no other options but those of its own");
    }
  }
  return {};
}

// A threshold is the switcher's: there must be one, and it must be what chooses.
Status CheckThresholds(const EvalOptions& options, const ReasonModel* model) {
  if (options.thresholds.empty()) return {};
  if (options.reason == "on" || options.reason == "off") {
    return Ignored("--threshold", "with --reason " + options.reason + " the switcher chooses nothing");
  }
  if (model != nullptr && !model->switcher) {
    return Ignored("--threshold", "there is no switcher (--switcher, or an adapter that has one)");
  }
  return {};
}

// The report again, with today's grader.
Status ReportAgain(const Cli& cli, const EvalOptions& options, const std::vector<double>& thresholds) {
  PITH_ASSIGN(const auto folder, EvalFolder::OpenExisting(options.report, SayWaiting));
  const bool both_ways =
      std::any_of(folder->generations().begin(), folder->generations().end(), [](const Generation& generation) {
        return generation.key.mode == ReasonMode::kOn && generation.switcher_score.has_value();
      });
  if (!thresholds.empty() && !both_ways) {
    return Ignored("--threshold", "'" + options.report + "' is no run of --reason both with a switcher");
  }
  PITH_ASSIGN(const PromptFormat format, PromptFormatOfSettings(folder->settings_json()));
  std::vector<Generation> generations = folder->generations();
  const int64_t changed = Regrade(format, folder->problems(), generations);
  if (changed > 0) {
    std::fprintf(stderr, "eval: %lld answers are graded differently now\n", static_cast<long long>(changed));
    PITH_RETURN_IF_ERROR(folder->Rewrite(std::move(generations)));
  }
  return Conclude(cli, *folder, thresholds);
}

Status RunEvalCommand(const Cli& cli, const EvalOptions& options) {
  if (options.list) {
    PITH_RETURN_IF_ERROR(OnlyWith(*options.app, "--list", {"--data"}));
    return ListAll(cli, options);
  }
  std::vector<double> thresholds;
  if (!options.thresholds.empty()) {
    PITH_ASSIGN(thresholds, ParseThresholds(options.thresholds));
  }
  if (!options.report.empty()) {
    PITH_RETURN_IF_ERROR(OnlyWith(*options.app, "--report", {"--threshold"}));
    return ReportAgain(cli, options, thresholds);
  }
  PITH_RETURN_IF_ERROR(CheckThresholds(options, nullptr));
  PITH_ASSIGN(Suite suite, OpenSuite(options));
  PITH_ASSIGN(const auto text_model, LoadTextModel(options.engine));
  PITH_ASSIGN(const auto loaded, LoadReasonModel(*text_model, options.heads));
  const ReasonModel& model = loaded->model();
  PITH_RETURN_IF_ERROR(CheckThresholds(options, &model));
  PITH_ASSIGN(const EvalSettings settings, SettingsOf(options, suite, *text_model, model, thresholds));
  const std::string out =
      options.out.empty() ? "eval-" + std::filesystem::path(suite.name).filename().string() : options.out;
  PITH_ASSIGN(const auto folder, EvalFolder::Open(out, SettingsJson(settings), suite.problems, SayWaiting));

  const EvalBackend backend{model, [&](const std::vector<ChatMessage>& messages, int64_t budget) {
                              return RenderPrompts(*text_model, model.texts, messages, budget);
                            }};
  RunEvalOptions run;
  run.max_streams = options.max_streams;
  run.cancel = &interrupted;
  std::optional<ProgressBar> bar;
  run.on_progress = [&](const EvalProgress& progress) {
    if (!bar) bar.emplace("eval", static_cast<uint64_t>(progress.total), ProgressUnit::kItems);
    char label[96];
    std::snprintf(label, sizeof(label), "%s %lld: %.1f tok/s, %lld of %lld right", ReasonModeName(progress.mode),
                  static_cast<long long>(progress.cap),
                  progress.seconds > 0 ? static_cast<double>(progress.tokens) / progress.seconds : 0.0,
                  static_cast<long long>(progress.correct), static_cast<long long>(progress.graded));
    bar->SetLabel(label);
    bar->Update(static_cast<uint64_t>(progress.done));
  };
  std::signal(SIGINT, [](int) { interrupted = true; });
  const Status status = RunEval(backend, settings, run, *folder);
  bar.reset();
  if (!status.ok() && status.error().code != ErrorCode::kCancelled) return status;
  // What is there is worth a report even when the run was interrupted; with --json there is one object, the error.
  if (status.ok() || !cli.json()) {
    PITH_RETURN_IF_ERROR(Conclude(cli, *folder, thresholds));
  } else {
    PITH_RETURN_IF_ERROR(WriteReport(*folder, thresholds));
  }
  return status;
}

}  // namespace

void AddEvalCommand(Cli& cli) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* app = cli.AddCommand("eval", "Measure a model's accuracy on a set of problems.",
                                 "pith eval gsm8k --data DATA --limit 100 --temp 0 --budget 512 --out runs/gsm8k");
  options->app = app;
  std::vector<std::string> names;
  for (const KnownSuite& suite : KnownSuites()) names.emplace_back(suite.name);
  CLI::Option* suite =
      app->add_option("suite", options->suite,
                      "A name of --list, a JSONL file (id, problem, answer), or hf:datasets/org/name:FILE.jsonl");
  SetCompletion(suite, {.kind = CompletionHint::Kind::kWords, .words = names});
  const CompletionHint file{.kind = CompletionHint::Kind::kFile, .words = {}};
  app->add_flag("--list", options->list, "Show the known suites and what of them is here");
  SetCompletion(app->add_option("--data", options->data, "Folder of public data sets (default: PITH_DATA)"), file);
  app->add_option("--fields", options->fields,
                  "Names of the fields, as in problem=question,id=#; # is the number of the line");
  AddEngineOptions(app, options->engine);
  AddHeadOptions(app, options->heads);
  AddChoiceOption(app, "--reason", options->reason, {"auto", "on", "off", "both"},
                  "Reasoning: by the switcher, always, never, or both ways (default: auto with a switcher, on with an "
                  "adapter, else off)");
  app->add_option("--threshold", options->thresholds, "Of the switcher; a list such as 0.3,0.5 with --reason both");
  app->add_option("--budget", options->budgets, "Token budgets of a stream, such as 512,1K,2K")->capture_default_str();
  app->add_flag("--no-force", options->cut, "At the budget cut the stream instead of making it answer");
  app->add_flag("--no-mask-prompt-adapter", options->settings.adapter_on_prompt,
                "The adapter is on for the prompt too, to measure one that was trained without the mask");
  app->add_option("--parallel", options->settings.parallel, "Streams of a question")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_option("--repeats", options->repeats, "Runs of every question (default: 10 for AIME and AMC, else 1)")
      ->check(CLI::Range(1, 1000));
  app->add_option("--limit", options->limit, "Only the first so many problems")->check(CLI::Range(1, 1 << 30));
  SetCompletion(app->add_option("--prompt", options->prompt, "boxed, plain, or a JSON file (user, system, accept)")
                    ->capture_default_str(),
                file);
  app->add_option("--max-streams", options->max_streams, "Streams that decode together, of all questions")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  SetCompletion(
      app->add_option("-o,--out", options->out, "Folder of the results; goes on where it was (default: eval-SUITE)"),
      file);
  SetCompletion(
      app->add_option("--report", options->report, "Only grade and summarize the results in this folder again"), file);
  SamplingParams& sampling = options->settings.sampling;
  AddSamplingOptions(app, sampling);
  // The protocol's, instead of greedy.
  sampling.temperature = EvalSettings().sampling.temperature;
  app->get_option("--temp")->capture_default_str();
  app->get_option("--top-p")->capture_default_str();
  cli.OnRun(app, [&cli, options] { return RunEvalCommand(cli, *options); });
}

}  // namespace pith
