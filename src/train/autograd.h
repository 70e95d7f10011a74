// The fused autograd functions of the decoder. Includes torch: only for .cc files of src/train and src/quant.
//
// All tensors are float32, contiguous, [rows, width]; rows are the tokens of a pass. Backward passes are written by
// hand and run on the pass's thread pool.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "model/adapter.h"
#include "train/attention.h"
#include "train/frozen_linear.h"

namespace pith::train {

// One linear: W frozen or trained, with or without a LoRA.
struct Projection {
  int64_t layer = 0;
  LinearKind kind = LinearKind::kQ;
  int64_t in = 0;
  int64_t out = 0;
  const FrozenLinear* frozen = nullptr;  // with its bias; else the two below
  at::Tensor weight;                     // [out, in]
  at::Tensor bias;                       // [out] or undefined
  at::Tensor a;                          // [rank, in] or undefined: no LoRA
  at::Tensor b;                          // [out, rank]
  float scaling = 0;

  // Names the stream of random numbers of this linear's dropout.
  uint64_t Stream() const { return static_cast<uint64_t>(layer) * 16 + static_cast<uint64_t>(kind) + 1; }
};

// Keys (after RoPE) and values of one layer.
using KeysValues = std::pair<at::Tensor, at::Tensor>;

// What a forward pass and its backward pass share. Must outlive both.
struct Pass {
  ThreadPool* pool = nullptr;
  AttentionShape shape;
  int64_t rows = 0;
  std::vector<AttentionSpan> spans;
  std::vector<float> cos, sin, negative_sin;  // [rows, head_dim / 2]
  bool adapter = false;                       // LoRA acts
  std::vector<uint8_t> adapter_rows;          // where it does; empty = everywhere
  double dropout = 0;                         // on the input of A
  uint64_t seed = 0;
  uint64_t dropout_key = 0;
  int64_t first_row = 0;  // of these rows, among those of the whole batch: rows of all its parts drop differently
  const std::vector<KeysValues>* prefix = nullptr;  // by layer
  std::vector<KeysValues>* keep = nullptr;          // where to put this pass's own
  // The runtime's numbers (runtime_rounding.h): inputs of linears in 16 bits, keys and values in 8.
  bool round_activations = false;
  bool round_cache = false;
  const std::vector<std::vector<float>>* key_equalizers = nullptr;  // by layer, of the cached keys
};

// x / rms(x) * weight.
at::Tensor RmsNormOp(const Pass& pass, const at::Tensor& x, const at::Tensor& weight, double eps);

// y_i = x W_i^T + b_i + scaling_i * B_i A_i dropout(mask x) for projections that read the same x. The vector must
// outlive the backward pass.
std::vector<at::Tensor> ProjectOp(const Pass& pass, const std::vector<const Projection*>& projections,
                                  const at::Tensor& x);

// RoPE on q and k, then causal attention over the spans.
at::Tensor AttentionOp(const Pass& pass, int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
// Only RoPE on k and keeping k and v (the last layer of a prefix).
void KeepKeysValues(const Pass& pass, int64_t layer, const at::Tensor& k, const at::Tensor& v);

// silu(gate) * up.
at::Tensor SwiGluOp(const Pass& pass, const at::Tensor& gate, const at::Tensor& up);

// Dropout on x[rows, width] in place: each element times 0 or 1 / (1 - p), a function of (seed, key, stream, row,
// column).
void ApplyDropout(const Pass& pass, uint64_t stream, float* x, int64_t width);

}  // namespace pith::train
