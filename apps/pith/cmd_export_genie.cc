// pith export genie: a bundle for Qualcomm's GENIE.
#include <cstdio>
#include <memory>
#include <optional>

#include "base/progress.h"
#include "deploy/genie_bundle.h"
#include "export_options.h"
#include "json_output.h"
#include "pull/model_cache.h"

namespace pith {

namespace {

struct GenieCommandOptions {
  std::string model;
  std::string out;
  std::string adapter;
  std::string switcher;
  std::string verifier;
  std::string chip = "8gen3";
  std::string encodings = "1.0.0";
  std::string calibration;
  std::vector<int64_t> tokens = {128, 1};
  int64_t calibration_tokens = 256;
  GenieOptions genie;
};

Status RunGenie(const Cli& cli, const GenieCommandOptions& command) {
  PITH_ASSIGN(const std::string model, ResolveModel(command.model));
  PITH_ASSIGN(const auto checkpoint, Checkpoint::Open(model));
  PITH_ASSIGN(const AdapterParts parts,
              OpenAdapterParts(command.adapter, command.switcher, command.verifier, checkpoint->config()));
  OnnxExportOptions graphs;
  graphs.tokens = command.tokens;
  graphs.adapter = parts.adapter.get();
  graphs.switcher = parts.switcher ? &*parts.switcher : nullptr;
  graphs.verifier = parts.verifier ? &*parts.verifier : nullptr;
  std::optional<ProgressBar> bar;
  graphs.on_progress = [&bar](uint64_t done, uint64_t total) {
    if (!bar) bar.emplace("writing", total, ProgressUnit::kBytes);
    bar->Update(done);
  };
  EncodingOptions encodings;
  PITH_ASSIGN(encodings.version, ParseEncodingVersion(command.encodings));
  PITH_ASSIGN(encodings.tokens, CalibrationTokens(*checkpoint, command.calibration, command.calibration_tokens));
  GenieOptions options = command.genie;
  options.chip = command.chip;
  if (parts.adapter == nullptr) options.adapter_name.clear();
  PITH_ASSIGN(const GenieBundleReport report, ExportGenie(*checkpoint, command.out, graphs, encodings, options));
  bar.reset();
  if (cli.json()) {
    OrderedJson findings = OrderedJson::array();
    for (const Finding& finding : report.findings) {
      findings.push_back({{"blocks", finding.blocks}, {"text", finding.text}});
    }
    PrintJson({{"path", report.graphs.path},
               {"bytes", report.graphs.total_bytes()},
               {"fits", report.fits()},
               {"findings", findings},
               {"part_bytes", report.sizes.part_bytes},
               {"kv_bytes", report.sizes.kv_bytes},
               {"requantized", report.encodings.requantized}});
    return {};
  }
  for (const Finding& finding : report.findings) {
    std::printf("%s%s\n", finding.blocks ? "WILL NOT FIT: " : "note: ", finding.text.c_str());
  }
  std::printf("%s: %zu parts, %s; the vendor's commands are in commands.sh\n", report.graphs.path.c_str(),
              report.graphs.parts.size(), HumanBytes(report.graphs.total_bytes()).c_str());
  return {};
}

}  // namespace

void AddExportGenieCommand(Cli& cli, CLI::App* parent) {
  auto options = std::make_shared<GenieCommandOptions>();
  options->genie.adapter_name = "reason";
  CLI::App* app = cli.AddCommand(
      parent, "genie", "Write a bundle for Qualcomm's GENIE: graphs, encodings, configuration, commands.",
      "pith export genie qwen2.5-coder-0.5b ./bundle --chip 8elite --parts 3 --adapter ./reason");
  AddExportModel(app, options->model);
  AddExportPath(app, "out", options->out, "Directory to write; it must not be there yet", "DIR")->required();
  AddChoiceOption(app, "--chip", options->chip, {"8gen2", "8gen3", "8elite", "xelite"}, "Chip to build for (8gen3)");
  AddExportPath(app, "--adapter", options->adapter, "Adapter that can be switched on", "DIR");
  app->add_option("--adapter-name", options->genie.adapter_name, "Its name there (reason)")->type_name("NAME");
  AddExportPath(app, "--switcher", options->switcher, "Switcher head (default: the adapter's, if it has one)", "FILE");
  AddExportPath(app, "--verifier", options->verifier, "Verifier head (default: the adapter's, if it has one)", "FILE");
  app->add_option("--tokens", options->tokens, "Numbers of new tokens, a graph for each (128,1)")
      ->delimiter(',')
      ->allow_extra_args(false)  // one list: the next argument is the model
      ->type_name("N,...");
  app->add_option("--context", options->genie.context, "Places of the cache and the new tokens together (4096)")
      ->type_name("C");
  app->add_option("--parts", options->genie.parts, "1, or the embedding and so many runs of layers less one")
      ->type_name("N");
  app->add_option("--memory", options->genie.device_memory_gib, "GiB of memory of the phone, for the preflight")
      ->check(CLI::Range(int64_t{0}, int64_t{1024}).description(""))
      ->type_name("GIB");
  AddChoiceOption(app, "--encodings", options->encodings, {"0.6.1", "1.0.0", "2.0.0"},
                  "Version of the encodings (1.0.0)");
  AddExportPath(app, "--calibration", options->calibration, "Text to measure activations on (default: a built-in page)",
                "FILE");
  app->add_option("--calibration-tokens", options->calibration_tokens, "Tokens of it (256)")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 20).description(""))
      ->type_name("N");
  cli.OnRun(app, [&cli, options] { return RunGenie(cli, *options); });
}

}  // namespace pith
