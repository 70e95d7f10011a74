// pith quantize: shrink a model with transforms, range search and error feedback.
#include <cstdio>
#include <memory>
#include <optional>

#include "base/mapped_file.h"
#include "base/progress.h"
#include "command.h"
#include "engine/calibrate.h"
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
  quant::QuantizeOptions quantize;
};

Result<std::vector<int32_t>> CalibrationTokens(const QuantizeCommandOptions& command, const std::string& model) {
  PITH_ASSIGN(const auto tokenizer, OpenTokenizer(model));
  std::string_view text = CalibrationText();
  std::shared_ptr<const MappedFile> file;
  if (!command.text.empty()) {
    PITH_ASSIGN(file, MappedFile::Open(command.text));
    text = {reinterpret_cast<const char*>(file->bytes().data()), file->size()};
  }
  PITH_ASSIGN(std::vector<int32_t> tokens, tokenizer->Encode(text, {.add_bos = true}));
  if (command.tokens > 0 && static_cast<int64_t>(tokens.size()) > command.tokens) {
    tokens.resize(static_cast<size_t>(command.tokens));
  }
  return tokens;
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
  return {{"path", report.pack.path},
          {"method", recipe},
          {"recipe", report.pack.recipe},
          {"rotation", report.rotation},
          {"resumed", report.resumed},
          {"bits_per_weight", report.pack.bits_per_weight},
          {"bytes", report.pack.file_bytes},
          {"peak_rss_bytes", report.pack.peak_rss_bytes},
          {"layers", layers},
          {"tensors", tensors}};
}

void PrintReport(const quant::QuantizeReport& report) {
  if (!report.rotation.empty()) std::printf("rotation of the residual stream: %s\n", report.rotation.c_str());
  for (size_t i = 0; i < report.layers.size(); ++i) {
    const quant::LayerReport& layer = report.layers[i];
    std::printf("layer %-3zu norm %.5f -> %.5f, condition of the value transforms %.2f\n", i, layer.loss_before,
                layer.loss_after, layer.value_condition);
  }
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
  if (options.method.feedback) {
    PITH_ASSIGN(options.tokens, CalibrationTokens(command, path));
    options.tokens_of = command.text.empty() ? "built in" : command.text;
  }
  std::optional<ProgressBar> bar;
  std::string shown;
  options.on_progress = [&](const std::string& stage, uint64_t done, uint64_t total) {
    if (shown != stage) bar.emplace(stage, total, stage == "packing" ? ProgressUnit::kBytes : ProgressUnit::kItems);
    shown = stage;
    bar->Update(done);
  };
  PITH_ASSIGN(const quant::QuantizeReport report, quant::QuantizeModel(path, command.out, options));
  bar.reset();
  if (cli.json()) {
    PrintJson(ReportJson(command.recipe, report));
  } else {
    PrintReport(report);
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
  app->add_option("--iterations", options->quantize.local.iterations, "Steps of local optimization per layer")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  app->add_option("--local-lr", options->quantize.local.learning_rate, "Their learning rate")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  AddSeedOption(app, options->quantize.seed);
  AddThreadsOption(app, options->quantize.threads);
  cli.OnRun(app, [&cli, options] { return RunQuantize(cli, *options); });
}

}  // namespace pith
