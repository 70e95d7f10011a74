// config.json: whatever the text, the configuration, its RoPE frequencies and its quantization are read or refused.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "model/config.h"
#include "model/config_checks.h"
#include "model/hf_names.h"
#include "model/quantization_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  auto config = pith::ParseHfConfig(text, "input");
  if (!config.ok()) {
    if (config.error().message.empty()) std::abort();
    return 0;
  }
  const auto rope = pith::ComputeRopeFrequencies(*config);
  if (rope.inv_freq.size() != static_cast<size_t>(config->head_dim / 2)) std::abort();
  (void)pith::MergeGenerationConfig(text, "input", &*config);
  if (config->layers > 4) return 0;  // only for speed; a checkpoint bounds the layers by its tensors
  const auto modules = pith::ModulesOf(*config);
  const auto quantization = pith::ParseQuantizationConfig(text, modules, "input");
  if (quantization.ok() && *quantization) {
    for (const pith::ModelModule& module : modules) {
      const pith::QuantScheme* scheme = (*quantization)->SchemeFor(module.name);
      if (scheme != nullptr && scheme->bits != 4 && scheme->bits != 8) std::abort();
    }
  }
  return 0;
}
