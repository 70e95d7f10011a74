// What a model is: the architecture and its sizes, from config.json or GGUF metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace pith {

enum class Architecture { kLlama, kQwen2, kQwen3 };

enum class RopeScalingKind { kNone, kLinear, kLlama3, kYarn };

// RoPE frequency scaling as in transformers' `rope_scaling` / `rope_parameters`.
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;              // llama3
  double high_freq_factor = 4.0;             // llama3
  int64_t original_max_position = 0;         // llama3, yarn
  double attention_factor = 0.0;             // yarn; 0 = derived from factor
  double beta_fast = 32.0, beta_slow = 1.0;  // yarn
};

// Sizes are validated on load: all positive, heads divisible by kv_heads, head_dim even, and every product below fits
// in int64.
struct ModelConfig {
  Architecture arch = Architecture::kLlama;
  int64_t hidden = 0;        // width of the residual stream
  int64_t intermediate = 0;  // width of the MLP
  int64_t layers = 0;
  int64_t heads = 0;     // query heads
  int64_t kv_heads = 0;  // key/value heads (GQA)
  int64_t head_dim = 0;
  int64_t vocab = 0;  // rows of the embedding and of the LM head
  int64_t max_position = 0;
  double rms_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  // For llama3-scaled GGUF files: per-pair divisors of the inverse frequencies (head_dim / 2 values), else empty.
  std::vector<float> rope_frequency_divisors;
  bool tied_embeddings = false;     // the LM head is the embedding table
  bool attention_bias = false;      // biases on q, k, v (qwen2; llama with attention_bias also on o)
  bool attention_out_bias = false;  // bias on o
  bool mlp_bias = false;            // biases on gate, up, down (llama only)
  bool qk_norm = false;             // RMSNorm on each query and key head before RoPE (qwen3)
  int64_t bos_id = -1;              // -1 = none
  std::vector<int32_t> eos_ids;     // ids that end generation (config, generation_config or GGUF)
};

const char* ArchitectureName(Architecture arch);  // "llama", "qwen2", "qwen3"

// Frequencies of RoPE: inv_freq[j] for pair j (components j and j + head_dim / 2), with the scaling applied, and the
// factor that multiplies cos and sin (1 except for yarn). Formulas as in transformers' modeling_rope_utils.
struct RopeFrequencies {
  std::vector<double> inv_freq;  // head_dim / 2 values
  double attention_factor = 1.0;
};
RopeFrequencies ComputeRopeFrequencies(const ModelConfig& config);

// Parses the text of a Hugging Face config.json. Unknown architectures, missing or out-of-range sizes are typed errors
// that name the key.
Result<ModelConfig> ParseHfConfig(const std::string& text, const std::string& what);

}  // namespace pith
