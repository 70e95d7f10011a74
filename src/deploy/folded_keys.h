// The equalizer of the keys (model/key_equalizer.h), folded into what an exported graph computes keys and queries from:
// rows of k_proj and q_proj with their biases and their adapter's factor B, or the norms on the heads. All factors are
// powers of two, so integers of packed weights stay and only their scales change, and a float graph gives the same
// logits bit for bit.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/checkpoint.h"

namespace pith {

class FoldedKeys {
 public:
  // kNotFound, kMismatch, kUnsupported for weights that cannot be read. Layers whose checkpoint fixes a scale of the
  // keys (k_scale) stay as they are, as in the engine.
  static Result<FoldedKeys> Of(const Checkpoint& checkpoint);

  // Factors of the outputs of a module ("model.layers.3.self_attn.k_proj"); empty where nothing changes.
  std::span<const float> Of(const std::string& module) const;

  // values[r, :] *= Of(module)[begin + r]; values has rows of `cols` values.
  void Apply(const std::string& module, int64_t begin, int64_t cols, std::span<float> values) const;

 private:
  std::map<std::string, std::vector<float>> factors_;
};

}  // namespace pith
