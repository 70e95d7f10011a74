#include "model/hf_names.h"

#include <charconv>
#include <utility>

namespace pith {

std::vector<ModelModule> ModulesOf(const ModelConfig& config) {
  const int64_t query = config.heads * config.head_dim;
  const int64_t kv = config.kv_heads * config.head_dim;
  std::vector<ModelModule> modules;
  modules.push_back({"model.embed_tokens", ModuleKind::kEmbedding, {config.vocab, config.hidden}});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const auto norm = [&](const char* name, int64_t size) {
      modules.push_back({prefix + name, ModuleKind::kNorm, {size}});
    };
    const auto linear = [&](const char* name, int64_t out, int64_t in, bool bias) {
      modules.push_back({prefix + name, ModuleKind::kLinear, {out, in}, bias});
    };
    norm("input_layernorm", config.hidden);
    linear("self_attn.q_proj", query, config.hidden, config.attention_bias);
    linear("self_attn.k_proj", kv, config.hidden, config.attention_bias);
    linear("self_attn.v_proj", kv, config.hidden, config.attention_bias);
    if (config.qk_norm) {
      norm("self_attn.q_norm", config.head_dim);
      norm("self_attn.k_norm", config.head_dim);
    }
    linear("self_attn.o_proj", config.hidden, query, config.attention_out_bias);
    norm("post_attention_layernorm", config.hidden);
    linear("mlp.gate_proj", config.intermediate, config.hidden, config.mlp_bias);
    linear("mlp.up_proj", config.intermediate, config.hidden, config.mlp_bias);
    linear("mlp.down_proj", config.hidden, config.intermediate, config.mlp_bias);
  }
  modules.push_back({"model.norm", ModuleKind::kNorm, {config.hidden}});
  if (!config.tied_embeddings) modules.push_back({"lm_head", ModuleKind::kLinear, {config.vocab, config.hidden}});
  return modules;
}

namespace {

using NamePair = std::pair<std::string_view, std::string_view>;  // GGUF, Hugging Face
constexpr NamePair kGlobalNames[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};
constexpr NamePair kLayerNames[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};
constexpr std::string_view kGgufBlock = "blk.";
constexpr std::string_view kHfBlock = "model.layers.";

// A name that begins with `from`, a layer and one of the layer's tensors, with the other side's texts in their places.
std::optional<std::string> TranslateLayerName(std::string_view name, std::string_view from, std::string_view to,
                                              bool from_gguf) {
  if (!name.starts_with(from)) return std::nullopt;
  name.remove_prefix(from.size());
  uint32_t layer = 0;
  const auto [digits_end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc()) return std::nullopt;
  const std::string_view digits = name.substr(0, static_cast<size_t>(digits_end - name.data()));
  if (digits.size() > 1 && digits.front() == '0') return std::nullopt;  // one spelling per layer
  name.remove_prefix(digits.size());
  for (const auto& [gguf, hf] : kLayerNames) {
    for (const char* suffix : {".weight", ".bias"}) {
      if (name == "." + std::string(from_gguf ? gguf : hf) + suffix) {
        return std::string(to) + std::string(digits) + "." + std::string(from_gguf ? hf : gguf) + suffix;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> HfNameOfGguf(std::string_view name) {
  for (const auto& [gguf, hf] : kGlobalNames) {
    if (name == gguf) return std::string(hf);
  }
  return TranslateLayerName(name, kGgufBlock, kHfBlock, true);
}

std::optional<std::string> GgufNameOfHf(std::string_view name) {
  for (const auto& [gguf, hf] : kGlobalNames) {
    if (name == hf) return std::string(gguf);
  }
  return TranslateLayerName(name, kHfBlock, kGgufBlock, false);
}

}  // namespace pith
