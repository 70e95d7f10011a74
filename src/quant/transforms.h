// Transforms of weights that leave the model's function as it is and can be merged into them: FPTQuant's
// (arXiv 2506.04985) T_k, T_v, T_u and a rotation of the residual stream T_r. Row vectors, y = x W^T + b; d = head_dim;
// query head i reads the keys and values of head i / (heads / kv_heads).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace pith::quant {

// Of one layer. An empty vector is no transform of that kind.
struct LayerTransforms {
  // T_k: pair j of key head h, components (j, j + d/2), becomes scale * Rot(angle) of itself; the query pairs of the
  // group get Rot(angle) / scale. [kv_heads, d / 2] each, scale > 0. Not with norms on queries and keys.
  std::vector<float> key_angle, key_scale;
  // T_v: v_h becomes v_h M_h, the columns of o_proj get the inverse. [kv_heads, d, d], invertible.
  std::vector<float> value;
  // T_u: up_proj's outputs times u, down_proj's inputs divided by it. [intermediate], not 0.
  std::vector<float> up;

  bool empty() const { return key_angle.empty() && key_scale.empty() && value.empty() && up.empty(); }
};

struct Transforms {
  std::vector<float> rotation;  // T_r: x becomes x R; [hidden, hidden], orthogonal; empty = none
  std::vector<LayerTransforms> layers;
};

struct WeightMatrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;  // [rows, cols]
  std::vector<float> bias;    // [rows] or empty
};

// The matrices of one layer with the gains of the norms before them multiplied in, so that those norms' gains are 1.
struct LayerWeights {
  WeightMatrix q, k, v, o, gate, up, down;
};

// Layer `index` of a checkpoint of any format, gains folded.
Result<LayerWeights> ReadLayer(const Checkpoint& checkpoint, int64_t index);

// kInvalidArgument: sizes that do not fit the model, T_k with norms on queries and keys; kNumeric: not finite, a scale
// that is not positive, a matrix without inverse.
Status CheckTransforms(const ModelConfig& config, const LayerTransforms& transforms);
// Applies T_k, T_v and T_u, which CheckTransforms has passed.
Status MergeLayer(const ModelConfig& config, const LayerTransforms& transforms, LayerWeights* weights);
// Applies R on the inputs of q, k, v, gate and up and on the outputs of o and down.
void RotateLayer(const std::vector<float>& rotation, ThreadPool& pool, LayerWeights* weights);
// matrix R, for embeddings and the head: rows are residual vectors or read them.
void RotateInputs(const std::vector<float>& rotation, ThreadPool& pool, WeightMatrix* matrix);

// What undoes a transform (kNumeric without an inverse), and the one that is `first`, then `second`.
Result<LayerTransforms> Inverse(const ModelConfig& config, const LayerTransforms& transforms);
LayerTransforms Compose(const ModelConfig& config, const LayerTransforms& first, const LayerTransforms& second);
std::vector<float> Transposed(const std::vector<float>& matrix, int64_t n);

// Largest condition number (ratio of the extreme singular values) among the matrices of T_v, by Jacobi's method; 1 for
// none.
double ValueCondition(const ModelConfig& config, const LayerTransforms& transforms);

}  // namespace pith::quant
