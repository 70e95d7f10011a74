#include "deploy/graph_host.h"

#include <cmath>

namespace pith {

GraphHost::GraphHost(const ModelConfig& config, std::vector<const GraphEvaluator*> parts, int64_t tokens,
                     int64_t context, float mask_floor)
    : config_(config),
      parts_(std::move(parts)),
      tokens_(tokens),
      context_(context),
      mask_floor_(mask_floor),
      rope_(ComputeRopeFrequencies(config)) {
  const auto size = static_cast<size_t>(config.kv_heads * config.head_dim * (context - tokens));
  keys_.assign(static_cast<size_t>(config.layers), std::vector<float>(size));
  values_ = keys_;
}

Result<std::map<std::string, GraphArray>> GraphHost::Feed(
    std::span<const int32_t> ids, float lora_alpha, const std::map<std::string, GraphArray>& extra,
    const std::function<void(const std::string& name, std::span<const float> values)>& on_value) {
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t places = context_ - tokens_, pad = tokens_ - count, half = config_.head_dim / 2;
  if (count < 1 || count > tokens_ || length_ + count > places) {
    return Error{ErrorCode::kContextOverflow, std::to_string(count) + " tokens behind " + std::to_string(length_) +
                                                  " do not fit graphs for " + std::to_string(tokens_) + " of " +
                                                  std::to_string(context_)};
  }
  std::vector<float> tokens(static_cast<size_t>(tokens_)), mask(static_cast<size_t>(tokens_ * context_), mask_floor_);
  std::vector<float> cos(static_cast<size_t>(tokens_ * half)), sin(cos.size());
  for (int64_t r = 0; r < tokens_; ++r) {
    const int64_t position = r < pad ? 0 : length_ + r - pad;
    if (r >= pad) tokens[static_cast<size_t>(r)] = static_cast<float>(ids[static_cast<size_t>(r - pad)]);
    float* row = mask.data() + r * context_;
    if (r >= pad) std::fill_n(row, length_, 0.0F);
    for (int64_t c = r < pad ? r : pad; c <= r; ++c) row[places + c] = 0.0F;  // padding looks at itself
    for (int64_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(position) * static_cast<float>(rope_.inv_freq[static_cast<size_t>(j)]);
      cos[static_cast<size_t>(r * half + j)] = std::cos(angle) * static_cast<float>(rope_.attention_factor);
      sin[static_cast<size_t>(r * half + j)] = std::sin(angle) * static_cast<float>(rope_.attention_factor);
    }
  }
  std::map<std::string, GraphArray> all = extra;
  all["input_ids"] = GraphArray::Of({1, tokens_}, std::move(tokens));
  all["attention_mask"] = GraphArray::Of({1, 1, tokens_, context_}, std::move(mask));
  all["position_ids_cos"] = GraphArray::Of({1, 1, tokens_, half}, std::move(cos));
  all["position_ids_sin"] = GraphArray::Of({1, 1, tokens_, half}, std::move(sin));
  all["lora_alpha"] = GraphArray::Of({1}, {lora_alpha});
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const std::string number = std::to_string(layer);
    all["past_key_" + number + "_in"] =
        GraphArray::Of({config_.kv_heads, 1, config_.head_dim, places}, keys_[static_cast<size_t>(layer)]);
    all["past_value_" + number + "_in"] =
        GraphArray::Of({config_.kv_heads, 1, places, config_.head_dim}, values_[static_cast<size_t>(layer)]);
  }
  std::map<std::string, GraphArray> outputs;
  for (const GraphEvaluator* part : parts_) {
    PITH_ASSIGN(const auto computed, part->Run(all, on_value));
    for (const auto& [name, value] : computed) outputs[name] = all[name] = value;
  }
  Keep(outputs, count);
  return outputs;
}

void GraphHost::Keep(const std::map<std::string, GraphArray>& outputs, int64_t count) {
  const int64_t places = context_ - tokens_, pad = tokens_ - count, d = config_.head_dim;
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const std::string number = std::to_string(layer);
    const float* key = outputs.at("past_key_" + number + "_out").data.data();
    const float* value = outputs.at("past_value_" + number + "_out").data.data();
    std::vector<float>& keys = keys_[static_cast<size_t>(layer)];
    std::vector<float>& values = values_[static_cast<size_t>(layer)];
    for (int64_t h = 0; h < config_.kv_heads; ++h) {
      for (int64_t j = 0; j < d; ++j) {
        for (int64_t t = 0; t < count; ++t) {
          keys[static_cast<size_t>((h * d + j) * places + length_ + t)] = key[(h * d + j) * tokens_ + pad + t];
          values[static_cast<size_t>((h * places + length_ + t) * d + j)] = value[(h * tokens_ + pad + t) * d + j];
        }
      }
    }
  }
  length_ += count;
}

}  // namespace pith
