// Parts of reading a ModelConfig that the Hugging Face and the GGUF reader share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/config.h"

namespace pith {

class GgufFile;

std::optional<Architecture> ArchitectureByName(std::string_view name);

// Ranges of all sizes and numbers (see ModelConfig). kMalformed names the value.
Status CheckConfig(const ModelConfig& config, const std::string& what);

// Adds the end-of-sequence ids of a generation_config.json.
Status MergeGenerationConfig(const std::string& text, const std::string& what, ModelConfig* config);

// The configuration in a GGUF file's metadata and tensors.
Result<ModelConfig> ConfigFromGguf(const GgufFile& gguf);

}  // namespace pith
