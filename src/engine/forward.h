// One forward pass over a batch of rows (tokens of one or more sequences). Internal to the engine.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/batch_attention.h"
#include "engine/engine.h"

namespace pith {

class Engine::Forward {
 public:
  explicit Forward(Engine& engine);

  // The sequences have already been extended by the items' tokens.
  StepOutput Run(std::span<const StepItem> items);

 private:
  // Rows [begin, end) that run with one adapter.
  struct AdapterRun {
    const Adapter* adapter;
    int64_t begin, end;
  };

  void Resize(int64_t rows);
  void Embed(std::span<const StepItem> items);
  void ComputeRope(std::span<const StepItem> items);
  void NormRows(const float* x, const std::vector<float>& weight, float* out);
  void RunLayer(int64_t index);
  // Value by value; with static activations or an observer (static_forward.cc).
  bool value_by_value() const { return engine_.static_ != nullptr || engine_.observer_ != nullptr; }
  void RunStaticLayer(int64_t index);
  void Visit(int64_t layer, ActivationSite site, std::span<float> values);
  void RotateStatic(int64_t layer, std::vector<float>* x, int64_t heads, const ActivationSite (&sites)[5]);
  void AttendStatic(int64_t layer, int64_t row, int64_t head, float* out);
  // out = W x + b (+ LoRA) for linears that read the same x[rows, cols].
  struct Target {
    const Linear* linear;
    LinearKind kind;
    float* out;
  };
  void Multiply(std::span<const Target> targets, const float* x, int64_t rows, int64_t layer,
                std::span<const AdapterRun> runs);
  void AddFloatLora(std::span<const Target> targets, const float* x, int64_t layer, std::span<const AdapterRun> runs);

  // The packed factors of one target for the rows of one run.
  struct PackedLora {
    const Target* target;
    const LoraFactors* factors;
    const AdapterRun* run;
    int64_t middle;  // offset of A x in lora_
    int64_t delta;   // offset of B (A x) in lora_
  };
  void PlanPackedLora(std::span<const Target> targets, const float* x, int64_t cols, int64_t layer,
                      std::span<const AdapterRun> runs, std::vector<kernels::QuantProduct>* products);
  void AddPackedLora();

  Engine& engine_;
  const ModelWeights& weights_;
  const ModelConfig& config_;
  ThreadPool& pool_;
  BatchAttention attention_;

  int64_t rows_ = 0;
  std::vector<AdapterRun> runs_;
  std::vector<int64_t> positions_;    // of each row
  std::vector<Sequence*> sequences_;  // of each row
  std::vector<float> x_, normed_, q_, k_, v_, mixed_, gate_, up_, projected_;
  std::vector<float> rope_cos_, rope_sin_;           // [rows, head_dim / 2]
  std::array<std::vector<float>, 4> rope_products_;  // value by value: [rows, heads, head_dim / 2]
  std::vector<float> sigmoid_;
  std::vector<float> lora_;  // A x of all targets and rows
  std::vector<float> logits_, states_, head_input_;
  std::vector<PackedLora> packed_lora_;  // of the product at hand
  // Quantized inputs: of 4-bit and 8-bit matrices, by scale kind; of the A and the B of packed adapters, by run and
  // part.
  kernels::QuantActivations activations_[2][2];
  std::vector<kernels::QuantActivations> lora_inputs_, lora_middles_;
};

}  // namespace pith
