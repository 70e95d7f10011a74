// The decoder in torch's own operators, on a device that torch knows: a GPU where libtorch was built for one. The sums
// are those of decoder.h in another order, so results agree within float32 rounding, not to the bit. Parameters, their
// gradients and the optimizer stay in host memory: values are copied over before a pass, gradients back after it.
// Frozen matrices are held on the device as float32. Includes torch: only for .cc files of src/train.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/decoder.h"
#include "train/train_batch.h"
#include "train/train_model.h"

namespace pith::train {

// The device of a --device option: "cuda", "cuda:1", or "torch" (torch's operators on the CPU, to check the others
// with). kInvalidArgument for another name, kUnavailable where this libtorch or this machine has no such device.
Result<at::Device> ParseDevice(const std::string& name);

class DeviceDecoder {
 public:
  // `host` is linked and outlives this, as does the pool (for what the host computes); `trained` are its trained
  // tensors in the order of the parameters; `key_equalizers` by layer, empty = none.
  static Result<std::unique_ptr<DeviceDecoder>> Make(const Decoder& host, const std::vector<at::Tensor>& trained,
                                                     const RopeFrequencies& rope,
                                                     const std::vector<std::vector<float>>& key_equalizers,
                                                     const TrainModelOptions& options, ThreadPool& pool);

  // As TrainModel's functions of the same names; the batch was checked. They throw what torch throws.
  Result<TokenScores> Accumulate(const TrainBatch& batch, std::span<const float> given,
                                 const TrainModel::ScoreGradient* gradient, uint64_t dropout_key);
  Result<double> AccumulateLogits(const TrainBatch& batch, const TrainModel::LogitGradient& gradient,
                                  uint64_t dropout_key);
  TokenScores Score(const TrainBatch& batch, bool adapter);
  TrainModel::Outputs Run(const TrainBatch& batch, bool adapter, bool logits);

 private:
  struct Dense {
    at::Tensor weight, bias;
  };
  // What the layers of one pass share.
  struct Rows {
    Pass host;            // spans, adapter, dropout: what is computed on the host
    at::Tensor cos, sin;  // [rows, 1, head_dim / 2]
    at::Tensor adapter;   // [rows, 1] of zeros and ones, where the adapter acts; undefined = everywhere
    bool adapter_on = false;
    const std::vector<KeysValues>* prefix = nullptr;
    std::vector<KeysValues>* keep = nullptr;
  };
  struct Forward {
    Rows rows;
    std::vector<KeysValues> prefix;
    at::Tensor x;              // [rows, hidden] after the last layer
    at::Tensor label_rows;     // [labels] of int64
    at::Tensor labels;         // [labels] of int64
    at::Tensor label_adapter;  // [labels, 1]; undefined = everywhere
  };

  DeviceDecoder(const Decoder& host, at::Device device) : host_(host), device_(device) {}

  void PushParameters();
  void PullGradients();
  at::Tensor Embed(const std::vector<int32_t>& tokens) const;
  void SetPositions(const std::vector<int64_t>& positions, Rows* rows) const;
  at::Tensor LoraInput(const Projection& projection, const at::Tensor& x, const Rows& rows) const;
  at::Tensor LinearInput(const at::Tensor& x) const;
  at::Tensor CachedKeys(int64_t index, const at::Tensor& k) const;
  at::Tensor Project(const Projection& projection, const at::Tensor& x, const Rows& rows) const;
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const;
  at::Tensor Rotate(const at::Tensor& x, const Rows& rows) const;
  at::Tensor Attention(int64_t index, const at::Tensor& x, const Rows& rows) const;
  at::Tensor Layer(int64_t index, const at::Tensor& x, const Rows& rows) const;
  friend struct DeviceLayerFunction;
  void RunPrefixes(const TrainBatch& batch, Forward* forward) const;
  Forward RunLayers(const TrainBatch& batch, bool graph, bool adapter, uint64_t dropout_key) const;
  at::Tensor Logits(const at::Tensor& states, const at::Tensor& adapter) const;
  // States of the labelled rows, after the final norm.
  at::Tensor LabelStates(const Forward& forward) const;
  TokenScores ScoresOf(const Forward& forward, const at::Tensor& states, float temperature) const;

  const Decoder& host_;
  at::Device device_;
  ThreadPool* pool_ = nullptr;
  RopeFrequencies rope_;
  TrainModelOptions options_;
  Decoder decoder_;                  // the host's, its tensors on the device
  std::vector<at::Tensor> trained_;  // the host's
  std::vector<at::Tensor> leaves_;   // the device's, in the same order
  std::map<const FrozenLinear*, Dense> dense_;
  std::vector<at::Tensor> key_equalizers_;  // by layer, [kv_heads, head_dim]; empty = none
};

}  // namespace pith::train
