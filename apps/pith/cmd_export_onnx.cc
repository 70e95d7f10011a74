// pith export onnx: a model as static ONNX graphs.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/progress.h"
#include "command.h"
#include "deploy/onnx_encodings.h"
#include "deploy/onnx_export.h"
#include "engine/calibrate.h"
#include "export_options.h"
#include "json_output.h"
#include "model/tokenizer_file.h"
#include "pull/model_cache.h"

namespace pith {

namespace {

struct OnnxCommandOptions {
  std::string model;
  std::string out;
  std::string adapter;
  std::string switcher;
  std::string verifier;
  std::vector<int64_t> tokens = {128, 1};
  int64_t context = 4096;
  int64_t parts = 1;
  std::string target = "generic";
  bool lora_inputs = false;
  bool qdq = false;
  std::string encodings;
  std::string calibration;
  int64_t calibration_tokens = 256;
};

OrderedJson ReportJson(const OnnxExportReport& report) {
  OrderedJson parts = OrderedJson::array();
  for (const OnnxPartReport& part : report.parts) {
    parts.push_back({{"layers", {part.part.begin, part.part.end}},
                     {"graphs", part.graphs},
                     {"weight_bytes", part.base_bytes},
                     {"adapter_bytes", part.adapter_bytes},
                     {"graph_bytes", part.graph_bytes}});
  }
  return {{"path", report.path}, {"bytes", report.total_bytes()}, {"parts", parts}};
}

// Measures ranges and writes the encodings beside the graphs.
Result<EncodingReport> Encode(const OnnxCommandOptions& command, const Checkpoint& checkpoint,
                              const OnnxExportReport& exported, const OnnxExportOptions& options) {
  EncodingOptions encoding;
  PITH_ASSIGN(encoding.version, ParseEncodingVersion(command.encodings.empty() ? "1.0.0" : command.encodings));
  // Ranges beside the weights come first, unless a text is named or the graphs have an adapter or
  // heads, which they do not know.
  ActivationRanges ranges;
  if (command.calibration.empty() && options.adapter == nullptr && options.switcher == nullptr &&
      options.verifier == nullptr && HasActivationRanges(checkpoint.path())) {
    PITH_ASSIGN(ranges, ReadActivationRanges(checkpoint.path(), checkpoint.config(), checkpoint.fingerprint()));
    encoding.ranges = &ranges;
    return AddEncodings(checkpoint, exported, options, encoding);
  }
  PITH_ASSIGN(encoding.tokens, CalibrationTokens(checkpoint, command.calibration, command.calibration_tokens));
  std::optional<ProgressBar> bar;
  encoding.on_tokens = [&bar](int64_t done, int64_t total) {
    if (!bar) bar.emplace("measuring", static_cast<uint64_t>(total), ProgressUnit::kItems);
    bar->Update(static_cast<uint64_t>(done));
  };
  return AddEncodings(checkpoint, exported, options, encoding);
}

void PrintReport(const OnnxExportReport& report) {
  for (const OnnxPartReport& part : report.parts) {
    std::printf("part %lld of %lld: %s%slayers %lld to %lld%s, weights %s", static_cast<long long>(part.part.index),
                static_cast<long long>(part.part.count), part.part.embedding ? "embedding, " : "", "",
                static_cast<long long>(part.part.begin), static_cast<long long>(part.part.end),
                part.part.head ? ", LM head" : "", HumanBytes(part.base_bytes).c_str());
    if (part.adapter_bytes > 0) std::printf(", adapter %s", HumanBytes(part.adapter_bytes).c_str());
    std::printf(", graphs %s\n", HumanBytes(part.graph_bytes).c_str());
  }
  std::printf("%s: %s\n", report.path.c_str(), HumanBytes(report.total_bytes()).c_str());
}

Status RunOnnx(const Cli& cli, const OnnxCommandOptions& command) {
  PITH_ASSIGN(const std::string model, ResolveModel(command.model));
  PITH_ASSIGN(const auto checkpoint, Checkpoint::Open(model));
  OnnxExportOptions options;
  options.tokens = command.tokens;
  options.context = command.context;
  options.parts = command.parts;
  options.qnn = command.target == "qnn";
  options.lora_inputs = command.lora_inputs;
  options.qdq = command.qdq;
  PITH_ASSIGN(const AdapterParts parts,
              OpenAdapterParts(command.adapter, command.switcher, command.verifier, checkpoint->config()));
  options.adapter = parts.adapter.get();
  options.switcher = parts.switcher ? &*parts.switcher : nullptr;
  options.verifier = parts.verifier ? &*parts.verifier : nullptr;
  std::optional<ProgressBar> bar;
  options.on_progress = [&bar](uint64_t done, uint64_t total) {
    if (!bar) bar.emplace("writing", total, ProgressUnit::kBytes);
    bar->Update(done);
  };
  PITH_ASSIGN(const OnnxExportReport report, ExportOnnx(*checkpoint, command.out, options));
  bar.reset();
  OrderedJson json = ReportJson(report);
  if (!cli.json()) PrintReport(report);
  if (!command.encodings.empty() || command.qdq) {
    const auto encoded = Encode(command, *checkpoint, report, options);
    if (!encoded.ok()) {
      // Graphs without what was asked for would only be in the way of the next try.
      std::error_code error;
      std::filesystem::remove_all(command.out, error);
      return encoded.error();
    }
    const EncodingReport& encodings = *encoded;
    json["encodings"] = {{"version", command.encodings.empty() ? "1.0.0" : command.encodings},
                         {"parameters", encodings.parameters},
                         {"activations", encodings.activations},
                         {"requantized", encodings.requantized},
                         {"files", encodings.files}};
    if (!cli.json()) {
      std::printf("encodings %s%s: %lld parameters (%lld quantized again), %lld activations\n",
                  command.encodings.c_str(), command.qdq ? " (in the graphs)" : "",
                  static_cast<long long>(encodings.parameters), static_cast<long long>(encodings.requantized),
                  static_cast<long long>(encodings.activations));
    }
  }
  if (cli.json()) PrintJson(json);
  return {};
}

}  // namespace

Result<AdapterParts> OpenAdapterParts(const std::string& adapter, const std::string& switcher,
                                      const std::string& verifier, const ModelConfig& config) {
  AdapterParts parts;
  if (!adapter.empty()) {
    PITH_ASSIGN(parts.adapter, AdapterFile::Open(adapter, config));
  }
  // A head that is named must be there; the adapter directory may lack it.
  const auto path_of = [&](const std::string& named, const char* file) -> std::string {
    if (!named.empty() || adapter.empty()) return named;
    std::error_code error;
    const std::filesystem::path path = std::filesystem::path(adapter) / file;
    return std::filesystem::exists(path, error) ? path.string() : std::string();
  };
  if (const std::string path = path_of(switcher, kSwitcherFile); !path.empty()) {
    PITH_ASSIGN(parts.switcher, ReadSwitcher(path, config.hidden));
  }
  if (const std::string path = path_of(verifier, kVerifierFile); !path.empty()) {
    PITH_ASSIGN(parts.verifier, ReadVerifier(path, config.hidden));
  }
  return parts;
}

Result<std::vector<int32_t>> CalibrationTokens(const Checkpoint& checkpoint, const std::string& path, int64_t count) {
  std::string text(CalibrationText());
  if (!path.empty()) {
    PITH_ASSIGN(const auto file, MappedFile::Open(path));
    text.assign(reinterpret_cast<const char*>(file->bytes().data()), file->size());
  }
  PITH_ASSIGN(const auto tokenizer, CheckpointTokenizer(checkpoint));
  PITH_ASSIGN(std::vector<int32_t> tokens, tokenizer->Encode(text, {}));
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(count)));
  return tokens;
}

