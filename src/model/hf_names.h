// The tensors that a model consists of: their Hugging Face names and shapes, and the GGUF names of the same tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace pith {

enum class ModuleKind { kLinear, kEmbedding, kNorm };

// A module of the model and the shape of its weight; `bias` says whether it has one too, of the first dimension.
struct ModelModule {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  ModuleKind kind;
  std::vector<int64_t> shape;  // [out, in], [vocab, hidden] or [size]
  bool bias = false;
};

// All modules of a model with this configuration, in the order of the forward pass. lm_head is there unless it is tied.
std::vector<ModelModule> ModulesOf(const ModelConfig& config);

// "blk.0.attn_q.weight" -> "model.layers.0.self_attn.q_proj.weight". Nothing for names that are not part of a model.
std::optional<std::string> HfNameOfGguf(std::string_view name);
// And back.
std::optional<std::string> GgufNameOfHf(std::string_view name);

}  // namespace pith
