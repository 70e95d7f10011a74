// pith pack: write a model with low-bit weights.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "base/cache_folder.h"
#include "base/progress.h"
#include "command.h"
#include "engine/calibrate.h"
#include "json_output.h"
#include "model/pack.h"
#include "model/pack_cache.h"
#include "pull/model_cache.h"

namespace pith {

namespace {

struct PackCommandOptions {
  std::string model;
  std::string out;
  std::string recipe;
  int bits = 4;
  int group = 32;
  bool zero_point = false;
  bool minimum = false;
  std::string method;
  double p = 0.0;
  std::string head;
  std::string embedding;
  std::string scales;
  std::string kv;
  std::string moments;
  std::string weigh;
  int threads = 0;
  bool force = false;
  bool list_cache = false;
  CLI::Option* group_option = nullptr;
  CLI::Option* bits_option = nullptr;
};

// The recipe text that the separate options spell; with --recipe they change single fields of it.
Result<PackRecipe> RecipeOf(const PackCommandOptions& options) {
  const bool matrix_options =
      options.zero_point || options.minimum || options.group_option->count() > 0 || options.bits_option->count() > 0;
  std::string text = options.recipe;
  if (text.empty()) {
    text = "w" + std::to_string(options.bits);
    if (options.group != 0) text += "g" + std::to_string(options.group);
    if (options.zero_point) text += "z";
    if (options.minimum) text += "m";
  } else if (matrix_options) {
    return Error{ErrorCode::kInvalidArgument,
                 "--recipe already says the format of the linears; leave --bits, --group, "
                 "--zero-point and --min out"};
  }
  const auto add = [&text](const char* key, const std::string& value) {
    if (!value.empty()) text += std::string(",") + key + "=" + value;
  };
  // A width alone stands for the groups of the linears.
  std::string head = options.head;
  if ((head == "w4" || head == "w8") && options.recipe.empty() && options.group != 0) {
    head += "g" + std::to_string(options.group);
  }
  add("head", head);
  add("embed", options.embedding);
  add("method", options.method);
  if (options.p != 0.0) add("p", std::to_string(options.p));
  add("weigh", options.weigh);
  add("scales", options.scales);
  add("kv", options.kv);
  return ParseRecipe(text);
}

OrderedJson Number(const std::optional<double>& value) { return value ? OrderedJson(*value) : OrderedJson(nullptr); }

OrderedJson ReportJson(const PackReport& report) {
  OrderedJson tensors = OrderedJson::array();
  for (const PackedTensorReport& tensor : report.tensors) {
    tensors.push_back({{"module", tensor.module},
                       {"shape", {tensor.rows, tensor.cols}},
                       {"source", tensor.source},
                       {"format", tensor.format},
                       {"exact", tensor.exact},
                       {"bits_per_weight", tensor.bits_per_weight},
                       {"sqnr_db", Number(tensor.sqnr_db)}});
  }
  return {{"path", report.path},
          {"recipe", report.recipe},
          {"bits_per_weight", report.bits_per_weight},
          {"sqnr_db", Number(report.sqnr_db)},
          {"bytes", report.file_bytes},
          {"source_bytes", report.source_bytes},
          {"seconds", report.seconds},
          {"peak_rss_bytes", report.peak_rss_bytes},
          {"tensors", tensors}};
}

Status ListCache(const Cli& cli) {
  PITH_ASSIGN(const std::string root, CacheRoot());
  PITH_ASSIGN(const std::vector<CachedPack> packs, ListPackCache(root));
  OrderedJson json = OrderedJson::array();
  for (const CachedPack& pack : packs) {
    if (cli.json()) {
      json.push_back({{"path", pack.path}, {"source", pack.source}, {"recipe", pack.recipe}, {"bytes", pack.bytes}});
    } else {
      std::printf("%-10s %s\n           of %s\n           %s\n", HumanBytes(pack.bytes).c_str(), pack.recipe.c_str(),
                  pack.source.c_str(), pack.path.c_str());
    }
  }
  if (cli.json()) PrintJson({{"packed", json}});
  return {};
}

Status RunPack(const Cli& cli, const PackCommandOptions& command) {
  if (command.list_cache) return ListCache(cli);
  if (command.model.empty() || command.out.empty()) {
    return Error{ErrorCode::kInvalidArgument, "pack needs a model and a directory to write"};
  }
  PITH_ASSIGN(const PackRecipe recipe, RecipeOf(command));
  PITH_ASSIGN(const std::string path, ResolveModel(command.model));
  PITH_ASSIGN(const auto checkpoint, Checkpoint::Open(path));
  PackOptions options;
  options.threads = command.threads;
  options.overwrite = command.force;
  InputMoments moments;
  if (!command.moments.empty()) {
    PITH_ASSIGN(moments, ReadInputMoments(command.moments));
    options.moments = &moments;
  }
  std::optional<ProgressBar> bar;
  std::string shown;
  const auto show = [&](const char* label, ProgressUnit unit, uint64_t done, uint64_t total) {
    if (shown != label) bar.emplace(label, total, unit);
    shown = label;
    bar->Update(done);
  };
  options.measure_moments = [&](const std::string& scratch) {
    return MeasureMomentsForPacking(*checkpoint, scratch, command.threads, [&](uint64_t done, uint64_t total) {
      show("measuring", ProgressUnit::kItems, done, total);
    });
  };
  options.on_progress = [&](uint64_t done, uint64_t total) { show("packing", ProgressUnit::kBytes, done, total); };
  PITH_ASSIGN(const PackReport report, PackCheckpoint(*checkpoint, recipe, command.out, options));
  bar.reset();
  if (cli.json()) {
    PrintJson(ReportJson(report));
  } else {
    std::fputs(PackReportText(report).c_str(), stdout);
  }
  return {};
}

}  // namespace

void AddPackCommand(Cli& cli) {
  auto options = std::make_shared<PackCommandOptions>();
  CLI::App* app = cli.AddCommand("pack", "Write a model with low-bit weights, in the layout of compressed-tensors.",
                                 "pith pack qwen2.5-coder-0.5b ./coder-w4 --group 32 --head w8\n"
                                 "  pith pack ./model ./packed --recipe w4g32m,head=w8g32,method=best,p=2");
  CLI::Option* model =
      app->add_option("model", options->model, "Model: a name of the catalogue, a directory or a GGUF file");
  model->type_name("MODEL");
  SetCompletion(model, {CompletionHint::Kind::kModel, {}});
  CLI::Option* out = app->add_option("out", options->out, "Directory to write; it must not be there yet");
  out->type_name("DIR");
  SetCompletion(out, {CompletionHint::Kind::kFile, {}});
  options->bits_option = app->add_option("--bits", options->bits, "Bits of the linears' weights")
                             ->check(CLI::IsMember(std::vector<int>{4, 8}).description(""))
                             ->type_name("4|8");
  options->group_option =
      app->add_option("--group", options->group, "Inputs that share a scale; 0 = one scale per output channel")
          ->check(CLI::IsMember(std::vector<int>{0, 32, 64, 128}).description(""))
          ->type_name("0|32|64|128");
  CLI::Option* zero = app->add_flag("--zero-point", options->zero_point, "Integer zero points beside the scales");
  app->add_flag("--min", options->minimum, "Float minimums beside the scales")->excludes(zero);
  AddChoiceOption(app, "--method", options->method, {"minmax", "lp", "best"}, "How the scales are found");
  app->add_option("--p", options->p, "Power of the error that lp and best reduce")
      ->check(CLI::Range(1.0, 16.0))
      ->type_name("P");
  app->add_option(
         "--head", options->head,
         "Format of the LM head: w4 or w8 in the groups of the linears, w8g32, ..., bf16, keep, or same as the linears")
      ->type_name("FORMAT");
  app->add_option("--embed", options->embedding, "Format of the embedding table: w8, w8g32, ..., bf16, f16, keep, same")
      ->type_name("FORMAT");
  AddChoiceOption(app, "--scales", options->scales, {"f16", "f32"}, "Type of scales and minimums");
  AddChoiceOption(app, "--kv", options->kv, {"8", "none"}, "Bits of keys and values, noted in config.json");
  app->add_option(
         "--recipe", options->recipe,
         "All of it at once: w4, w4g32, w4g32z, w4g32m, w8g32, keep, bf16, ...; then ,head=F,embed=F,method=M,p=P,"
         "scales=T,kv=B")
      ->type_name("RECIPE");
  AddChoiceOption(app, "--weigh", options->weigh, {"inputs", "none"},
                  "Weigh errors by how strongly inputs are used, which a short run of the model measures");
  CLI::Option* moments =
      app->add_option("--moments", options->moments,
                      "Weigh with this file instead: safetensors, E[x^2] per input, one vector per module");
  moments->type_name("FILE");
  SetCompletion(moments, {CompletionHint::Kind::kFile, {}});
  AddThreadsOption(app, options->threads);
  app->add_flag("--force", options->force, "Replace a packed model that is at DIR");
  app->add_flag("--list-cache", options->list_cache, "Show the models that were packed into the cache folder");
  cli.OnRun(app, [&cli, options] { return RunPack(cli, *options); });
}

}  // namespace pith
