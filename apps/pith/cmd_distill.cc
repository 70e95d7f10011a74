// pith distill: reasoning data by rejection sampling.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/progress.h"
#include "command.h"
#include "describe_model.h"
#include "distill/distill.h"
#include "engine_options.h"
#include "eval/run_eval.h"
#include "eval/settings.h"
#include "eval/suite.h"
#include "json_output.h"
#include "reason_options.h"

namespace pith {

namespace {

struct DistillFlags {
  EngineFlags engine;
  ReasonModelOptions heads;
  std::string data;
  std::string data_folder;
  std::string fields;
  std::string prompt = "boxed";
  std::string row_prompts;
  std::string reason;  // empty: on with an adapter
  std::string style = "plain";
  std::string budget_template;
  std::string row_budgets;
  std::string out;
  std::string work;
  int64_t samples = 4;
  int64_t keep = 2;
  int64_t max_length = 0;
  int64_t budget = 1024;
  int64_t limit = 0;
  int64_t max_streams = 32;
  bool no_budget_line = false;
  SamplingParams sampling{.top_p = 0.95};
};

std::atomic<bool> interrupted{false};

// Training sets by name are looked for in train/ of the data folder; the names of test sets are refused.
Result<std::string> ResolveData(const DistillFlags& flags) {
  std::error_code error;
  if (std::filesystem::is_regular_file(flags.data, error)) return flags.data;
  std::string folder = flags.data_folder;
  if (const char* data = std::getenv("PITH_DATA"); folder.empty() && data != nullptr) folder = data;
  if (!folder.empty() && flags.data.find('/') == std::string::npos) {
    for (const char* prefix : {"/train/", "/train/train_"}) {
      const std::string path = folder + prefix + flags.data + ".jsonl";
      if (std::filesystem::is_regular_file(path, error)) return path;
    }
  }
  if (FindKnownSuite(flags.data) != nullptr) {
    return Error{ErrorCode::kInvalidArgument,
                 "'" + flags.data + "' is a test set: what is trained on it cannot be measured with it any more"};
  }
  return ResolveSuite(flags.data, folder);
}

Result<EvalSettings> SettingsOf(const DistillFlags& flags, Suite& suite, TextModel& text_model,
                                const ReasonModel& model) {
  EvalSettings settings;
  settings.model = DescribeModel(flags.engine, text_model, model);
  settings.suite = suite.name;
  settings.suite_sha256 = suite.sha256;
  if (flags.limit > 0 && static_cast<size_t>(flags.limit) < suite.problems.size()) {
    suite.problems.resize(static_cast<size_t>(flags.limit));
  }
  settings.problems = static_cast<int64_t>(suite.problems.size());
  PITH_ASSIGN(settings.prompt, LoadPromptFormat(flags.prompt));
  settings.sampling = flags.sampling;
  settings.modes = {flags.reason == "on" || (flags.reason.empty() && model.adapter != nullptr) ? ReasonMode::kOn
                                                                                               : ReasonMode::kOff};
  settings.caps = {flags.budget};
  settings.parallel = flags.samples;
  settings.repeats = 1;
  settings.force_answer = false;  // what was made to answer is not kept anyway
  PITH_RETURN_IF_ERROR(ValidateSettings(settings));
  return settings;
}

Result<DistillOptions> OptionsOf(const DistillFlags& flags, const ReasonModel& model) {
  DistillOptions options;
  options.plain = flags.style != "recheck";
  options.recheck = flags.style != "plain";
  options.keep = flags.keep;
  options.max_tokens = flags.max_length;
  options.seed = flags.sampling.seed;
  options.texts = model.texts;
  if (!flags.budget_template.empty()) {
    options.texts.budget_template = flags.budget_template;
    PITH_ASSIGN(options.texts, ParseReasoningTexts(WriteReasoningTexts(options.texts), "--budget-template"));
  }
  if (!flags.row_budgets.empty() && !flags.no_budget_line) {
    PITH_ASSIGN(options.budgets, ParseCaps(flags.row_budgets));
    if (options.texts.budget_template.empty()) {
      return Error{ErrorCode::kInvalidArgument,
                   "--row-budgets needs the text that states a budget: --budget-template, or an adapter that has one"};
    }
  }
  options.prompts.clear();
  const std::string names = flags.row_prompts.empty() ? flags.prompt : flags.row_prompts;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    PITH_ASSIGN(PromptFormat prompt, LoadPromptFormat(names.substr(begin, end - begin)));
    options.prompts.push_back(std::move(prompt));
    begin = end + 1;
  }
  return options;
}

void PrintSummary(const DistillReport& report, const std::string& out) {
  const SampleCounts& samples = report.samples;
  const auto number = [](int64_t value) { return static_cast<long long>(value); };
  std::printf(
      "%lld problems, %lld with a right sample; %lld samples, %lld right (%.1f %%), %lld without an answer\n",
      number(report.problems), number(report.solved), number(samples.samples), number(samples.right),
      samples.samples > 0 ? 100.0 * static_cast<double>(samples.right) / static_cast<double>(samples.samples) : 0.0,
      number(samples.no_answer));
  std::printf("of the right ones: %lld kept, %lld duplicates, %lld more than asked for, %lld unfit\n",
              number(samples.kept), number(samples.duplicates), number(samples.surplus), number(samples.unfit));
  for (const auto& [name, counts] : {std::pair{"plain", report.plain}, {"recheck", report.recheck}}) {
    if (counts.rows == 0) continue;
    std::printf("%-8s %lld rows, %lld tokens, %.1f on average\n", name, number(counts.rows), number(counts.tokens),
                static_cast<double>(counts.tokens) / static_cast<double>(counts.rows));
  }
  if (report.recheck.rows > 0) {
    std::printf("rechecks begin with: a wrong attempt %lld, a false start %lld, a doubt %lld\n",
                number(report.wrong_attempts), number(report.false_starts), number(report.doubts));
  }
  if (report.too_long > 0) std::printf("%lld rows were too long\n", number(report.too_long));
  std::printf("%s\n", out.c_str());
}

Status RunDistill(const Cli& cli, const DistillFlags& flags) {
  PITH_ASSIGN(const SuiteFields fields, ParseSuiteFields(flags.fields));
  PITH_ASSIGN(const std::string data, ResolveData(flags));
  PITH_ASSIGN(Suite suite, LoadSuite(std::filesystem::path(data).stem().string(), data, fields));
  PITH_ASSIGN(const auto text_model, LoadTextModel(flags.engine));
  PITH_ASSIGN(const auto loaded, LoadReasonModel(*text_model, flags.heads));
  // Samples are graded, not routed or scored.
  ReasonModel model = loaded->model();
  model.switcher.reset();
  model.verifier.reset();
  model.verification.clear();
  PITH_ASSIGN(const EvalSettings settings, SettingsOf(flags, suite, *text_model, model));
  PITH_ASSIGN(const DistillOptions options, OptionsOf(flags, model));
  const std::string work = flags.work.empty() ? flags.out + ".run" : flags.work;
  PITH_ASSIGN(const auto folder, EvalFolder::Open(work, SettingsJson(settings), suite.problems, [] {
                std::fprintf(stderr, "distill: waiting for another run in the same folder\n");
              }));
  const EvalBackend backend{model, [&](const std::vector<ChatMessage>& messages, int64_t budget) {
                              return RenderPrompts(*text_model, model.texts, messages, budget);
                            }};
  RunEvalOptions run;
  run.max_streams = flags.max_streams;
  run.cancel = &interrupted;
  std::optional<ProgressBar> bar;
  run.on_progress = [&](const EvalProgress& progress) {
    if (!bar) bar.emplace("distill", static_cast<uint64_t>(progress.total), ProgressUnit::kItems);
    char label[96];
    std::snprintf(label, sizeof(label), "distill: %.1f tok/s, %lld of %lld right",
                  progress.seconds > 0 ? static_cast<double>(progress.tokens) / progress.seconds : 0.0,
                  static_cast<long long>(progress.correct), static_cast<long long>(progress.graded));
    bar->SetLabel(label);
    bar->Update(static_cast<uint64_t>(progress.done));
  };
  std::signal(SIGINT, [](int) { interrupted = true; });
  const Status status = RunEval(backend, settings, run, *folder);
  bar.reset();
  // What is there is worth rows even when the run was interrupted; with --json there is one object, the error.
  if (!status.ok() && status.error().code != ErrorCode::kCancelled) return status;
  PITH_ASSIGN(const DistillReport report,
              WriteTraces(folder->problems(), folder->generations(), options, *model.tokenizer, flags.out));
  double seconds = 0;
  for (const PhaseTiming& timing : folder->timings()) seconds += timing.seconds;
  OrderedJson json{{"out", flags.out}, {"run", work}, {"style", flags.style}, {"complete", status.ok()}};
  json.update(OrderedJson::parse(DistillReportJson(report)));
  json["seconds"] = seconds;
  PITH_RETURN_IF_ERROR(
      folder->WriteFile("distill.json", json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n"));
  if (cli.json() && status.ok()) PrintJson(json);
  if (!cli.json()) PrintSummary(report, flags.out);
  return status;
}

}  // namespace

void AddDistillCommand(Cli& cli) {
  auto flags = std::make_shared<DistillFlags>();
  CLI::App* app = cli.AddCommand("distill", "Make reasoning data: sample solutions, keep the right ones.",
                                 "pith distill -m qwen2.5-coder-1.5b --data gsm8k --samples 4 --style both "
                                 "--out traces.jsonl");
  const CompletionHint file{.kind = CompletionHint::Kind::kFile, .words = {}};
  AddEngineOptions(app, flags->engine);
  AddHeadOptions(app, flags->heads);
  SetCompletion(app->add_option("--data", flags->data,
                                "JSONL file (id, problem, answer), or a name: train/NAME.jsonl of the data folder")
                    ->required(),
                file);
  SetCompletion(app->add_option("--data-folder", flags->data_folder, "Folder of public data sets (default: PITH_DATA)"),
                file);
  app->add_option("--fields", flags->fields,
                  "Names of the fields, as in problem=question,id=#; # is the number of the line");
  app->add_option("--limit", flags->limit, "Only the first so many problems")->check(CLI::Range(1, 1 << 30));
  app->add_option("--samples", flags->samples, "Solutions that are sampled for each problem")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  AddChoiceOption(app, "--style", flags->style, {"plain", "recheck", "both"},
                  "Thoughts: the derivation; or with a wrong turn or a doubt, a correction and a check; or both kinds")
      ->capture_default_str();
  SetCompletion(app->add_option("-o,--out", flags->out, "The rows, for 'pith train sft --dataset'")->required(), file);
  SetCompletion(app->add_option("--work", flags->work,
                                "Folder of the samples; a run that was stopped goes on there (default: OUT.run)"),
                file);
  app->add_option("--keep", flags->keep, "Most derivations of a problem that are kept")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_option("--max-length", flags->max_length, "Leave out responses of more tokens")
      ->check(CLI::Range(1, 1 << 24));
  app->add_option("--budget", flags->budget, "Most tokens of a sample, cut there")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  AddChoiceOption(app, "--reason", flags->reason, {"on", "off"},
                  "Whether samples are taken in reasoning mode (default: on with an adapter)");
  SetCompletion(
      app->add_option("--prompt", flags->prompt, "How problems are put: boxed, plain, or a JSON file, as in eval")
          ->capture_default_str(),
      file);
  app->add_option("--row-prompt", flags->row_prompts,
                  "How problems are put in the rows; several, such as boxed,plain, take turns (default: as --prompt)");
  CLI::Option* budgets = app->add_option("--row-budgets", flags->row_budgets,
                                         "State a budget in the rows' prompts: of these, the smallest that holds the "
                                         "response, such as 128,256,512");
  app->add_option("--budget-template", flags->budget_template,
                  "Text that states it, with {budget} in it (default: the adapter's)");
  app->add_flag("--no-budget-line", flags->no_budget_line, "State no budget (the default)")->excludes(budgets);
  app->add_option("--max-streams", flags->max_streams, "Samples that decode together, of all problems")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  AddSamplingOptions(app, flags->sampling);
  // Instead of greedy: samples have to differ.
  flags->sampling.temperature = 0.7;
  app->get_option("--temp")->capture_default_str();
  cli.OnRun(app, [&cli, flags] { return RunDistill(cli, *flags); });
}

}  // namespace pith
