// pith export: models and adapters in the formats of other programs.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/progress.h"
#include "command.h"
#include "deploy/compare_models.h"
#include "deploy/gguf_export.h"
#include "deploy/hf_directory.h"
#include "deploy/peft_export.h"
#include "export_options.h"
#include "json_output.h"
#include "pull/model_cache.h"

namespace pith {

namespace {

struct ExportOptions {
  std::string model;
  std::string out;
  std::string adapter;
  std::string type;
  std::string name;
  bool check = true;
  int threads = 0;
};

constexpr int64_t kCheckTokens = 64;

class ExportProgress {
 public:
  std::function<void(uint64_t, uint64_t)> Callback() {
    return [this](uint64_t done, uint64_t total) {
      if (!bar_) bar_.emplace("writing", total, ProgressUnit::kItems);
      bar_->Update(done);
    };
  }

 private:
  std::optional<ProgressBar> bar_;
};

OrderedJson Number(const std::optional<double>& value) { return value ? OrderedJson(*value) : OrderedJson(nullptr); }

// Runs source and export side by side; an export that is another model is an error, and stays for inspection.
Status Check(const Cli& cli, const std::string& model, const ExportOptions& options, bool exact, bool low_bits,
             OrderedJson* json) {
  if (!options.check) return {};
  PITH_ASSIGN(const ModelComparison result,
              CompareModels(model, options.adapter, options.out, kCheckTokens, options.threads));
  const double allowed = AllowedDifference(exact, low_bits);
  if (!result.same_tokenizer) {
    return Error{ErrorCode::kMismatch,
                 "'" + options.out + "' turns text into other tokens than the model it was made of"};
  }
  (*json)["check"] = {{"tokens", result.tokens},
                      {"relative_difference", result.relative},
                      {"allowed", allowed},
                      {"max_logit_difference", result.max_difference},
                      {"same_choice", result.same_choice}};
  if (!cli.json()) {
    std::printf(
        "checked on %lld tokens: logits differ by %.3g relative (%.3g allowed), %.3g at most; the first choice "
        "is the same at %.1f %%\n",
        static_cast<long long>(result.tokens), result.relative, allowed, result.max_difference,
        100.0 * result.same_choice);
  }
  if (!(result.relative <= allowed)) {
    return Error{ErrorCode::kMismatch, "'" + options.out + "' is not the model it was made of: logits differ by " +
                                           std::to_string(result.relative) + " relative, " + std::to_string(allowed) +
                                           " are allowed"};
  }
  return {};
}

Status RefuseExisting(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  return Error{ErrorCode::kInvalidArgument, "'" + path + "' is there already"};
}

Status ExportGgufAdapter(const Cli& cli, const ExportOptions& options) {
  PITH_ASSIGN(const std::string model, ResolveModel(options.model));
  PITH_ASSIGN(const auto checkpoint, Checkpoint::Open(model));
  PITH_ASSIGN(const auto adapter, AdapterFile::Open(options.adapter, checkpoint->config()));
  PITH_ASSIGN(const std::optional<DType> type,
              ParseGgufType(options.type.empty() || options.type == "auto" ? "f32" : options.type));
  if (!type || IsBlockType(*type)) {
    return Error{ErrorCode::kInvalidArgument, "an adapter is written as f32, f16 or bf16"};
  }
  PITH_ASSIGN(const GgufAdapterReport report, ExportAdapterGguf(*adapter, checkpoint->config(), options.out, {*type}));
  if (cli.json()) {
    PrintJson({{"path", report.path},
               {"modules", report.modules},
               {"folded_scalings", report.folded},
               {"invocation_tokens", adapter->invocation},
               {"bytes", report.file_bytes}});
    return {};
  }
  std::printf("%s: %lld modules, %s%s\n", report.path.c_str(), static_cast<long long>(report.modules),
              HumanBytes(report.file_bytes).c_str(),
              report.folded > 0 ? ("; in " + std::to_string(report.folded) +
                                   " the scaling is in B, as the format has one alpha for all")
                                      .c_str()
                                : "");
  return {};
}

Status RunGguf(const Cli& cli, const ExportOptions& options) {
  PITH_RETURN_IF_ERROR(RefuseExisting(options.out));
  if (!options.adapter.empty()) return ExportGgufAdapter(cli, options);
  PITH_ASSIGN(const std::string model, ResolveModel(options.model));
  PITH_ASSIGN(const auto checkpoint, Checkpoint::Open(model));
  GgufExportOptions gguf;
  PITH_ASSIGN(gguf.type, ParseGgufType(options.type.empty() ? "auto" : options.type));
  gguf.name = options.name;
  gguf.threads = options.threads;
  GgufExportReport report;
  {
    ExportProgress progress;
    gguf.on_progress = progress.Callback();
    PITH_ASSIGN(report, ExportGguf(*checkpoint, options.out, gguf));
  }
  OrderedJson tensors = OrderedJson::array();
  bool low_bits = false;
  for (const GgufTensorReport& tensor : report.matrices) {
    low_bits = low_bits || (IsBlockType(tensor.type) && !tensor.exact);
    if (cli.json()) {
      tensors.push_back({{"name", tensor.name},
                         {"shape", {tensor.rows, tensor.cols}},
                         {"type", DTypeName(tensor.type)},
                         {"exact", tensor.exact},
                         {"sqnr_db", Number(tensor.sqnr_db)}});
    } else {
      std::printf("%-28s %7lld x %-6lld %-5s %s\n", tensor.name.c_str(), static_cast<long long>(tensor.rows),
                  static_cast<long long>(tensor.cols), DTypeName(tensor.type),
                  tensor.exact ? "exact" : (std::to_string(*tensor.sqnr_db).substr(0, 5) + " dB").c_str());
    }
  }
  if (!cli.json()) std::printf("%s: %s\n", report.path.c_str(), HumanBytes(report.file_bytes).c_str());
  OrderedJson json = {
      {"path", report.path}, {"bytes", report.file_bytes}, {"exact", report.exact()}, {"tensors", tensors}};
  PITH_RETURN_IF_ERROR(Check(cli, model, options, report.exact(), low_bits, &json));
  if (cli.json()) PrintJson(json);
  return {};
}

Status RunHf(const Cli& cli, const ExportOptions& options) {
  PITH_ASSIGN(const std::string model, ResolveModel(options.model));
  PITH_ASSIGN(const auto checkpoint, Checkpoint::Open(model));
  HfExportOptions hf;
  hf.type = options.type == "f32" ? DType::kF32 : options.type == "f16" ? DType::kF16 : DType::kBF16;
  hf.threads = options.threads;
  std::shared_ptr<const AdapterFile> adapter;
  if (!options.adapter.empty()) {
    PITH_ASSIGN(adapter, AdapterFile::Open(options.adapter, checkpoint->config()));
    hf.adapter = adapter.get();
  }
  HfExportReport report;
  {
    ExportProgress progress;
    hf.on_progress = progress.Callback();
    PITH_ASSIGN(report, ExportHfDirectory(*checkpoint, options.out, hf));
  }
  OrderedJson tensors = OrderedJson::array();
  // A merge into float32 rounds to nothing that could hide a lost adapter.
  bool exact = adapter == nullptr || hf.type == DType::kF32;
  for (const HfTensorReport& tensor : report.matrices) {
    exact = exact && (tensor.exact || (hf.type == DType::kF32 && tensor.adapter_loss));
    tensors.push_back({{"module", tensor.module},
                       {"exact", tensor.exact},
                       {"sqnr_db", Number(tensor.sqnr_db)},
                       {"adapter_loss", Number(tensor.adapter_loss)}});
  }
  OrderedJson json = {{"path", report.path},
                      {"bytes", report.file_bytes},
                      {"adapter_loss", Number(report.adapter_loss)},
                      {"tensors", tensors}};
  if (!cli.json()) {
    std::printf("%s: %s\n", report.path.c_str(), HumanBytes(report.file_bytes).c_str());
    if (report.adapter_loss) {
      std::printf("merged; rounding to %s loses %.2f %% of the adapter's change\n", DTypeName(hf.type),
                  100.0 * *report.adapter_loss);
    }
  }
  PITH_RETURN_IF_ERROR(Check(cli, model, options, exact, false, &json));
  if (cli.json()) PrintJson(json);
  return {};
}

Status RunPeft(const Cli& cli, const ExportOptions& options) {
  PITH_ASSIGN(const std::string model, ResolveModel(options.model));
  PITH_ASSIGN(const auto checkpoint, Checkpoint::Open(model));
  PITH_ASSIGN(const auto adapter, AdapterFile::Open(options.adapter, checkpoint->config()));
  PITH_ASSIGN(const PeftExportReport report, ExportPeft(*adapter, checkpoint->config(), options.out,
                                                        options.type == "bf16"   ? AdapterStorage::kBF16
                                                        : options.type == "int8" ? AdapterStorage::kInt8
                                                                                 : AdapterStorage::kF32,
                                                        options.name));
  if (cli.json()) {
    PrintJson({{"path", report.path},
               {"modules", report.modules},
               {"exact", report.exact},
               {"relative_error", report.relative_error},
               {"bytes", report.file_bytes}});
  } else {
    std::printf("%s: %lld modules, %s%s\n", report.path.c_str(), static_cast<long long>(report.modules),
                HumanBytes(report.file_bytes).c_str(), report.exact ? "" : ", rounded");
  }
  return {};
}

void AddCheck(CLI::App* app, bool& check) {
  app->add_flag("--check,!--no-check", check,
                "Run model and export on a page of text and compare (in float32: 4 bytes a weight)");
}

}  // namespace

CLI::Option* AddExportModel(CLI::App* app, std::string& model) {
  CLI::Option* option = app->add_option("model", model, "Model: a name of the catalogue, a directory or a GGUF file");
  option->type_name("MODEL")->required();
  SetCompletion(option, {CompletionHint::Kind::kModel, {}});
  return option;
}

CLI::Option* AddExportPath(CLI::App* app, const std::string& name, std::string& path, const std::string& description,
                           const std::string& type) {
  CLI::Option* option = app->add_option(name, path, description);
  option->type_name(type);
  SetCompletion(option, {CompletionHint::Kind::kFile, {}});
  return option;
}

void AddExportCommand(Cli& cli) {
  CLI::App* parent = cli.AddCommand("export", "Write a model or an adapter for other programs.",
                                    "pith export gguf qwen2.5-coder-0.5b coder.gguf");
  {
    auto options = std::make_shared<ExportOptions>();
    CLI::App* app = cli.AddCommand(parent, "gguf", "Write a GGUF file for llama.cpp.",
                                   "pith export gguf ./coder-w4 coder.gguf\n"
                                   "  pith export gguf qwen2.5-coder-0.5b reason.gguf --adapter ./reason");
    AddExportModel(app, options->model);
    AddExportPath(app, "out", options->out, "File to write", "FILE")->required();
    AddExportPath(app, "--adapter", options->adapter, "Write this adapter, for the model's file, instead of the model",
                  "DIR");
    AddChoiceOption(app, "--type", options->type, {"auto", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"},
                    "Type of the linears; auto loses nothing where GGUF has a type for it (adapters: f32)");
    app->add_option("--name", options->name, "Name noted in the file")->type_name("NAME");
    AddCheck(app, options->check);
    AddThreadsOption(app, options->threads);
    // Of a model: an adapter's file has the adapter's name, and nothing is run to check it.
    for (const char* name : {"--name", "--no-check", "--threads"}) {
      app->get_option("--adapter")->excludes(app->get_option(name));
    }
    cli.OnRun(app, [&cli, options] { return RunGguf(cli, *options); });
  }
  {
    auto options = std::make_shared<ExportOptions>();
    CLI::App* app = cli.AddCommand(parent, "hf", "Write a Hugging Face directory of floats.",
                                   "pith export hf qwen2.5-coder-0.5b ./merged --merge-adapter ./reason");
    AddExportModel(app, options->model);
    AddExportPath(app, "out", options->out, "Directory to write; it must not be there yet", "DIR")->required();
    AddExportPath(app, "--merge-adapter", options->adapter, "Merge this adapter into the weights", "DIR");
    AddChoiceOption(app, "--type", options->type, {"bf16", "f16", "f32"}, "Type of the matrices (bf16)");
    AddCheck(app, options->check);
    AddThreadsOption(app, options->threads);
    cli.OnRun(app, [&cli, options] { return RunHf(cli, *options); });
  }
  {
    auto options = std::make_shared<ExportOptions>();
    CLI::App* app = cli.AddCommand(parent, "peft", "Write an adapter as a PEFT directory.",
                                   "pith export peft qwen2.5-coder-0.5b ./reason ./reason-peft");
    AddExportModel(app, options->model);
    AddExportPath(app, "adapter", options->adapter, "Adapter directory", "DIR")->required();
    AddExportPath(app, "out", options->out, "Directory to write", "DIR")->required();
    AddChoiceOption(app, "--type", options->type, {"f32", "bf16", "int8"},
                    "Type of the factors (f32); int8, a scale per row, is read by pith only");
    app->add_option("--base-name", options->name, "base_model_name_or_path noted in the adapter")->type_name("NAME");
    cli.OnRun(app, [&cli, options] { return RunPeft(cli, *options); });
  }
  AddExportOnnxCommand(cli, parent);
  AddExportGenieCommand(cli, parent);
}

}  // namespace pith
