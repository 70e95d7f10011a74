// ModelConfig from GGUF metadata: the keys of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "model/config_checks.h"
#include "model/gguf.h"

namespace pith {

namespace {

// Control tokens that end a turn or a text in the supported families. A GGUF file names one of them as its end of
// sequence; a model may emit the others too (Hugging Face lists them in generation_config.json).
constexpr std::array<std::string_view, 5> kEndTexts = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>",
                                                       "<|end_of_text|>"};
constexpr int64_t kControlToken = 3;  // of tokenizer.ggml.token_type

Status AddId(const GgufFile& gguf, std::string_view key, std::vector<int32_t>* ids) {
  if (!gguf.Has(key)) return {};
  PITH_ASSIGN(const int64_t id, gguf.GetInt(key));
  // Files write 2^32 - 1 or -1 for "none".
  if (id < 0 || id > std::numeric_limits<int32_t>::max()) return {};
  if (std::find(ids->begin(), ids->end(), static_cast<int32_t>(id)) == ids->end()) {
    ids->push_back(static_cast<int32_t>(id));
  }
  return {};
}

Status ReadEndIds(const GgufFile& gguf, ModelConfig* config) {
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    PITH_RETURN_IF_ERROR(AddId(gguf, key, &config->eos_ids));
  }
  if (!gguf.Has("tokenizer.ggml.tokens") || !gguf.Has("tokenizer.ggml.token_type")) return {};
  PITH_ASSIGN(const auto tokens, gguf.GetStrings("tokenizer.ggml.tokens"));
  PITH_ASSIGN(const auto types, gguf.GetInts("tokenizer.ggml.token_type"));
  if (tokens.size() != types.size() || tokens.size() > std::numeric_limits<int32_t>::max()) {
    return Error{ErrorCode::kMalformed, gguf.what() + ": 'tokenizer.ggml.tokens' and '.token_type' differ in length"};
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] != kControlToken) continue;
    if (std::find(kEndTexts.begin(), kEndTexts.end(), tokens[id]) == kEndTexts.end()) continue;
    const auto end_id = static_cast<int32_t>(id);
    if (std::find(config->eos_ids.begin(), config->eos_ids.end(), end_id) == config->eos_ids.end()) {
      config->eos_ids.push_back(end_id);
    }
  }
  return {};
}

Status ReadRopeScaling(const GgufFile& gguf, const std::string& prefix, ModelConfig* config) {
  RopeScaling& scaling = config->rope_scaling;
  PITH_ASSIGN(const std::string_view type, gguf.GetString(prefix + "rope.scaling.type", "none"));
  // Older files give a linear factor and no type.
  PITH_ASSIGN(const double old_linear, gguf.GetFloat(prefix + "rope.scale_linear", 1.0));
  PITH_ASSIGN(scaling.factor, gguf.GetFloat(prefix + "rope.scaling.factor", old_linear));
  if (type == "yarn") {
    scaling.kind = RopeScalingKind::kYarn;
    PITH_ASSIGN(scaling.original_max_position,
                gguf.GetInt(prefix + "rope.scaling.original_context_length", config->max_position));
    PITH_ASSIGN(scaling.beta_fast, gguf.GetFloat(prefix + "rope.scaling.yarn_beta_fast", 32.0));
    PITH_ASSIGN(scaling.beta_slow, gguf.GetFloat(prefix + "rope.scaling.yarn_beta_slow", 1.0));
    // In GGUF the attention factor multiplies the one that YaRN derives from the scaling factor.
    PITH_ASSIGN(const double attention, gguf.GetFloat(prefix + "rope.scaling.attn_factor", 1.0));
    if (attention != 1.0 && scaling.factor > 1.0) {
      scaling.attention_factor = attention * (0.1 * std::log(scaling.factor) + 1.0);
    }
  } else if (type == "linear" || (type == "none" && old_linear != 1.0)) {
    scaling.kind = RopeScalingKind::kLinear;
  } else if (type != "none") {
    return Error{ErrorCode::kUnsupported,
                 gguf.what() + ": RoPE scaling type '" + std::string(type.substr(0, 40)) + "' is not supported"};
  }

  const Tensor* divisors = gguf.FindTensor("rope_freqs.weight");
  if (divisors == nullptr) return {};
  if (divisors->shape != std::vector<int64_t>{config->head_dim / 2}) {
    return Error{ErrorCode::kMismatch, gguf.what() + ": tensor 'rope_freqs.weight' has shape " +
                                           ShapeText(divisors->shape) + ", not half the head size"};
  }
  PITH_ASSIGN(config->rope_frequency_divisors, ToFloats(*divisors));
  for (const float divisor : config->rope_frequency_divisors) {
    if (!std::isfinite(divisor) || divisor <= 0.0f) {
      return Error{ErrorCode::kMalformed,
                   gguf.what() + ": tensor 'rope_freqs.weight' holds a value that is not positive"};
    }
  }
  return {};
}

}  // namespace

