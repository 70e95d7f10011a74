// The JSON files of a Hugging Face directory, written from a GGUF file.
#pragma once

#include <string>

#include "base/result.h"
#include "model/config.h"

namespace pith {

class GgufFile;

// config.json of a model without a quantization_config. kUnsupported when Hugging Face's class for the architecture
// cannot express it: a mix of biases, or RoPE divisors that are not those of a Llama 3 model.
Result<std::string> HfConfigText(const ModelConfig& config);

// tokenizer.json and tokenizer_config.json (chat template, special tokens) with which the tokenizers library gives the
// same ids as Tokenizer::FromGguf. generation_config.json: where generation ends.
struct HfTokenizerFiles {
  std::string tokenizer;
  std::string tokenizer_config;
};
Result<HfTokenizerFiles> HfTokenizerOfGguf(const GgufFile& gguf, int64_t max_position);
std::string HfGenerationConfigText(const ModelConfig& config);

}  // namespace pith
