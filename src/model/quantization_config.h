// `quantization_config` of a compressed-tensors checkpoint.
// Format: https://github.com/vllm-project/compressed-tensors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"
#include "model/hf_names.h"

namespace pith {

// Reads the `quantization_config` of a config.json and resolves its targets against the linear and embedding modules of
// the model, as compressed-tensors does: an exact name wins over a "re:" pattern (matched from the start of the name),
// a pattern over the class ("Linear", "Embedding"). Nothing when the model is not quantized.
// kUnsupported for other methods, formats and fields that change what the numbers mean; all errors name the field.
Result<std::optional<QuantizationConfig>> ParseQuantizationConfig(const std::string& config_json,
                                                                  const std::vector<ModelModule>& modules,
                                                                  const std::string& what);

}  // namespace pith
