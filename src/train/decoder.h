// The decoder as a graph of autograd functions. Includes torch: only for .cc files of src/train and src/quant.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "engine/weights.h"
#include "train/autograd.h"
#include "train/head.h"
#include "train/train_model.h"

namespace pith::train {

struct DecoderLayer {
  at::Tensor attention_norm, mlp_norm;
  at::Tensor q_norm, k_norm;  // qwen3
  Projection q, k, v, o, gate, up, down;
  // The same, by the input that they share.
  std::vector<const Projection*> qkv, output, gate_up, down_only;
};

class Decoder {
 public:
  ModelConfig config;
  std::vector<DecoderLayer> layers;
  at::Tensor final_norm;
  at::Tensor embedding;                             // [vocab, hidden] when trained
  const EmbeddingTable* embedding_table = nullptr;  // when frozen
  at::Tensor head_weight;                           // [vocab, hidden] when trained; may be the embedding
  Projection head_lora;                             // only its factors
  Head head;

  // Calls visit(tensor) for every tensor that may be trained.
  void ForEachTensor(const std::function<void(at::Tensor&)>& visit);
  // Sets what points into the tensors of this object: after building, copying, or changing them.
  void Link();

  // Input rows of the tokens.
  at::Tensor Embed(const std::vector<int32_t>& tokens, ThreadPool& pool) const;
  // Residual stream after layer `index`.
  at::Tensor Layer(int64_t index, const at::Tensor& x, const Pass& pass) const;
  // The same without a graph inside: what the backward pass needs is computed again.
  at::Tensor CheckpointedLayer(int64_t index, const at::Tensor& x, const Pass& pass) const;
  // Only the keys and values of a layer, kept in the pass.
  void KeysValuesOnly(int64_t index, const at::Tensor& x, const Pass& pass) const;

 private:
  struct Heads {
    at::Tensor q, k, v;
  };
  Heads QueriesKeysValues(int64_t index, const at::Tensor& x, const Pass& pass) const;
};

}  // namespace pith::train
