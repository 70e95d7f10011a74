// A LoRA adapter on disk: a PEFT directory (adapter_config.json + adapter_model.safetensors).
#pragma once

#include <cstdint>
#include <memory>
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

  // Reads a PEFT directory for a model. Every tensor must bind to a linear of the model with the right shape, and every
  // module must have both A and B, else an error that names the tensor or the config field. Fields of
  // adapter_config.json that change the result and are not supported (DoRA, bias != "none", modules_to_save,
  // layer replication, ...) are kUnsupported.
  static Result<std::shared_ptr<const AdapterFile>> Open(const std::string& dir, const ModelConfig& config);
};

}  // namespace pith
