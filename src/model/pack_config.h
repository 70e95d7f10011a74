// config.json of a packed model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/hf_names.h"
#include "model/quantize.h"

namespace pith {

// How one linear or embedding module is stored; nothing = as floats.
struct StoredModule {
  ModelModule module;
  std::optional<QuantFormat> format;
};

// The text of config.json for a model that is stored like this: `config_text` (the source's config.json) with
// tie_word_embeddings set to `tied` (no lm_head is among the modules then) and, when any module is quantized, a
// `quantization_config` of compressed-tensors. The format of
// most linears gets the class "Linear" as its target, other formats the names of their modules. KV in `kv_bits` bits,
// when given, are dynamic, per token.
Result<std::string> PackedConfigText(const std::string& config_text, const std::vector<StoredModule>& modules,
                                     bool tied, std::optional<int> kv_bits, const std::string& what);

}  // namespace pith
