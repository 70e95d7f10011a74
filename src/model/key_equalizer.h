// The equalizer of the keys: powers of two by which keys are multiplied before they are stored, and queries divided,
// the same for both components of a RoPE pair, so that scores stay the same bits. It brings channels of very different
// sizes (Qwen2.5's biases) to the range of one int8 scale.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/config.h"

namespace pith {

// What of a layer decides its equalizer.
struct KeyProjection {
  std::span<const float> input_norm;                         // [hidden], of the layer's attention norm
  std::span<const float> bias;                               // [kv_heads * head_dim]; empty = none
  std::span<const float> norm;                               // [head_dim], with config.qk_norm
  std::function<void(int64_t row, float* values)> read_row;  // hidden weights of k_proj, rows in Hugging Face's order
};

// [kv_heads * head_dim]; with config.qk_norm the same for every head.
std::vector<float> EqualizeKeys(const ModelConfig& config, const KeyProjection& keys);

}  // namespace pith
