// Options that the training commands share, and what they load.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "command.h"
#include "model/chat_template.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"
#include "train/optimizer.h"
#include "train/train_model.h"

namespace pith {

struct TrainFlags {
  std::string model;
  std::string base = "auto";
  std::string chat_template = "auto";
  bool full = false;
  std::string config;     // a new model from a config.json ...
  std::string tokenizer;  // ... and a tokenizer.json
  std::string init_adapter;
  // Only adapters are trained (GRPO): the options of whole models are left out, and the start adapter's rank, scaling
  // and modules are taken where it is given.
  bool lora_of_adapter = false;
  int64_t lora_r = 16;
  double lora_alpha = 0;  // 0 = 2 r
  double lora_dropout = 0;
  bool use_rslora = false;
  std::string target_modules = "all-linear";
  // Keys and values as training sees them: int8 = as the runtime caches them; f32; auto = int8 for an adapter on a base
  // that runs (packed or dequantized), else f32. Of GRPO the rollouts' cache too, which may be bf16.
  std::string kv = "auto";
  bool gradient_checkpointing = false;
  int threads = 0;
  std::string device = "cpu";
  uint64_t seed = 42;
};

// -m, --base, --template, --full-parameters, --from-config, --tokenizer, --init-adapter, --lora-*, --target-modules,
// --kv-type,
// --gradient-checkpointing, --device, --threads, --seed. With lora_of_adapter: --adapter instead of --init-adapter, and
// neither whole models nor dropout.
void AddTrainModelOptions(CLI::App* app, TrainFlags& flags);
// --adam-*, --weight-decay.
void AddAdamWOptions(CLI::App* app, train::AdamWOptions& options);

struct LoadedForTraining {
  std::shared_ptr<const Checkpoint> checkpoint;  // null for a new model
  std::unique_ptr<train::TrainModel> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<TemplateFamily> family;
  std::string base_model;  // what is noted in the adapter
};

// Resolves and loads. With --base auto or packed, a model that is not packed is packed into the cache folder first, by
// the recipe that `pith ask` uses: what is trained is what runs. Warns on standard error about a slow BLAS.
Result<LoadedForTraining> LoadForTraining(const TrainFlags& flags);

// report.html of a run that has ended; what goes wrong with it is a warning on standard error.
void WriteReport(const std::string& output_dir);

}  // namespace pith
