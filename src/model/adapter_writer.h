// Writes a LoRA adapter as a PEFT directory (adapter_config.json + adapter_model.safetensors).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/adapter.h"
#include "model/config.h"

namespace pith {

enum class AdapterStorage {
  kF32,   // PEFT reads it
  kBF16,  // PEFT reads it; values are rounded to nearest even
  kInt8,  // only pith reads it: I8 per row, symmetric, |q| <= 127, with "weight_scale" F32 [rows] (see
          // AdapterFile::Open)
};

// One adapted linear to be written. The spans must outlive the call only.
struct LoraWeights {
  int64_t layer = 0;  // ignored for the LM head
  LinearKind kind = LinearKind::kQ;
  int64_t rank = 0;          // 1 to kMaxLoraRank
  double alpha = 0;          // scaling is alpha / rank, or alpha / sqrt(rank) with rsLoRA
  std::span<const float> a;  // [rank, in], finite
  std::span<const float> b;  // [out, rank], finite
};

struct AdapterWriteOptions {
  AdapterStorage storage = AdapterStorage::kBF16;
  bool rslora = false;
  double dropout = 0;                    // recorded only, in [0, 1)
  std::string base_model = {};           // base_model_name_or_path; empty = null
  std::vector<int32_t> invocation = {};  // aLoRA invocation tokens; empty = plain LoRA
};

// kInvalidArgument names the module: no modules, duplicates, layers outside the model, wrong sizes, values that are not
// finite.
Status CheckLoraWeights(const ModelConfig& config, std::span<const LoraWeights> modules);

// Writes the two files into `dir`, which is created if needed; each file appears complete or not at all. Equal ranks
// and alphas become `r` and `lora_alpha`, differing ones rank_pattern and alpha_pattern by full module name. Errors as
// CheckLoraWeights; kIo.
Status WriteAdapter(const std::string& dir, const ModelConfig& config, std::span<const LoraWeights> modules,
                    const AdapterWriteOptions& options);

}  // namespace pith
