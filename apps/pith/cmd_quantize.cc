// pith quantize: shrink a model with transforms, range search and error feedback.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>

#include "base/mapped_file.h"
#include "base/progress.h"
#include "command.h"
#include "engine/calibrate.h"
#include "eval/quantize_report.h"
#include "json_output.h"
#include "model/tokenizer_file.h"
#include "pull/model_cache.h"
#include "quant/quantize_model.h"

namespace pith {

namespace {

struct QuantizeCommandOptions {
  std::string model;
  std::string out;
  std::string recipe = "fptquant";
  std::string format = "w4,head=w4";
  std::string text;
  int64_t tokens = 16384;
  int64_t train_tokens = 0;
  std::string train;  // names of transforms, empty = as the recipe has them
  std::string tune = "scales,norms";
  quant::QuantizeOptions quantize;
};

std::atomic<bool> interrupted{false};

// A list "a,b" into switches; kInvalidArgument names what is not among them.
Status ParseSwitches(const std::string& option, const std::string& list,
                     const std::vector<std::pair<std::string, bool*>>& switches) {
  for (const auto& [name, value] : switches) *value = false;
  std::stringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) {
    const auto found = std::find_if(switches.begin(), switches.end(), [&](const auto& s) { return s.first == word; });
    if (found == switches.end()) {
      std::string names;
      for (const auto& [name, value] : switches) names += (names.empty() ? "" : ", ") + name;
      return Error{ErrorCode::kInvalidArgument, option + ": unknown '" + word + "'; there are " + names};
    }
    *found->second = true;
  }
  return {};
}

// What each recipe trains: the transforms it has, and the ranges.
Status ChooseTrained(const QuantizeCommandOptions& command, quant::QuantizeOptions* options) {
  quant::TransformTrainables& t = options->training.transforms;
  const quant::Method& method = options->method;
  t = {method.rotate, method.optimize, method.optimize, method.optimize, true};
  if (!command.train.empty()) {
    PITH_RETURN_IF_ERROR(ParseSwitches(
        "--train", command.train,
        {{"rotation", &t.rotation}, {"keys", &t.keys}, {"values", &t.values}, {"up", &t.up}, {"ranges", &t.ranges}}));
  }
  quant::IntegerTrainables& tuned = options->training.integers;
  return ParseSwitches("--tune", command.tune,
                       {{"scales", &tuned.scales}, {"norms", &tuned.norms}, {"integers", &tuned.integers}});
}

// The text of --text, or the one that is built in.
Result<std::vector<int32_t>> TextTokens(const QuantizeCommandOptions& command, const std::string& model) {
  PITH_ASSIGN(const auto tokenizer, OpenTokenizer(model));
  std::string_view text = CalibrationText();
  std::shared_ptr<const MappedFile> file;
  if (!command.text.empty()) {
    PITH_ASSIGN(file, MappedFile::Open(command.text));
    text = {reinterpret_cast<const char*>(file->bytes().data()), file->size()};
  }
  return tokenizer->Encode(text, {.add_bos = true});
}

std::vector<int32_t> FirstOf(const std::vector<int32_t>& tokens, int64_t count) {
  const auto size = static_cast<int64_t>(tokens.size());
  return {tokens.begin(), tokens.begin() + (count > 0 ? std::min(count, size) : size)};
}

OrderedJson StageJson(const quant::EndToEndReport& report) {
  return {{"steps", report.steps},
          {"tokens", report.tokens},
          {"divergence_before", report.before.divergence},
          {"divergence_after", report.after.divergence},
          {"perplexity_before", report.before.perplexity},
          {"perplexity_after", report.after.perplexity},
          {"teacher_perplexity", report.after.teacher_perplexity}};
}

OrderedJson ReportJson(const std::string& recipe, const quant::QuantizeReport& report) {
  OrderedJson tensors = OrderedJson::array();
  for (const PackedTensorReport& tensor : report.pack.tensors) {
    tensors.push_back({{"module", tensor.module},
                       {"format", tensor.format},
                       {"sqnr_db", tensor.sqnr_db ? OrderedJson(*tensor.sqnr_db) : OrderedJson(nullptr)}});
  }
  OrderedJson layers = OrderedJson::array();
  for (const quant::LayerReport& layer : report.layers) {
    layers.push_back({{"loss_before", layer.loss_before},
                      {"loss_after", layer.loss_after},
                      {"value_condition", layer.value_condition}});
  }
  OrderedJson json = {{"path", report.pack.path},
                      {"method", recipe},
                      {"recipe", report.pack.recipe},
                      {"rotation", report.rotation},
                      {"resumed", report.resumed},
                      {"bits_per_weight", report.pack.bits_per_weight},
                      {"bytes", report.pack.file_bytes},
                      {"peak_rss_bytes", report.pack.peak_rss_bytes},
                      {"layers", layers},
                      {"tensors", tensors}};
  OrderedJson outliers = OrderedJson::array();
  for (const quant::InputOutliers& input : report.outliers) {
    outliers.push_back({{"module", input.module}, {"before", input.before}, {"after", input.after}});
  }
  json["outliers"] = outliers;
  if (report.training) {
    json["training"] = StageJson(*report.training);
    json["training"]["orthogonality_error"] = report.trained.orthogonality_error;
    json["training"]["value_condition"] = report.trained.value_condition;
    json["training"]["key_scale_spread"] = report.trained.key_scale_spread;
    json["training"]["up_spread"] = report.trained.up_spread;
  }
  if (report.tuning) json["tuning"] = StageJson(*report.tuning);
  return json;
}

void PrintStage(const char* name, const quant::EndToEndReport& report) {
  std::printf(
      "%s: %lld steps, %lld tokens; on held-out text divergence %.5f -> %.5f, perplexity %.3f -> %.3f (float %.3f)\n",
      name, static_cast<long long>(report.steps), static_cast<long long>(report.tokens), report.before.divergence,
      report.after.divergence, report.before.perplexity, report.after.perplexity, report.after.teacher_perplexity);
}

void PrintReport(const quant::QuantizeReport& report) {
  if (!report.rotation.empty()) std::printf("rotation of the residual stream: %s\n", report.rotation.c_str());
  for (size_t i = 0; i < report.layers.size(); ++i) {
    const quant::LayerReport& layer = report.layers[i];
    std::printf("layer %-3zu norm %.5f -> %.5f, condition of the value transforms %.2f\n", i, layer.loss_before,
                layer.loss_after, layer.value_condition);
  }
  if (report.training) {
    PrintStage("transforms and ranges", *report.training);
    std::printf("rotation: |R^T R - I| %.1e; condition of the value transforms %.2f\n",
                report.trained.orthogonality_error, report.trained.value_condition);
  }
  if (report.tuning) PrintStage("tuning", *report.tuning);
  std::fputs(PackReportText(report.pack).c_str(), stdout);
}

Status RunQuantize(const Cli& cli, const QuantizeCommandOptions& command) {
  quant::QuantizeOptions options = command.quantize;
  PITH_ASSIGN(options.method, quant::ParseMethod(command.recipe));
  std::string format = command.format;
  if (format.find("method=") == std::string::npos) {
    format += std::string(",method=") + QuantMethodName(options.method.ranges);
  }
  PITH_ASSIGN(options.recipe, ParseRecipe(format));
  PITH_ASSIGN(const std::string path, ResolveModel(command.model));
  PITH_RETURN_IF_ERROR(ChooseTrained(command, &options));
  const bool trains = options.training.steps > 0 || options.training.tune_steps > 0;
  if (trains && command.text.empty()) {
    return Error{ErrorCode::kInvalidArgument, "--steps and --tune-steps need a text: --text FILE"};
  }
  if (options.method.needs_text() || trains) {
    PITH_ASSIGN(const std::vector<int32_t> tokens, TextTokens(command, path));
    if (options.method.needs_text()) options.tokens = FirstOf(tokens, command.tokens);
    if (trains) options.training.tokens = FirstOf(tokens, command.train_tokens);
    options.tokens_of = command.text.empty() ? "built in" : command.text;
  }
  std::signal(SIGINT, [](int) { interrupted = true; });
  std::signal(SIGTERM, [](int) { interrupted = true; });
  options.cancel = &interrupted;
  std::optional<ProgressBar> bar;
  std::string shown;
  options.on_progress = [&](const std::string& stage, uint64_t done, uint64_t total) {
    if (shown != stage) bar.emplace(stage, total, stage == "packing" ? ProgressUnit::kBytes : ProgressUnit::kItems);
    shown = stage;
    bar->Update(done);
  };
  PITH_ASSIGN(const quant::QuantizeReport report, quant::QuantizeModel(path, command.out, options));
  bar.reset();
  PITH_ASSIGN(const std::string page, WriteQuantizeReport(command.out));
  if (cli.json()) {
    OrderedJson json = ReportJson(command.recipe, report);
    json["report"] = page;
    PrintJson(json);
  } else {
    PrintReport(report);
    if (options.outliers && report.outliers.empty())
      std::printf("outliers: not measured, the model has no tokenizer\n");
    std::printf("report: %s\n", page.c_str());
  }
  return {};
}

}  // namespace

