// pith calibrate: static ranges of a model's activations, stored beside its weights.
#include <cstdio>
#include <memory>
#include <optional>

#include "base/progress.h"
#include "command.h"
#include "engine/measure_ranges.h"
#include "export_options.h"
#include "json_output.h"
#include "pull/model_cache.h"

namespace pith {

namespace {

struct CalibrateOptions {
  std::string model;
  std::string text;
  int64_t tokens = 1024;
  std::string range = "minmax";
  int threads = 0;
};

Status RunCalibrate(const Cli& cli, const CalibrateOptions& options) {
  PITH_ASSIGN(const std::string path, ResolveModel(options.model));
  PITH_ASSIGN(const auto checkpoint, Checkpoint::Open(path));
  if (checkpoint->format() != CheckpointFormat::kHuggingFace) {
    return Error{ErrorCode::kUnsupported, "'" + path +
                                              "' is a file: ranges lie in a directory beside the weights; "
                                              "`pith pack` makes one"};
  }
  PITH_ASSIGN(const std::vector<int32_t> tokens, CalibrationTokens(*checkpoint, options.text, options.tokens));
  MeasureRangesOptions measure;
  measure.power = options.range == "minmax" ? 0 : options.range.back() - '0';
  measure.threads = options.threads;
  std::optional<ProgressBar> bar;
  measure.on_tokens = [&bar](int64_t done, int64_t total) {
    if (!bar) bar.emplace("measuring", static_cast<uint64_t>(total), ProgressUnit::kItems);
    bar->Update(static_cast<uint64_t>(done));
  };
  PITH_ASSIGN(const ActivationRanges ranges, MeasureActivationRanges(checkpoint, tokens, measure));
  PITH_RETURN_IF_ERROR(WriteActivationRanges(ranges, path));
  bar.reset();
  const std::string file = path + "/" + kActivationRangesFile;
  if (cli.json()) {
    PrintJson({{"path", file}, {"method", ranges.method}, {"tokens", ranges.tokens}, {"ranges", ranges.values.size()}});
  } else {
    std::printf("%s: %zu ranges (%s) of %lld tokens\n", file.c_str(), ranges.values.size(), ranges.method.c_str(),
                static_cast<long long>(ranges.tokens));
  }
  return {};
}

}  // namespace

void AddCalibrateCommand(Cli& cli) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* app = cli.AddCommand("calibrate", "Measure static ranges of a model's activations, for device exports.",
                                 "pith calibrate ./coder-w4 --text page.txt");
  AddExportModel(app, options->model);
  AddExportPath(app, "--text", options->text, "Text to measure on (default: a built-in page)", "FILE");
  app->add_option("--tokens", options->tokens, "At most so many tokens of it (1024)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24).description(""))
      ->type_name("N");
  AddChoiceOption(app, "--range", options->range, {"minmax", "l2", "l3", "l4"},
                  "All that was seen, or the range with the least error |x^ - x|^p of 100")
      ->capture_default_str();
  AddThreadsOption(app, options->threads);
  cli.OnRun(app, [&cli, options] { return RunCalibrate(cli, *options); });
}

}  // namespace pith
