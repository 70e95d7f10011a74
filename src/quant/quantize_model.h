// From a model to a packed directory: transforms, local optimization, range search, error feedback. What `pith
// quantize` runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/pack.h"
#include "quant/local_optimizer.h"

namespace pith::quant {

// What is done before and while the integers are chosen.
struct Method {
  std::string name;
  bool rotate = false;    // T_r, a random Hadamard matrix
  bool optimize = false;  // T_k, T_v, T_u by local optimization
  bool feedback = false;  // GPTQ
  // What finds the scales when the format does not say.
  QuantMethod ranges = QuantMethod::kBest;
};

// "minmax", "l2", "best", "gptq": no transforms. "hadamard": T_r alone. "fptquant": T_r, T_k, T_v, T_u.
// "hadamard+gptq", "fptquant+gptq". kInvalidArgument lists them.
Result<Method> ParseMethod(const std::string& name);
std::vector<std::string> MethodNames();

struct QuantizeOptions {
  Method method;
  PackRecipe recipe;  // formats and range search
  LocalOptions local;
  uint64_t seed = 0;            // of the rotation
  std::vector<int32_t> tokens;  // calibration, for error feedback
  std::string tokens_of;        // what they are, for the record
  int64_t window = 2048;        // tokens that see each other
  double damping = 0.01;        // of Gram matrices
  uint64_t gram_bytes = uint64_t{2} << 30;
  int threads = 0;
  std::function<void(const std::string& stage, uint64_t done, uint64_t total)> on_progress;
};

// What local optimization did to one layer.
struct LayerReport {
  double loss_before = 0, loss_after = 0;
  double value_condition = 1;  // largest condition number of T_v's matrices
};

struct QuantizeReport {
  std::string rotation;  // Rotation::description; empty = none
  std::vector<LayerReport> layers;
  bool resumed = false;  // finished pieces of an interrupted run were used
  PackReport pack;
};

// Writes the packed model to `out_dir`, which must not be there yet. What is finished on the way (transforms of layers,
// the merged float model, the 8-bit model for calibration) is kept in "<out_dir>.work" until the end, so that the same
// call goes on where an interrupted one stopped; kMismatch when the folder belongs to other options.
Result<QuantizeReport> QuantizeModel(const std::string& model_path, const std::string& out_dir,
                                     const QuantizeOptions& options);

}  // namespace pith::quant
