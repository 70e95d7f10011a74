// The decoder for training: the engine's architectures with gradients, on libtorch. No torch type appears here, so that
// what builds on it (SFT, GRPO, checkpoints) compiles without torch's headers.
//
//   auto model = TrainModel::Load(checkpoint, {.lora = LoraOptions{...}});
//   model->Accumulate(batch, weights)      forward and backward; gradients add up
//   optimizer.Step(model->parameters())    (optimizer.h)
//   model->ZeroGradients()
//
// Activations and trained parameters are float32. A frozen base is either float32 or the packed integers that the
// engine runs (BaseFormat::kPacked): then the forward pass multiplies with the very kernels and numbers of the runtime.
// Results are a function of the inputs and the number of threads alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/adapter.h"
#include "model/adapter_writer.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "train/train_batch.h"

namespace pith::train {

// How the frozen matrices are held.
enum class BaseFormat {
  kAuto,    // packed when the checkpoint is, else float32
  kPacked,  // the checkpoint's low-bit integers; forward by the engine's W4/W8-A16 product. Gradients of inputs go
            // through a transposed copy in 8 bits (groups of 32) with 16-bit gradient rows. kUnsupported for a
            // checkpoint without packed weights
  kF32,     // dequantized to float32, multiplied by the BLAS
};

struct LoraOptions {
  int64_t rank = 16;
  double alpha = 32;
  double dropout = 0;  // [0, 1)
  bool rslora = false;
  std::vector<LinearKind> targets = {LinearKind::kQ,    LinearKind::kK,  LinearKind::kV,   LinearKind::kO,
                                     LinearKind::kGate, LinearKind::kUp, LinearKind::kDown};
};

struct TrainModelOptions {
  BaseFormat base = BaseFormat::kAuto;
  // A fresh adapter (A uniform in +-1/sqrt(in), PEFT's Kaiming form with a = sqrt(5); B zero), drawn from `seed`.
  // Nothing = every parameter of the model is trained; the base is then float32.
  std::optional<LoraOptions> lora;
  uint64_t seed = 0;                    // of new parameters and of dropout
  bool gradient_checkpointing = false;  // recompute layers in the backward pass: about a third slower, far less memory
  int threads = 0;                      // 0 = one per hardware thread
  // What computes: "cpu" = this room's own functions; "cuda", "cuda:N", "torch" = torch's operators (device_decoder.h),
  // with a base in float32.
  std::string device = "cpu";
  // Compute with the numbers that the runtime will have (runtime_rounding.h): inputs of linears and of the head in 16
  // bits, keys and values in 8. Gradients pass straight through. A packed base computes with its integers anyway.
  bool round_activations = false;
  bool round_cache = false;
};

// One trained tensor. The spans stay valid and in place as long as the model lives.
struct Parameter {
  std::string name;            // PEFT's or Hugging Face's: "model.layers.0.self_attn.q_proj.lora_A.weight"
  std::vector<int64_t> shape;  // [out, in]
  std::span<float> value;
  std::span<float> gradient;
  bool decay = true;  // weight decay applies (matrices; not norms and biases)
};

// Of each labelled position, in the order of segments and positions.
struct TokenScores {
  std::vector<float> log_probs;  // natural log of the label's probability
  std::vector<float> entropies;  // of the whole distribution, in nats
};

class TrainModel {
 public:
  // Errors name the tensor: missing, wrong shape, not representable.
  static Result<std::unique_ptr<TrainModel>> Load(std::shared_ptr<const Checkpoint> checkpoint,
                                                  const TrainModelOptions& options);
  // A new model, all of whose parameters are trained: matrices and embeddings normal with deviation 0.02 (o and down
  // divided by sqrt(2 layers), as GPT-2 does), norms 1, biases 0. A pure function of config and seed.
  static Result<std::unique_ptr<TrainModel>> Random(const ModelConfig& config, const TrainModelOptions& options);
  ~TrainModel();
  TrainModel(const TrainModel&) = delete;
  TrainModel& operator=(const TrainModel&) = delete;