Result<ModelConfig> ConfigFromGguf(const GgufFile& gguf) {
  PITH_ASSIGN(const std::string_view kind, gguf.GetString("general.type", "model"));
  if (kind != "model") {
    return Error{ErrorCode::kUnsupported,
                 gguf.what() + " is of type '" + std::string(kind.substr(0, 40)) + "', not a model"};
  }
  PITH_ASSIGN(const std::string_view name, gguf.GetString("general.architecture"));
  const std::optional<Architecture> arch = ArchitectureByName(name);
  if (!arch) {
    return Error{ErrorCode::kUnsupported, gguf.what() + ": architecture '" + std::string(name.substr(0, 40)) +
                                              "' is not supported (llama, qwen2 and qwen3 are)"};
  }
  ModelConfig config;
  config.arch = *arch;
  const std::string prefix = std::string(ArchitectureName(*arch)) + ".";
  PITH_ASSIGN(config.hidden, gguf.GetInt(prefix + "embedding_length"));
  PITH_ASSIGN(config.intermediate, gguf.GetInt(prefix + "feed_forward_length"));
  PITH_ASSIGN(config.layers, gguf.GetInt(prefix + "block_count"));
  PITH_ASSIGN(config.heads, gguf.GetInt(prefix + "attention.head_count"));
  PITH_ASSIGN(config.kv_heads, gguf.GetInt(prefix + "attention.head_count_kv", config.heads));
  PITH_ASSIGN(config.max_position, gguf.GetInt(prefix + "context_length"));
  PITH_ASSIGN(config.rms_eps, gguf.GetFloat(prefix + "attention.layer_norm_rms_epsilon"));
  PITH_ASSIGN(config.rope_theta, gguf.GetFloat(prefix + "rope.freq_base", 10000.0));

  const int64_t even_share = config.heads > 0 ? config.hidden / config.heads : 0;
  PITH_ASSIGN(config.head_dim, gguf.GetInt(prefix + "attention.key_length", even_share));
  PITH_ASSIGN(const int64_t value_dim, gguf.GetInt(prefix + "attention.value_length", config.head_dim));
  PITH_ASSIGN(const int64_t rotary_dim, gguf.GetInt(prefix + "rope.dimension_count", config.head_dim));
  PITH_ASSIGN(const int64_t window, gguf.GetInt(prefix + "attention.sliding_window", 0));
  PITH_ASSIGN(const int64_t experts, gguf.GetInt(prefix + "expert_count", 0));
  PITH_ASSIGN(const double attention_scale, gguf.GetFloat(prefix + "attention.scale", 0.0));
  PITH_ASSIGN(const double logit_scale, gguf.GetFloat(prefix + "logit_scale", 0.0));
  PITH_ASSIGN(const bool causal, gguf.GetBool(prefix + "attention.causal", true));
  PITH_ASSIGN(const int64_t parts, gguf.GetInt("split.count", 1));
  const char* unsupported = parts > 1                                      ? "a model split over several files is"
                            : value_dim != config.head_dim                 ? "value heads unlike the key heads are"
                            : rotary_dim != config.head_dim                ? "RoPE on a part of each head is"
                            : window != 0                                  ? "sliding-window attention is"
                            : experts != 0                                 ? "mixture of experts is"
                            : attention_scale != 0.0 || logit_scale != 0.0 ? "a scale of attention or logits is"
                            : !causal                                      ? "attention that is not causal is"
                                                                           : nullptr;
  if (unsupported != nullptr) {
    return Error{ErrorCode::kUnsupported, gguf.what() + ": " + unsupported + " not supported"};
  }

  const Tensor* embedding = gguf.FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    return Error{ErrorCode::kNotFound, gguf.what() + " has no two-dimensional tensor 'token_embd.weight'"};
  }
  config.vocab = embedding->rows();
  PITH_RETURN_IF_ERROR(CheckConfig(config, gguf.what()));

  config.tied_embeddings = gguf.FindTensor("output.weight") == nullptr;
  config.attention_bias = gguf.FindTensor("blk.0.attn_q.bias") != nullptr;
  config.attention_out_bias = gguf.FindTensor("blk.0.attn_output.bias") != nullptr;
  config.mlp_bias = gguf.FindTensor("blk.0.ffn_gate.bias") != nullptr;
  config.qk_norm = *arch == Architecture::kQwen3;
  PITH_RETURN_IF_ERROR(ReadRopeScaling(gguf, prefix, &config));
  PITH_RETURN_IF_ERROR(CheckConfig(config, gguf.what()));

  std::vector<int32_t> bos;
  PITH_RETURN_IF_ERROR(AddId(gguf, "tokenizer.ggml.bos_token_id", &bos));
  if (!bos.empty()) config.bos_id = bos.front();
  PITH_RETURN_IF_ERROR(ReadEndIds(gguf, &config));
  return config;
}

}  // namespace pith
