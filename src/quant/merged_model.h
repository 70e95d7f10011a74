// A model with its transforms merged into the weights, as an ordinary Hugging Face directory in float32.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "quant/transforms.h"

namespace pith::quant {

// Scales s [hidden] of what the linears behind the two norms of a layer read; empty = none.
struct NormScales {
  std::vector<float> attention, mlp;
};

struct MergeOptions {
  // The transforms of a layer, given its weights with gains folded and the rotation applied. Called in order.
  std::function<Result<LayerTransforms>(int64_t layer, const LayerWeights& weights)> layer_transforms;
  // Asked after it: columns of the linears are multiplied by s, the gains of the norms become 1 / s. Not with a
  // rotation.
  std::function<NormScales(int64_t layer)> norm_scales;
  std::function<void(int64_t done, int64_t total)> on_layer;
};

// Writes `out_dir`, which must not be there yet: config.json, model.safetensors and the tokenizer's files. The gains of
// the norms are folded into the linears behind them (all but those on queries and keys become 1), so a tied head is
// untied. One layer, or a piece of the embedding, is in memory at a time; the directory appears under its name when it
// is whole. kInvalidArgument: something is at out_dir, sizes; kNumeric; kIo.
Status WriteMergedModel(const Checkpoint& checkpoint, const std::vector<float>& rotation, ThreadPool& pool,
                        const std::string& out_dir, const MergeOptions& options);

}  // namespace pith::quant
