// The weights of a model in the form that the forward pass multiplies with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/float_matmul.h"
#include "kernels/qmatmul.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace pith {

// How the linears are held.
enum class WeightFormat {
  kStored,  // as the checkpoint has them: packed stays packed, floats stay floats
  kBF16,    // rounded to bf16
  kF32,
};

// One linear layer: y = W x + b. Either packed low-bit weights or floats. Views point into the mapped checkpoint where
// its bytes can be used as they are, else into owned memory.
struct Linear {
  std::unique_ptr<kernels::QuantMatrix> packed;  // null for floats
  FloatMatrix matrix;                            // when packed is null
  std::vector<float> bias;                       // empty = none
  int64_t rows = 0;
  int64_t cols = 0;
};

// The token embedding table, row by row to float.
struct EmbeddingTable {
  Tensor table;                                  // float types; empty when packed
  std::unique_ptr<kernels::QuantMatrix> packed;  // 4 or 8 bits

  // Row `token` as floats; 0 <= token < vocab (the caller checks).
  void Row(int32_t token, float* out) const;
};

struct LayerWeights {
  std::vector<float> attention_norm;  // [hidden]
  std::vector<float> mlp_norm;        // [hidden]
  std::vector<float> q_norm, k_norm;  // [head_dim], qwen3 only
  // Equalizer of the keys before they are stored, and its inverse on the queries (with 1 / sqrt(head_dim) in it):
  // powers of two, the same for both components of a RoPE pair, so that no score changes in exact arithmetic, nor in
  // float. An int8 cache has one scale per token and head; the keys of some models (Qwen2.5's biases) have channels a
  // hundred times larger than others, which would drown them in that scale's rounding. It is the scale part of
  // FPTQuant's pre-RoPE transform T_k (arXiv 2506.04985), chosen from the weights alone.
  std::vector<float> key_scale;    // [kv_heads * head_dim]
  std::vector<float> query_scale;  // [heads * head_dim]
  // Scales of an int8 cache that the checkpoint fixes for the whole layer (k_scale, v_scale); 0: one per token and
  // head.
  float k_static_scale = 0;
  float v_static_scale = 0;
  Linear q, k, v, o, gate, up, down;
};

struct ModelWeights {
  ModelConfig config;
  EmbeddingTable embedding;
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  Linear lm_head;
  WeightFormat format = WeightFormat::kStored;
  std::string description;       // "bf16", "w4g32 (lm_head w8g32)", ...
  uint64_t bytes_per_token = 0;  // weight bytes that one decode step reads
  uint64_t owned_bytes = 0;      // bytes held outside the mapped files

  // Builds the weights. Row-permuted GGUF tensors are put in Hugging Face order. Missing tensors and shapes that do not
  // fit are errors that name the tensor.
  // `on_layer` is called with the layers done, of how many.
  static Result<std::unique_ptr<ModelWeights>> Load(std::shared_ptr<const Checkpoint> checkpoint, WeightFormat format,
                                                    std::function<void(int64_t done, int64_t total)> on_layer = {});

 private:
  friend class WeightLoader;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::vector<std::vector<std::byte>> owned_;  // converted float matrices
};

}  // namespace pith