  const ModelConfig& config() const;
  const TrainModelOptions& options() const;
  bool is_lora() const { return options().lora.has_value(); }
  BaseFormat base() const;  // what is held: kPacked or kF32
  // Checkpoint::fingerprint of what was loaded; empty for a random model.
  const std::string& base_fingerprint() const;

  std::vector<Parameter>& parameters();
  int64_t TrainedElements() const;
  void ZeroGradients();

  // Forward and backward of loss = sum_i weights[i] * -log p(label i); gradients are added to the parameters'.
  // `weights` has one value per labelled position. Dropout is on, drawn from (seed, dropout_key, module, position); use
  // another key for every pass. kInvalidArgument: a token or label outside the vocabulary, sizes that do not agree, a
  // segment without tokens, a prefix while the whole model is trained; kNumeric: a loss that is not finite (gradients
  // are then undefined).
  Result<TokenScores> Accumulate(const TrainBatch& batch, std::span<const float> weights, uint64_t dropout_key = 0);

  // The same for a loss that depends on the log-probs themselves (GRPO): `gradient` gets the scores and returns
  // d loss / d log p of each label. The head is then computed twice. An error of `gradient` ends the call without a
  // backward pass.
  using ScoreGradient = std::function<Result<std::vector<float>>(const TokenScores& scores)>;
  Result<TokenScores> AccumulateScores(const TrainBatch& batch, const ScoreGradient& gradient,
                                       uint64_t dropout_key = 0);

  // The same for a loss of the logits themselves (distillation). `gradient` gets the logits [count, vocab] of labelled
  // positions first, first + 1, ... (the labels do not matter) and replaces them by d loss / d logits; it returns its
  // part of the loss. Called from several threads at once. Not with a LoRA on the head. Returns the loss.
  using LogitGradient = std::function<double(int64_t first, int64_t count, float* logits)>;
  Result<double> AccumulateLogits(const TrainBatch& batch, const LogitGradient& gradient, uint64_t dropout_key = 0);

  // Without gradient and dropout. `adapter` off: the base's scores, wherever the mask is (not the reference of GRPO:
  // that is a copy of the starting adapter, see CopyParameters).
  Result<TokenScores> Score(const TrainBatch& batch, bool adapter = true);
  // Logits of all segment positions [LiveTokens, vocab], and the states after the final norm; for tests and heads.
  struct Outputs {
    std::vector<float> logits;
    std::vector<float> states;  // [LiveTokens, hidden]
  };
  Result<Outputs> Run(const TrainBatch& batch, bool adapter = true, bool logits = true);

  // All parameter values, one after the other, and back. A frozen copy of the adapter is such a vector; swap it in to
  // score with it.
  std::vector<float> CopyParameters() const;
  Status SetParameters(std::span<const float> values);  // kInvalidArgument for another size

  // Adapters as PEFT directories. Loading wants exactly the targets, ranks and scalings of the options: kMismatch names
  // the module.
  Status LoadAdapter(const std::string& dir);
  Status SaveAdapter(const std::string& dir, AdapterStorage storage, const std::string& base_model = {}) const;
  // Views of the factors as they are now, for running them (Adapter::Make) or writing them; empty without LoRA. The
  // scaling is alpha / r, or alpha / sqrt(r) with options().lora->rslora.
  std::vector<LoraWeights> AdapterWeights() const;
  // The whole model as model.safetensors (F32 or BF16) and config.json; only without LoRA.
  Status SaveModel(const std::string& dir, DType type = DType::kBF16) const;

 private:
  struct Impl;
  explicit TrainModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What computes the float products: "OpenBLAS 0.3.21 (openmp) from /usr/lib/...". Call Prepare first thing in main,
// before any thread exists: it makes idle OpenMP threads sleep (unless OMP_WAIT_POLICY is set), since they would fight
// over the cores with the kernels' own threads. The warning is not empty when the reference BLAS, 50 times slower, is
// loaded.
struct BlasInfo {
  std::string description;
  std::string warning;
};
BlasInfo DescribeBlas();

}  // namespace pith::train
