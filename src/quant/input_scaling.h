// Scales on the inputs of linears, moved into what comes before them: the baselines SmoothQuant (arXiv 2211.10438) and
// AWQ (arXiv 2306.00978), as far as they concern weights. Inputs that are large get weights of more integers: W_j s_j
// meets x_j / s_j.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/quantize.h"
#include "quant/transforms.h"

namespace pith::quant {

enum class ScalingKind {
  kNone,
  kSmooth,  // s_j = sqrt(r_j / max |W_j|), the migration strength 1/2 of SmoothQuant
  kAwq,     // s_j = r_j^a, a of {0, 0.05, ..., 0.95} with the least error of the outputs
};
// r_j is the root mean square of input j over the calibration text, for which both papers take other averages (the
// largest value, the mean of absolute values). All scales of one linear are divided by the geometric mean of their
// extremes, as in AWQ's code.

// Of one layer. Inputs of q, k, v come from the first norm and those of gate and up from the second, whose gains take
// 1 / s; those of o from the values (the mean over the query heads of a group) and those of down from up, where the
// scales are T_v and T_u.
struct LayerScaling {
  std::vector<float> attention, mlp;  // s, [hidden]
  LayerTransforms transforms;
};

// The Gram matrix sum x x^T [cols, cols] of the inputs of a linear of the layer ("self_attn.q_proj").
using GramOf = std::function<Result<const std::vector<float>*>(const std::string& linear)>;

// `weights` with gains folded; the Gram matrices are those of inputs without gains. `quantizer` measures AWQ's errors.
Result<LayerScaling> ScaleLayer(const ModelConfig& config, const LayerWeights& weights, ScalingKind kind,
                                const Quantizer& quantizer, const GramOf& gram, ThreadPool& pool);

// s for matrices that read the same inputs; `gram` [cols, cols].
std::vector<float> InputScales(const std::vector<const WeightMatrix*>& matrices, ScalingKind kind,
                               const Quantizer& quantizer, const std::vector<float>& gram, ThreadPool& pool);

}  // namespace pith::quant
