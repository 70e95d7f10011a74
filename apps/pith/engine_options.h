// Options of the subcommands that run a model, and loading it with them.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "base/result.h"
#include "engine/sampler.h"
#include "engine/text_model.h"

namespace pith {

struct EngineFlags {
  std::string model = "qwen2.5-coder-0.5b";
  std::string weights = "auto";
  std::string kv = "int8";
  std::string activations = "a16";
  std::string adapter_type = "auto";
  std::string chat_template = "auto";
  int64_t context = 0;
  int threads = 0;
};

// -m, --weights, --kv-type, --activations, --template, --ctx, --threads.
void AddEngineOptions(CLI::App* app, EngineFlags& flags);
// Resolves the model's name and loads it; packs it into the cache first when that is needed (with a progress bar).
Result<std::unique_ptr<TextModel>> LoadTextModel(const EngineFlags& flags);

// --temp, --top-k, --top-p, --min-p, --repeat-penalty, --seed.
void AddSamplingOptions(CLI::App* app, SamplingParams& sampling);

}  // namespace pith
