#include "train_options.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>

#include "base/cache_folder.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "engine/calibrate.h"
#include "eval/training_report.h"
#include "model/pack_cache.h"
#include "model/tokenizer_file.h"
#include "pull/model_cache.h"

namespace pith {

namespace {

Result<std::vector<LinearKind>> ParseTargets(const std::string& text) {
  const std::vector<LinearKind> all = {LinearKind::kQ,    LinearKind::kK,  LinearKind::kV,   LinearKind::kO,
                                       LinearKind::kGate, LinearKind::kUp, LinearKind::kDown};
  if (text == "all-linear") return all;
  std::vector<LinearKind> targets;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    begin = end + 1;
    bool found = name == LinearKindName(LinearKind::kLmHead);
    if (found) targets.push_back(LinearKind::kLmHead);
    for (const LinearKind kind : all) {
      if (name != LinearKindName(kind)) continue;
      targets.push_back(kind);
      found = true;
    }
    if (!found) {
      return Error{ErrorCode::kInvalidArgument, "--target-modules: '" + name +
                                                    "' is none of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
                                                    "down_proj, lm_head, all-linear"};
    }
  }
  return targets;
}

// Widths that the packed kernels can run.
bool CanBePacked(const ModelConfig& config) {
  return config.hidden % 32 == 0 && config.intermediate % 32 == 0 && config.heads * config.head_dim % 32 == 0;
}

Result<std::shared_ptr<const Checkpoint>> PackedCheckpoint(const Checkpoint& source, int threads) {
  PITH_ASSIGN(const std::string cache, CacheRoot());
  std::optional<ProgressBar> bar;
  PackOptions pack;
  pack.threads = threads;
  pack.on_progress = [&bar](uint64_t done, uint64_t total) {
    if (!bar) bar.emplace("packing", total);
    bar->Update(done);
  };
  pack.measure_moments = [&](const std::string& scratch) { return MeasureMomentsForPacking(source, scratch, threads); };
  PITH_ASSIGN(const std::string dir, PackToCache(source, DefaultRecipeFor(source), cache, pack));
  return Checkpoint::Open(dir);
}

Result<ModelConfig> ReadConfig(const std::string& path) {
  PITH_ASSIGN(const auto file, MappedFile::Open(path));
  const std::string text(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  return ParseHfConfig(text, path);
}

// Of the adapter, and what comes after it in the help.
void AddLoraOptions(CLI::App* app, TrainFlags& flags) {
  app->add_option("--lora-r", flags.lora_r, "Rank of the adapter")->check(CLI::Range(1, 256))->capture_default_str();
  app->add_option("--lora-alpha", flags.lora_alpha, "Its alpha (scaling is alpha / r); twice the rank when not given");
  app->add_flag("--use-rslora", flags.use_rslora, "Scaling alpha / sqrt(r)");
  app->add_option("--target-modules", flags.target_modules,
                  "Linears that it acts on: all-linear, or names with commas (q_proj,v_proj,...,lm_head)")
      ->type_name("NAMES")
      ->capture_default_str();
  std::vector<std::string> formats = {"auto", "int8", "f32"};
  if (flags.lora_of_adapter) formats.insert(formats.begin() + 2, "bf16");
  AddChoiceOption(app, "--kv-type", flags.kv, formats,
                  flags.lora_of_adapter
                      ? "KV cache of the rollouts and, when int8, its rounding in training (auto: int8)"
                      : "Keys and values in training: rounded as the runtime's int8 cache has them (auto: for an "
                        "adapter, but not with --base f32), or as they are");
  app->add_flag("--gradient-checkpointing", flags.gradient_checkpointing,
                "Compute layers again in the backward pass: slower, in far less memory");
  app->add_option("--device", flags.device,
                  "What computes: cpu, or cuda or cuda:N where libtorch was built for it (torch: its operators on the "
                  "CPU)")
      ->type_name("NAME")
      ->capture_default_str();
  AddThreadsOption(app, flags.threads);
  AddSeedOption(app, flags.seed)->capture_default_str();
}

// The options of an adapter that is there: its rank and scaling, which must be the same everywhere, and its modules.
Result<train::LoraOptions> LoraOptionsOf(const std::string& dir, const ModelConfig& config) {
  PITH_ASSIGN(const auto file, AdapterFile::Open(dir, config));
  train::LoraOptions lora;
  lora.targets.clear();
  const LoraModule& first = file->modules.front();
  lora.rank = first.rank;
  lora.alpha = static_cast<double>(first.scaling) * static_cast<double>(first.rank);
  for (const LoraModule& module : file->modules) {
    if (module.rank != first.rank || module.scaling != first.scaling) {
      return Error{ErrorCode::kUnsupported, "'" + dir + "' has modules of different ranks or scalings"};
    }
    if (std::find(lora.targets.begin(), lora.targets.end(), module.kind) == lora.targets.end()) {
      lora.targets.push_back(module.kind);
    }
  }
  return lora;
}

}  // namespace

void AddTrainModelOptions(CLI::App* app, TrainFlags& flags) {
  CLI::Option* model = AddModelOption(app, flags.model);
  AddChoiceOption(app, "--base", flags.base, {"auto", "packed", "dequantized", "f32"},
                  "How the frozen weights are held: packed, as they run (auto, where the widths allow it); those in "
                  "float32; or the model's own in float32");
  app->add_option("--template", flags.chat_template, "Chat template; auto finds it from the model")
      ->type_name("NAME")
      ->capture_default_str();
  if (flags.lora_of_adapter) {
    CLI::Option* start = app->add_option("--adapter,--init-adapter", flags.init_adapter,
                                         "Begin with this adapter, in its rank, scaling and modules, instead of a "
                                         "fresh one");
    start->type_name("DIR");
    SetCompletion(start, {CompletionHint::Kind::kFile, {}});
    AddLoraOptions(app, flags);
    for (const char* name : {"--lora-r", "--lora-alpha", "--use-rslora", "--target-modules"}) {
      start->excludes(app->get_option(name));
    }
    return;
  }
  CLI::Option* full =
      app->add_flag("--full-parameters", flags.full, "Train all parameters of the model instead of an adapter");
  CLI::Option* config =
      app->add_option("--from-config", flags.config, "Train a new model with this config.json, from random weights");
  config->type_name("FILE");
  SetCompletion(config, {CompletionHint::Kind::kFile, {}});
  CLI::Option* tokenizer = app->add_option("--tokenizer", flags.tokenizer, "Its tokenizer.json");
  tokenizer->type_name("FILE")->needs(config);
  config->needs(tokenizer);
  SetCompletion(tokenizer, {CompletionHint::Kind::kFile, {}});
  CLI::Option* init = app->add_option("--init-adapter", flags.init_adapter,
                                      "Begin with this adapter instead of a fresh one; its ranks and scalings must be "
                                      "those of the options");
  init->type_name("DIR")->excludes(full);
  SetCompletion(init, {CompletionHint::Kind::kFile, {}});
  AddLoraOptions(app, flags);
  app->add_option("--lora-dropout", flags.lora_dropout, "Dropout on the adapter's inputs")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  // What a new model or a whole one has no use for is refused, not ignored.
  config->excludes(model)->excludes(init);
  for (const char* name : {"--lora-r", "--lora-alpha", "--lora-dropout", "--use-rslora", "--target-modules"}) {
    config->excludes(app->get_option(name));
    full->excludes(app->get_option(name));
  }
}

void AddAdamWOptions(CLI::App* app, train::AdamWOptions& options) {
  app->add_option("--adam-beta1", options.beta1, "AdamW")->check(CLI::Range(0.0, 0.99999))->capture_default_str();
  app->add_option("--adam-beta2", options.beta2, "AdamW")->check(CLI::Range(0.0, 0.99999))->capture_default_str();
  app->add_option("--adam-epsilon", options.epsilon, "AdamW")->capture_default_str();
  app->add_option("--weight-decay", options.weight_decay, "Decoupled weight decay of matrices")->capture_default_str();
}

Result<LoadedForTraining> LoadForTraining(const TrainFlags& flags) {
  const train::BlasInfo blas = train::DescribeBlas();
  if (!blas.warning.empty()) std::fprintf(stderr, "pith: WARNING: %s\n", blas.warning.c_str());

  train::TrainModelOptions options;
  options.seed = flags.seed;
  options.gradient_checkpointing = flags.gradient_checkpointing;
  options.threads = flags.threads;
  options.device = flags.device;
  LoadedForTraining loaded;
  if (!flags.config.empty()) {
    PITH_ASSIGN(const ModelConfig config, ReadConfig(flags.config));
    PITH_ASSIGN(loaded.tokenizer, OpenTokenizer(flags.tokenizer));
    if (loaded.tokenizer->size() > config.vocab) {
      return Error{ErrorCode::kMismatch, "the tokenizer has " + std::to_string(loaded.tokenizer->size()) +
                                             " tokens, the config a vocabulary of " + std::to_string(config.vocab)};
    }
    if (flags.chat_template != "auto") {
      PITH_ASSIGN(loaded.family, ParseTemplateFamily(flags.chat_template));
    }
    options.round_cache = flags.kv == "int8";
    PITH_ASSIGN(loaded.model, train::TrainModel::Random(config, options));
    return loaded;
  }

  if (flags.model.empty()) return Error{ErrorCode::kInvalidArgument, "training needs a model (-m) or --from-config"};
  loaded.base_model = flags.model;
  PITH_ASSIGN(const std::string path, ResolveModel(flags.model));
  PITH_ASSIGN(loaded.checkpoint, Checkpoint::Open(path));
  if (flags.full) {
    options.round_cache = flags.kv == "int8";
    if (flags.base == "packed") {
      return Error{ErrorCode::kInvalidArgument, "--base packed is frozen: it does not go with --full-parameters"};
    }
  } else {
    train::LoraOptions lora;
    lora.rank = flags.lora_r;
    lora.alpha = flags.lora_alpha != 0 ? flags.lora_alpha : 2.0 * static_cast<double>(flags.lora_r);
    lora.dropout = flags.lora_dropout;
    lora.rslora = flags.use_rslora;
    PITH_ASSIGN(lora.targets, ParseTargets(flags.target_modules));
    if (flags.lora_of_adapter && !flags.init_adapter.empty()) {
      PITH_ASSIGN(lora, LoraOptionsOf(flags.init_adapter, loaded.checkpoint->config()));
    }
    options.lora = lora;
    const bool packed = loaded.checkpoint->quantization().has_value();
    const bool wanted = flags.base == "packed" || flags.base == "dequantized" ||
                        (flags.base == "auto" && CanBePacked(loaded.checkpoint->config()));
    if (wanted && !packed) {
      PITH_ASSIGN(loaded.checkpoint, PackedCheckpoint(*loaded.checkpoint, flags.threads));
    }
    const bool floats = flags.base == "f32" || flags.base == "dequantized";
    options.base = floats ? train::BaseFormat::kF32 : train::BaseFormat::kAuto;
    options.round_cache = flags.kv == "int8" || (flags.kv == "auto" && (flags.lora_of_adapter || flags.base != "f32"));
  }
  PITH_ASSIGN(loaded.tokenizer, CheckpointTokenizer(*loaded.checkpoint));
  if (flags.chat_template != "auto") {
    PITH_ASSIGN(loaded.family, ParseTemplateFamily(flags.chat_template));
  } else if (const auto family = CheckpointTemplate(*loaded.checkpoint); family.ok()) {
    loaded.family = *family;
  }
  PITH_ASSIGN(loaded.model, train::TrainModel::Load(loaded.checkpoint, options));
  if (!flags.init_adapter.empty()) PITH_RETURN_IF_ERROR(loaded.model->LoadAdapter(flags.init_adapter));
  return loaded;
}

void WriteReport(const std::string& output_dir) {
  if (const auto report = WriteTrainingReport(output_dir); !report.ok()) {
    std::fprintf(stderr, "pith: warning: no report of the run: %s\n", report.error().message.c_str());
  }
}

}  // namespace pith