void AddExportOnnxCommand(Cli& cli, CLI::App* parent) {
  auto options = std::make_shared<OnnxCommandOptions>();
  CLI::App* app = cli.AddCommand(parent, "onnx", "Write static ONNX graphs, for runtimes of phones.",
                                 "pith export onnx qwen2.5-coder-0.5b ./coder-onnx --adapter ./reason --parts 3");
  AddExportModel(app, options->model);
  AddExportPath(app, "out", options->out, "Directory to write; it must not be there yet", "DIR")->required();
  AddExportPath(app, "--adapter", options->adapter, "Adapter that the graphs can switch on", "DIR");
  AddExportPath(app, "--switcher", options->switcher, "Switcher head (default: the adapter's, if it has one)", "FILE");
  AddExportPath(app, "--verifier", options->verifier, "Verifier head (default: the adapter's, if it has one)", "FILE");
  app->add_option("--tokens", options->tokens, "Numbers of new tokens, a graph for each (128,1)")
      ->delimiter(',')
      ->allow_extra_args(false)  // one list: the next argument is the model
      ->type_name("N,...");
  app->add_option("--context", options->context, "Places of the cache and the new tokens together (4096)")
      ->type_name("C");
  app->add_option("--parts", options->parts, "1, or the embedding and so many runs of layers less one")->type_name("N");
  AddChoiceOption(app, "--target", options->target, {"generic", "qnn"},
                  "qnn: linears as 1x1 convolutions, attention head by head");
  app->add_flag("--lora-inputs", options->lora_inputs,
                "The adapter's factors are inputs of the graphs (with their values as defaults)");
  AddChoiceOption(app, "--encodings", options->encodings, {"0.6.1", "1.0.0", "2.0.0"},
                  "Write quantization encodings of this version, for Qualcomm's converter");
  app->add_flag("--qdq", options->qdq,
                "Quantize the graphs by their encodings: weights of 4 bits, activations of 16, keys and values of 8");
  AddExportPath(app, "--calibration", options->calibration, "Text to measure activations on (default: a built-in page)",
                "FILE");
  app->add_option("--calibration-tokens", options->calibration_tokens, "Tokens of it (256)")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 20).description(""))
      ->type_name("N");
  cli.OnRun(app, [&cli, options] { return RunOnnx(cli, *options); });
}

}  // namespace pith
