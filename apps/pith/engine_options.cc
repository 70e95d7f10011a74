#include "engine_options.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string_view>

#include "base/progress.h"
#include "command.h"
#include "pull/model_cache.h"

namespace pith {

void AddEngineOptions(CLI::App* app, EngineFlags& flags) {
  AddModelOption(app, flags.model)->capture_default_str();
  app->add_option(
         "-w,--weights", flags.weights,
         "auto, stored, bf16, f32, or a packing recipe such as w4g32, w4, w8 (packed once into the cache folder)")
      ->capture_default_str();
  AddChoiceOption(app, "--kv-type", flags.kv, {"int8", "bf16", "f32"}, "Format of the KV cache")->capture_default_str();
  AddChoiceOption(app, "--activations", flags.activations, {"a16", "a8", "static"},
                  "Activations of packed linears: 16 or 8 bits; static: all as in a device export (pith calibrate)")
      ->capture_default_str();
  AddChoiceOption(app, "--adapter-type", flags.adapter_type, {"auto", "f32", "bf16", "int8"},
                  "How adapters are held; auto: int8 files as int8, others as bf16")
      ->capture_default_str();
  app->add_option("--template", flags.chat_template,
                  "Chat template: auto, qwen2.5, smollm2, qwen3, llama3, llama3.1, chatml")
      ->capture_default_str();
  app->add_option("-c,--ctx,--ctx-size", flags.context,
                  "Most tokens of a conversation; 0 = what the model was made for")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  AddThreadsOption(app, flags.threads);
}

Result<std::unique_ptr<TextModel>> LoadTextModel(const EngineFlags& flags) {
  PITH_ASSIGN(const std::string path, ResolveModel(flags.model));
  TextModelOptions options;
  options.weights = flags.weights;
  options.chat_template = flags.chat_template;
  options.engine.threads = flags.threads;
  options.engine.context = flags.context;
  options.engine.kv = flags.kv == "f32" ? KvType::kF32 : flags.kv == "bf16" ? KvType::kBF16 : KvType::kInt8;
  options.engine.activations = flags.activations == "a8" ? kernels::ActivationBits::k8 : kernels::ActivationBits::k16;
  options.engine.static_activations = flags.activations == "static";
  options.engine.adapters = flags.adapter_type == "f32" || (flags.adapter_type == "auto" && flags.weights == "f32")
                                ? LoraFormat::kF32
                            : flags.adapter_type == "bf16" ? LoraFormat::kBF16
                            : flags.adapter_type == "int8" ? LoraFormat::kInt8
                                                           : LoraFormat::kAuto;
  std::unique_ptr<ProgressBar> bar;
  std::string shown;
  auto phase_start = std::chrono::steady_clock::now();
  options.on_progress = [&](const char* phase, uint64_t done, uint64_t total) {
    const bool loading = std::string_view(phase) == "loading";
    const auto now = std::chrono::steady_clock::now();
    if (shown != phase) {
      // Where there is no terminal for a bar, the long wait of a first use is told once.
      if (shown.empty() && !loading && ::isatty(STDERR_FILENO) == 0) {
        std::fprintf(stderr, "pith: packing '%s' for its first use\n", flags.model.c_str());
      }
      shown = phase;
      phase_start = now;
      bar = std::make_unique<ProgressBar>(
          phase, total, std::string_view(phase) == "packing" ? ProgressUnit::kBytes : ProgressUnit::kItems);
    }
    // A model that is packed loads at once: nothing to see, and nothing to leave on the screen.
    if (loading && now - phase_start < std::chrono::milliseconds(300)) return;
    bar->Update(done);
    if (loading && done == total) bar->Clear();
  };
  return TextModel::Load(path, options);
}

void AddSamplingOptions(CLI::App* app, SamplingParams& sampling) {
  sampling.temperature = 0;
  app->add_option("--temp,--temperature", sampling.temperature, "Temperature; 0 = greedy")->capture_default_str();
  app->add_option("--top-k", sampling.top_k, "Keep the k most likely tokens; 0 = all")->capture_default_str();
  app->add_option("--top-p", sampling.top_p, "Keep the most likely tokens of this total probability")
      ->capture_default_str();
  app->add_option("--min-p", sampling.min_p, "Keep tokens with this share of the best one's probability")
      ->capture_default_str();
  app->add_option("--repeat-penalty,--repetition-penalty", sampling.repetition_penalty,
                  "Penalty of tokens already seen; 1 = none")
      ->capture_default_str();
  AddSeedOption(app, sampling.seed);
}

}  // namespace pith
