// Data-free optimization of the transforms of a layer: a smaller L^p norm of its weights means fewer outliers.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "quant/transforms.h"

namespace pith::quant {

struct LocalOptions {
  bool keys = true, values = true, up = true;  // which transforms
  double p = 4.0;                              // of the norm
  double learning_rate = 1e-2;                 // of AdamW without decay
  int64_t iterations = 200;
};

struct LocalResult {
  LayerTransforms transforms;
  double loss_before = 0, loss_after = 0;
};

// Minimizes the sum over q, k, v, o, up and down of (mean |W~|^p)^(1/p), W~ with the transforms merged, from the
// identity. Scales are exponentials of what is trained, so they stay positive. `weights` with gains folded and rotated.
// A function of its arguments. kNumeric when the loss is not finite.
Result<LocalResult> OptimizeLayer(const ModelConfig& config, const LayerWeights& weights, const LocalOptions& options);

}  // namespace pith::quant
