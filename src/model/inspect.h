// What a file or directory holds, for people and scripts that want to know before they run it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/chat_template.h"
#include "model/checkpoint.h"
#include "model/tensor.h"

namespace pith {

enum class ArtefactKind { kHuggingFace, kGguf, kSafetensors, kAdapter, kTokenizer };
const char* ArtefactKindName(ArtefactKind kind);  // "huggingface", "gguf", "safetensors", "adapter", "tokenizer"

struct Inspection {
  ArtefactKind kind = ArtefactKind::kHuggingFace;
  uint64_t file_bytes = 0;
  std::vector<Tensor> tensors;  // by name
  uint64_t tensor_bytes = 0;

  // Weights: of a model what its config says, whatever form they are stored in; else the elements of the tensors.
  int64_t parameters = 0;
  double bits_per_weight = 0;  // 8 * tensor_bytes / parameters; 0 without tensors

  std::shared_ptr<const Checkpoint> checkpoint;  // of a model

  // Tokenizer and template. Absent where there is no such thing beside the model; `template_error` says why a template
  // that is there is not one of the supported families.
  std::optional<int32_t> tokenizer_size;
  std::optional<TemplateFamily> template_family;
  std::string template_error;

  // Of an adapter: declared target modules (empty when given as a pattern), modules by rank, notes of the reader.
  std::vector<std::string> adapter_targets;
  std::map<int64_t, int64_t> adapter_modules_by_rank;
  std::vector<std::string> warnings;
};

// Reads and validates a Hugging Face directory, a GGUF file, a safetensors file, a PEFT adapter directory or a
// tokenizer.json. Errors as from the reader of each; a directory that is none of them is kUnsupported.
Result<Inspection> InspectPath(const std::string& path);

// Weights of a model by its config: embedding, LM head when not tied, and all layers.
int64_t CountParameters(const ModelConfig& config);

}  // namespace pith
