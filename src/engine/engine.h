// Running a model: sequences, batched steps, prefill.
//
//   auto engine = Engine::Load(checkpoint, options);          one model, its weights and its KV pool
//   Sequence prompt = engine->NewSequence();
//   engine->Prefill(prompt, tokens, nullptr, ...);            base model, chunk by chunk
//   Sequence stream = prompt;                                 shares the prompt's KV
//   engine->Step({{&stream, {token}, adapter, ...}});         one token, adapter on from here
//
// A row of a step (one token of one sequence) is computed by the same operations in the same order whatever else is in
// the step: prefill in chunks of any size, decode, and parallel streams agree bit for bit, for any number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/input_sums.h"
#include "engine/kv_cache.h"
#include "engine/lora.h"
#include "engine/weights.h"
#include "kernels/qmatmul.h"
#include "model/activation_ranges.h"
#include "model/checkpoint.h"

namespace pith {

struct EngineOptions {
  WeightFormat weights = WeightFormat::kStored;
  kernels::ActivationBits activations = kernels::ActivationBits::k16;  // of packed linears
  // Every value is rounded to its range beside the weights (model/activation_ranges.h), as the device export does: the
  // same integers as a quantized graph, products in float32. Weights become float32 (packed ones keep their numbers);
  // the cache is int8 with the stored scales, or float32 with the same numbers. Without adapters. For comparison and
  // measuring, not for speed.
  bool static_activations = false;
  KvType kv = KvType::kInt8;
  LoraFormat adapters = LoraFormat::kAuto;
  int64_t context = 0;          // most positions of a sequence; 0 = the model's own limit
  int64_t prefill_chunk = 128;  // tokens per step of a prefill, 1..4096
  int threads = 0;              // 0 = one per hardware thread
  // While the weights are made ready: layers done, of how many.
  std::function<void(int64_t done, int64_t total)> on_load = {};
};

// Which rows of a step item give logits or states.
enum class Rows { kNone, kLast, kAll };

// New tokens of one sequence.
struct StepItem {
  Sequence* sequence = nullptr;
  std::span<const int32_t> tokens;
  const Adapter* adapter = nullptr;  // on for these tokens; null = base
  Rows logits = Rows::kNone;
  Rows states = Rows::kNone;  // last-layer states after the final norm
};

// What a step computed; valid until the next step of the engine. Rows come in the order of items, then tokens.
struct StepOutput {
  int64_t vocab = 0;
  int64_t hidden = 0;
  std::span<const float> logits;  // [logit rows, vocab]
  std::span<const float> states;  // [state rows, hidden]

  std::span<const float> LogitsRow(int64_t row) const {
    return logits.subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab));
  }
  std::span<const float> StatesRow(int64_t row) const {
    return states.subspan(static_cast<size_t>(row * hidden), static_cast<size_t>(hidden));
  }
};

struct PrefillOptions {
  Rows logits = Rows::kLast;
  // Called after each chunk with the states of its tokens [n, hidden], when set.
  std::function<void(std::span<const float> states, int64_t tokens)> on_states;
  // Called after each chunk with tokens done so far.
  std::function<void(int64_t done)> on_progress;
  const std::atomic<bool>* cancel = nullptr;  // kCancelled before the next chunk once true
};

// Sees a value of the forward pass before anything reads it; the span is all rows of a step, or one head's scores.
using ActivationObserver = std::function<void(int64_t layer, ActivationSite site, std::span<const float> values)>;

class StaticActivations;

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> Load(std::shared_ptr<const Checkpoint> checkpoint,
                                              const EngineOptions& options);
  ~Engine();

  const ModelConfig& config() const { return weights_->config; }
  const ModelWeights& weights() const { return *weights_; }
  const EngineOptions& options() const { return options_; }
  int64_t context() const { return context_; }
  ThreadPool& pool() { return pool_; }
  KvPool& kv_pool() { return *kv_pool_; }

  Sequence NewSequence() { return Sequence(kv_pool_); }
  Result<std::shared_ptr<const Adapter>> LoadAdapter(const std::string& dir) const;

  // Appends the tokens of every item to its sequence and computes what is asked for. A sequence may occur once.
  // Errors leave all sequences as they were: kContextOverflow (with counts), kInvalidArgument (token id out of range,
  // no tokens), kMismatch (a sequence of another model, or an adapter for other sizes), kNumeric (NaN or infinite
  // logits or states: the computation is broken, never a token).
  Result<StepOutput> Step(std::span<const StepItem> items);

  // Appends `tokens` in chunks. The output holds the logits of the last token (or none); with Rows::kAll use Step.
  // An error or a cancel leaves the positions of finished chunks in the sequence.
  Result<StepOutput> Prefill(Sequence& sequence, std::span<const int32_t> tokens, const Adapter* adapter,
                             const PrefillOptions& options);

  // From now on every step adds the inputs of the linears of all layers to `sums`; null stops it. For calibration.
  void SumInputs(InputSums* sums) { input_sums_ = sums; }
  // From now on every value of model/activation_ranges.h but `masked` is handed to `observer`, on the calling thread,
  // in an order of its own; an empty one stops it. Needs a float32 cache. For calibration.
  void ObserveActivations(ActivationObserver observer) { observer_ = std::move(observer); }

 private:
  class Forward;
  Engine(std::unique_ptr<ModelWeights> weights, const EngineOptions& options, KvShape shape, std::string fingerprint);

  std::unique_ptr<ModelWeights> weights_;
  EngineOptions options_;
  int64_t context_ = 0;
  RopeFrequencies rope_;
  ThreadPool pool_;
  std::shared_ptr<KvPool> kv_pool_;
  std::unique_ptr<Forward> forward_;
  InputSums* input_sums_ = nullptr;
  std::unique_ptr<const StaticActivations> static_;  // with static_activations
  ActivationObserver observer_;
};

}  // namespace pith
