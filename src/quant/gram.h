// Gram matrices H = sum x x^T of the inputs of linears over a text, for GPTQ.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace pith::quant {

// Measures layers on demand, as many at a time as fit in `memory_bytes` (at least one), each time by a run over all
// tokens. Layers are to be asked for in order: what lies before the run's first layer is forgotten. The LM head comes
// with the last layer.
class GramMatrices {
 public:
  // Tokens in windows that see nothing of each other.
  GramMatrices(Engine& engine, std::vector<int32_t> tokens, int64_t window, uint64_t memory_bytes);

  // H of the inputs of a module ("model.layers.3.mlp.up_proj", "lm_head"), [cols, cols]; valid until the next call.
  // Modules that read the same activations share one.
  Result<const std::vector<float>*> Of(const std::string& module);
  // The name under which the inputs of a module are kept: q_proj for k_proj and v_proj, gate_proj for up_proj.
  static std::string InputOf(const std::string& module);

  std::function<void(int64_t done, int64_t total)> on_tokens;  // of one run

 private:
  Status Measure(int64_t first_layer);
  void Add(const std::string& module, const float* x, int64_t rows, int64_t cols);

  Engine& engine_;
  std::vector<int32_t> tokens_;
  int64_t window_;
  int64_t layers_per_run_;
  std::map<std::string, std::vector<float>> grams_;
};

}  // namespace pith::quant
