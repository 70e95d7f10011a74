// What is behind TrainModel: the decoder, the trained tensors, and the passes over them. Internal; torch's headers come
// with it.
#pragma once

#include <ATen/Parallel.h>

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "train/decoder.h"
#include "train/device_decoder.h"
#include "train/train_model.h"

namespace pith::train {

inline std::span<float> Span(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

inline Error BadArgument(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

// Runs what may throw (torch, allocation) and turns it into an error.
template <class Body>
auto Guarded(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kIo, "out of memory"};
  } catch (const std::exception& exception) {
    return Error{ErrorCode::kInternal, exception.what()};
  }
}

struct TrainModel::Impl {
  TrainModelOptions options;
  ModelConfig config;
  BaseFormat base = BaseFormat::kF32;
  std::string base_fingerprint;
  std::unique_ptr<ModelWeights> weights;  // of a frozen base
  std::vector<std::unique_ptr<FrozenLinear>> frozen;
  std::unique_ptr<FrozenLinear> frozen_head;
  Decoder decoder;
  std::vector<Parameter> parameters;
  std::vector<at::Tensor> tensors;  // of the parameters
  RopeFrequencies rope;
  std::vector<std::vector<float>> key_equalizers;  // by layer, when the cache is rounded
  // A batch of several segments is cut into parts, one a thread, each of which runs a whole pass by itself: threads
  // meet once a pass, not in every product, which counts on a machine that is shared with other programs. A single
  // segment is run by all threads of the pool together.
  ThreadPool pool;
  ThreadPool serial{1};                                 // runs everything on the calling thread; any thread may use it
  std::unique_ptr<DeviceDecoder> device;                // null: this computes by itself
  std::vector<std::unique_ptr<Decoder>> replicas;       // of parts 1, 2, ...: shared values, gradients of their own
  std::vector<std::vector<at::Tensor>> replica_leaves;  // in the order of parameters

  explicit Impl(const TrainModelOptions& o) : options(o), pool(o.threads) {
    // Large tensors are split by this room's functions over its own pool; torch's operators need torch's threads.
    at::set_num_threads(options.device == "cpu" ? 1 : pool.threads());
  }

  // ------------------------------------------------------------------- building (train_model_build.cc)

  struct Member {
    LinearKind kind;
    Projection* projection;
    const Linear* linear;
    bool bias;
  };
  void MakeReplicas(size_t count);
  void AddParameter(const std::string& name, const at::Tensor& tensor, bool decay);
  void AddLora(Projection* projection);
  void Shape(int64_t layer, LinearKind kind, Projection* projection);
  std::vector<Member> Members(DecoderLayer* layer, const LayerWeights* from) const;
  void BuildFrozen();
  void BuildTrained();
  Status Build();

  // ---------------------------------------------------------------------- passes (train_model_pass.cc)

  // A part of a batch that one pass computes, and all that its backward pass needs.
  struct Run {
    const Decoder* decoder = nullptr;
    ThreadPool* pool = nullptr;
    TrainBatch batch;
    Pass pass;
    std::vector<KeysValues> prefix;
    at::Tensor input;    // embedded tokens
    at::Tensor final_x;  // after the last layer
    at::Tensor states;   // after the final norm, at the labelled rows
    std::vector<int32_t> tokens;
    std::vector<int64_t> label_rows;
    std::vector<int32_t> labels;
    std::vector<uint8_t> label_adapter;  // whether the head's LoRA acts on each
    TokenScores scores;
  };

  Status Check(const TrainBatch& batch) const;
  std::vector<Run> Parts(const TrainBatch& batch);
  void SetPositions(const std::vector<int64_t>& positions, Pass* pass) const;
  void InitPass(ThreadPool* pass_pool, Pass* pass) const;
  void RunPrefixes(Run* run) const;
  void RunLayers(bool graph, bool adapter, uint64_t dropout_key, Run* run) const;
  static void ScoreRun(Run* run);
  void BackwardRun(std::span<const float> label_weights, bool scores, Run* run) const;
  void BackwardFromStates(const at::Tensor& dstates, Run* run) const;
  void GatherGradients(size_t parts);
  static TokenScores Join(const std::vector<Run>& runs);
  static Status CheckFinite(const TokenScores& scores);
  void RoundHeadInput(int64_t rows, float* states, ThreadPool& rounding_pool) const;
  Result<double> AccumulateLogits(const TrainBatch& batch, const LogitGradient& gradient, uint64_t dropout_key);
  Result<TokenScores> Accumulate(const TrainBatch& batch, std::span<const float> given, const ScoreGradient* gradient,
                                 uint64_t dropout_key);

  // Calls body(run) for all runs, each on a thread of its own.
  template <class Body>
  static Status ForEachRun(std::vector<Run>& runs, const Body& body) {
    std::vector<Status> statuses(runs.size());
    const auto work = [&](size_t i) {
      at::set_num_threads(1);
      statuses[i] = Guarded([&]() -> Status { return body(runs[i]); });
    };
    std::vector<std::thread> threads;
    for (size_t i = 1; i < runs.size(); ++i) threads.emplace_back(work, i);
    work(0);
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : statuses) PITH_RETURN_IF_ERROR(status);
    return {};
  }
};

}  // namespace pith::train
