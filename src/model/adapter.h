// A LoRA adapter on disk: a PEFT directory (adapter_config.json + adapter_model.safetensors).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/tensor.h"

namespace pith {

// The linears that LoRA can attach to.
enum class LinearKind { kQ, kK, kV, kO, kGate, kUp, kDown, kLmHead };
const char* LinearKindName(LinearKind kind);  // "q_proj", ..., "lm_head"

// Sizes of a linear in this model: {out, in}.
struct LinearShape {
  int64_t out;
  int64_t in;
};
LinearShape ShapeOf(const ModelConfig& config, LinearKind kind);
// Name of a linear in the Hugging Face model: "model.layers.3.self_attn.q_proj"; "lm_head" (layer is ignored).
std::string LinearName(int64_t layer, LinearKind kind);

// Largest rank of an adapter that can be read or written.
inline constexpr int64_t kMaxLoraRank = 256;
// `peft_type` of an INT8 adapter; the other one that is read is "LORA".
inline constexpr const char* kInt8PeftType = "PITH_LORA_INT8";

// One adapted linear: y += scaling * B (A x).
struct LoraModule {
  int64_t layer = 0;  // -1 for the LM head
  LinearKind kind = LinearKind::kQ;
  int64_t rank = 0;
  float scaling = 0;  // alpha / r, or alpha / sqrt(r) with rsLoRA; alpha and r per module by pattern
  Tensor a;           // [rank, in]: F32, F16, BF16, or I8 with a_scale
  Tensor b;           // [out, rank]
  // INT8 adapters: one F32 scale per row of a and of b (per output channel, symmetric), else empty tensors.
  Tensor a_scale;
  Tensor b_scale;
};

struct AdapterFile {
  std::string path;
  std::string fingerprint;  // 64 hex digits over config and data; part of KV provenance
  std::vector<LoraModule> modules;
  int64_t max_rank = 0;
  uint64_t file_bytes = 0;
  // aLoRA: the adapter acts from the first token of the last occurrence of these ids in the prompt. Empty = plain LoRA.
  std::vector<int32_t> invocation;
  // What was read but has no effect here, one sentence each (unknown config fields, another task, a scaling of 0).
  std::vector<std::string> warnings;

  // Reads a PEFT directory for a model. Every tensor must bind to a linear of the model with the right shape, every
  // module must have both A and B, and the set of modules must be the one that adapter_config.json declares
  // (target_modules, exclude_modules, layers_to_transform by PEFT's rules), else an error that names the tensor, the
  // module or the config field. Fields of adapter_config.json that change the result and are not supported (DoRA,
  // bias != "none", modules_to_save, layer replication, ...) are kUnsupported. NaN or infinite values are kNumeric.
  // Modules come in order of layer and kind, the LM head last.
  //
  // Tensors may be F32, F16 or BF16, as PEFT saves them, or in pith's own INT8 form: "...lora_A.weight" as I8 with
  // "...lora_A.weight_scale" as F32 [rows] beside it, and B likewise. peft_type is then written as kInt8PeftType: PEFT
  // would take the integers for the weights without a word, and this name makes it refuse the adapter.
  static Result<std::shared_ptr<const AdapterFile>> Open(const std::string& dir, const ModelConfig& config);
};

// Where the last occurrence of `pattern` begins in `tokens`; nothing if it does not occur or is empty.
std::optional<size_t> FindInvocation(std::span<const int32_t> tokens, std::span<const int32_t> pattern);

}  // namespace pith
