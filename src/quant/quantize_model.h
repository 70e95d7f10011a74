// From a model to a packed directory: transforms, local optimization, end-to-end training, range search, error
// feedback, tuning. What `pith quantize` runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/pack.h"
#include "quant/end_to_end.h"
#include "quant/input_scaling.h"
#include "quant/local_optimizer.h"
#include "quant/outliers.h"
#include "quant/student.h"
#include "quant/transform_student.h"

namespace pith::quant {

// What is done before and while the integers are chosen.
struct Method {
  std::string name;
  bool rotate = false;    // T_r, a random Hadamard matrix
  bool optimize = false;  // T_k, T_v, T_u by local optimization
  bool feedback = false;  // GPTQ
  ScalingKind scaling = ScalingKind::kNone;
  // What finds the scales when the format does not say.
  QuantMethod ranges = QuantMethod::kBest;

  bool needs_text() const { return feedback || scaling != ScalingKind::kNone; }
};

// "minmax", "l2", "best", "gptq": no transforms. "hadamard": T_r alone. "fptquant": T_r, T_k, T_v, T_u.
// "hadamard+gptq", "fptquant+gptq". "smoothquant", "awq": scales of inputs alone, the baselines. kInvalidArgument lists
// them.
Result<Method> ParseMethod(const std::string& name);
std::vector<std::string> MethodNames();

// Training on a text. Two stages, each of which may be left out: transforms and ranges under plain rounding before the
// integers are chosen, and scales, norms and integers afterwards.
struct TrainingOptions {
  int64_t steps = 0;       // of transforms and ranges
  int64_t tune_steps = 0;  // after the integers are chosen
  TransformTrainables transforms;
  IntegerTrainables integers;
  double learning_rate = 1e-3;
  double tune_learning_rate = 5e-4;
  std::vector<int32_t> tokens;  // the text; the last `held_out` windows of it are measured on
  int64_t window = 512;         // tokens that see each other
  int64_t windows_per_step = 4;
  int64_t held_out = 4;
  int64_t save_steps = 25;
  std::string device = "cpu";  // train::TrainModelOptions; other devices do not round activations and cache
};

struct QuantizeOptions {
  Method method;
  PackRecipe recipe;  // formats and range search
  LocalOptions local;
  TrainingOptions training;
  uint64_t seed = 0;            // of the rotation and of the order of the training text
  std::vector<int32_t> tokens;  // calibration, for error feedback
  std::string tokens_of;        // what they are, for the record
  int64_t window = 2048;        // tokens that see each other
  double damping = 0.01;        // of Gram matrices
  uint64_t gram_bytes = uint64_t{2} << 30;
  bool outliers = true;  // measure them for the report
  int threads = 0;
  std::function<void(const std::string& stage, uint64_t done, uint64_t total)> on_progress;
  const std::atomic<bool>* cancel = nullptr;  // kCancelled after a training step once true
};

// What local optimization did to one layer.
struct LayerReport {
  double loss_before = 0, loss_after = 0;
  double value_condition = 1;  // largest condition number of T_v's matrices
};

// What end-to-end training made of the transforms.
struct TrainedTransformsReport {
  double orthogonality_error = 0;  // largest |R^T R - I|
  double value_condition = 1;      // largest condition number of T_v's matrices
  double key_scale_spread = 1;     // largest ratio of two scales of one head, T_k
  double up_spread = 1;            // largest ratio of two factors of one layer, T_u
};

struct QuantizeReport {
  std::string rotation;  // Rotation::description; empty = none
  std::vector<LayerReport> layers;
  std::optional<EndToEndReport> training, tuning;
  TrainedTransformsReport trained;
  // What the transforms made of the outliers of inputs, over the built-in calibration text; empty when they were not
  // asked for, or when the model has no tokenizer.
  std::vector<InputOutliers> outliers;
  bool resumed = false;  // finished pieces of an interrupted run were used
  PackReport pack;
};

// Writes the packed model to `out_dir`, which must not be there yet. What is finished on the way (transforms of layers,
// the merged float model, the teacher's states, checkpoints of training, the 8-bit model for calibration) is kept in
// "<out_dir>.work" until the end, so that the same call goes on where an interrupted one stopped; kMismatch when the
// folder belongs to other options.
Result<QuantizeReport> QuantizeModel(const std::string& model_path, const std::string& out_dir,
                                     const QuantizeOptions& options);

}  // namespace pith::quant
