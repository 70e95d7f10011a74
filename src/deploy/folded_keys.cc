#include "deploy/folded_keys.h"

#include "deploy/matrix_reader.h"
#include "model/key_equalizer.h"

namespace pith {

Result<FoldedKeys> FoldedKeys::Of(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  const int64_t d = config.head_dim, group = config.heads / config.kv_heads;
  FoldedKeys folded;
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".", attention = layer + "self_attn.";
    if (checkpoint.Find(attention + "k_scale") != nullptr) continue;
    std::vector<float> input_norm, bias, norm;
    PITH_ASSIGN(input_norm, ReadVector(checkpoint, layer + "input_layernorm", "weight", config.hidden));
    if (config.attention_bias) {
      PITH_ASSIGN(bias, ReadVector(checkpoint, attention + "k_proj", "bias", config.kv_heads * d));
    }
    if (config.qk_norm) {
      PITH_ASSIGN(norm, ReadVector(checkpoint, attention + "k_norm", "weight", d));
    }
    PITH_ASSIGN(const MatrixReader matrix,
                MatrixReader::Open(checkpoint, attention + "k_proj", config.kv_heads * d, config.hidden));
    std::vector<float> keys = EqualizeKeys(
        config, {input_norm, bias, norm, [&matrix](int64_t row, float* values) { matrix.ReadRow(row, values); }});
    // With norms on the heads these decide the size of keys and queries, and all heads share them.
    std::vector<float> queries(static_cast<size_t>(config.qk_norm ? d : config.heads * d));
    for (size_t q = 0; q < queries.size(); ++q) {
      const auto head = static_cast<int64_t>(q) / d;
      queries[q] = 1.0F / keys[static_cast<size_t>(head / group * d + static_cast<int64_t>(q) % d)];
    }
    if (config.qk_norm) keys.resize(static_cast<size_t>(d));
    folded.factors_[attention + (config.qk_norm ? "k_norm" : "k_proj")] = std::move(keys);
    folded.factors_[attention + (config.qk_norm ? "q_norm" : "q_proj")] = std::move(queries);
  }
  return folded;
}

std::span<const float> FoldedKeys::Of(const std::string& module) const {
  const auto found = factors_.find(module);
  return found == factors_.end() ? std::span<const float>() : std::span<const float>(found->second);
}

void FoldedKeys::Apply(const std::string& module, int64_t begin, int64_t cols, std::span<float> values) const {
  const std::span<const float> factors = Of(module);
  if (factors.empty()) return;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] *= factors[static_cast<size_t>(begin) + i / static_cast<size_t>(cols)];
  }
}

}  // namespace pith