void AddQuantizeCommand(Cli& cli) {
  auto options = std::make_shared<QuantizeCommandOptions>();
  CLI::App* app = cli.AddCommand("quantize", "Shrink a model: transforms, range search, error feedback.",
                                 "pith quantize smollm2-135m ./smollm2-w4 --recipe fptquant");
  CLI::Option* model =
      app->add_option("model", options->model, "Model: a name of the catalogue, a directory or a GGUF file")
          ->required();
  model->type_name("MODEL");
  SetCompletion(model, {CompletionHint::Kind::kModel, {}});
  CLI::Option* out = app->add_option("out", options->out, "Directory to write; it must not be there yet")->required();
  out->type_name("DIR");
  SetCompletion(out, {CompletionHint::Kind::kFile, {}});
  AddChoiceOption(app, "--recipe", options->recipe, quant::MethodNames(), "What is done to the weights")
      ->capture_default_str();
  app->add_option("--format", options->format, "Formats and range search, as the --recipe of pith pack")
      ->capture_default_str()
      ->type_name("FORMAT");
  CLI::Option* text = app->add_option("--text", options->text, "Calibration text for gptq; without it a page built in");
  text->type_name("FILE");
  SetCompletion(text, {CompletionHint::Kind::kFile, {}});
  app->add_option("--tokens", options->tokens, "Tokens of it to use; 0 = all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->capture_default_str();
  app->add_option("--ctx", options->quantize.window, "Tokens per window of the calibration")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  app->add_option("--damping", options->quantize.damping, "Added to the diagonal of Gram matrices, times its mean")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  app->add_flag("!--no-outliers", options->quantize.outliers, "Do not measure the outliers of inputs for the report");
  app->add_option("--iterations", options->quantize.local.iterations, "Steps of local optimization per layer")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  app->add_option("--local-lr", options->quantize.local.learning_rate, "Their learning rate")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  quant::TrainingOptions& training = options->quantize.training;
  const auto count = [&](const char* name, int64_t& value, const char* help, int64_t least) {
    app->add_option(name, value, help)->check(CLI::Range(least, int64_t{1} << 31))->capture_default_str();
  };
  count("--steps", training.steps, "Steps of end-to-end training of transforms and ranges", 0);
  app->add_option("--train", options->train,
                  "What they train: rotation,keys,values,up,ranges; default: what the recipe has")
      ->type_name("LIST");
  count("--tune-steps", training.tune_steps, "Steps of training after the integers are chosen", 0);
  app->add_option("--tune", options->tune, "What they train: scales,norms,integers")
      ->type_name("LIST")
      ->capture_default_str();
  count("--train-tokens", options->train_tokens, "Tokens of the text to train on; 0 = all", 0);
  count("--window", training.window, "Tokens per window of training", 2);
  count("--batch", training.windows_per_step, "Windows per step", 1);
  count("--held-out", training.held_out, "Windows at the end that are only measured on", 1);
  count("--save-steps", training.save_steps, "Steps between checkpoints; 0 = at the end only", 0);
  app->add_option("--learning-rate", training.learning_rate, "Of --steps")
      ->check(CLI::Range(1e-8, 1.0))
      ->capture_default_str();
  app->add_option("--tune-learning-rate", training.tune_learning_rate, "Of --tune-steps")
      ->check(CLI::Range(1e-8, 1.0))
      ->capture_default_str();
  app->add_option("--device", training.device, "Where --steps and --tune-steps compute: cpu, cuda, cuda:N, torch")
      ->capture_default_str();
  AddSeedOption(app, options->quantize.seed);
  AddThreadsOption(app, options->quantize.threads);
  cli.OnRun(app, [&cli, options] { return RunQuantize(cli, *options); });
}

}  // namespace pith
