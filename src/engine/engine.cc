#include "engine/engine.h"

#include <algorithm>
#include <optional>
#include <set>

#include "engine/forward.h"
#include "engine/static_activations.h"
#include "kernels/sampling.h"

namespace pith {
namespace {

std::string FormatKey(const ModelWeights& weights, const EngineOptions& options) {
  if (options.static_activations) return weights.description + "/static";
  return weights.description + (options.activations == kernels::ActivationBits::k16 ? "/a16" : "/a8");
}

}  // namespace

Engine::Engine(std::unique_ptr<ModelWeights> weights, const EngineOptions& options, KvShape shape,
               std::string fingerprint)
    : weights_(std::move(weights)),
      options_(options),
      rope_(ComputeRopeFrequencies(weights_->config)),
      pool_(options.threads),
      kv_pool_(
          std::make_shared<KvPool>(shape, KvIdentity{fingerprint + "/" + FormatKey(*weights_, options), options.kv})) {
  const int64_t limit = weights_->config.max_position > 0 ? weights_->config.max_position : INT64_MAX;
  context_ = options.context > 0 ? std::min(options.context, limit) : limit;
  forward_ = std::make_unique<Forward>(*this);
}

Engine::~Engine() = default;

namespace {

int64_t RowCount(Rows rows, const StepItem& item) {
  return rows == Rows::kNone ? 0 : rows == Rows::kLast ? 1 : static_cast<int64_t>(item.tokens.size());
}

bool Finite(std::span<const float> values) { return AllFinite(values.data(), static_cast<int64_t>(values.size())); }

// The first item whose logits or states are not all finite.
std::optional<size_t> FirstBrokenItem(std::span<const StepItem> items, const StepOutput& output) {
  if (Finite(output.logits) && Finite(output.states)) return std::nullopt;
  int64_t logits = 0;
  int64_t states = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    for (int64_t row = 0; row < RowCount(items[i].logits, items[i]); ++row) {
      if (!Finite(output.LogitsRow(logits++))) return i;
    }
    for (int64_t row = 0; row < RowCount(items[i].states, items[i]); ++row) {
      if (!Finite(output.StatesRow(states++))) return i;
    }
  }
  return items.size() - 1;  // not reached: every value belongs to an item
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Load(std::shared_ptr<const Checkpoint> checkpoint,
                                             const EngineOptions& options) {
  const ModelConfig& config = checkpoint->config();
  if (options.threads < 0 || options.threads > 256) {
    return Error{ErrorCode::kInvalidArgument, "threads must be 0 (one per hardware thread) to 256"};
  }
  if (options.prefill_chunk < 1 || options.prefill_chunk > 4096) {
    return Error{ErrorCode::kInvalidArgument, "the prefill chunk must be 1 to 4096 tokens"};
  }
  if (options.context < 0) return Error{ErrorCode::kInvalidArgument, "the context must not be negative"};
  if (options.context > config.max_position && config.max_position > 0) {
    return Error{ErrorCode::kInvalidArgument, "a context of " + std::to_string(options.context) +
                                                  " is more than the model's " + std::to_string(config.max_position)};
  }
  if (config.head_dim > kMaxHeadDim) {
    return Error{ErrorCode::kUnsupported,
                 "head_dim " + std::to_string(config.head_dim) + " is above " + std::to_string(kMaxHeadDim)};
  }
  const std::string fingerprint = checkpoint->fingerprint();
  WeightFormat format = options.weights;
  std::unique_ptr<const StaticActivations> quantizers;
  if (options.static_activations) {
    if (options.weights == WeightFormat::kBF16 || options.kv == KvType::kBF16) {
      return Error{ErrorCode::kInvalidArgument,
                   "static activations are for weights as they are stored and a cache of "
                   "int8 or f32: bf16 would round the numbers again"};
    }
    if (checkpoint->format() != CheckpointFormat::kHuggingFace) {
      return Error{ErrorCode::kUnsupported,
                   "static activations need a directory with ranges beside the weights; pack '" + checkpoint->path() +
                       "' with `pith pack`, then `pith calibrate`"};
    }
    PITH_ASSIGN(const ActivationRanges ranges, ReadActivationRanges(checkpoint->path(), config, fingerprint));
    quantizers = std::make_unique<StaticActivations>(ranges, config);
    format = WeightFormat::kF32;
  }
  PITH_ASSIGN(auto weights, ModelWeights::Load(checkpoint, format, options.on_load));
  const KvShape shape{config.layers, config.kv_heads, config.head_dim, options.kv};
  auto engine = std::unique_ptr<Engine>(new Engine(std::move(weights), options, shape, fingerprint));
  engine->static_ = std::move(quantizers);
  return engine;
}

Result<std::shared_ptr<const Adapter>> Engine::LoadAdapter(const std::string& dir) const {
  return Adapter::Load(dir, config(), options_.adapters);
}

Result<StepOutput> Engine::Step(std::span<const StepItem> items) {
  if (items.empty()) return Error{ErrorCode::kInvalidArgument, "a step needs at least one sequence"};
  std::set<const Sequence*> seen;
  for (const StepItem& item : items) {
    if (item.tokens.empty()) return Error{ErrorCode::kInvalidArgument, "a step needs at least one token per sequence"};
    if (!seen.insert(item.sequence).second) {
      return Error{ErrorCode::kInvalidArgument, "a sequence may occur once in a step"};
    }
    if (item.sequence->pool() != kv_pool_) {
      return Error{ErrorCode::kMismatch, "the sequence was made by another engine"};
    }
    if (item.adapter != nullptr && static_ != nullptr) {
      return Error{ErrorCode::kUnsupported,
                   "static activations have no ranges of adapter '" + item.adapter->path() + "'"};
    }
    if (item.adapter != nullptr && !item.adapter->Fits(config())) {
      return Error{ErrorCode::kMismatch,
                   "adapter '" + item.adapter->path() + "' was loaded for a model of other sizes"};
    }
    for (const int32_t token : item.tokens) {
      if (token < 0 || token >= config().vocab) {
        return Error{
            ErrorCode::kInvalidArgument,
            "token id " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(config().vocab)};
      }
    }
    const int64_t after = item.sequence->length() + static_cast<int64_t>(item.tokens.size());
    if (after > context_) {
      return Error{ErrorCode::kContextOverflow, "the context holds " + std::to_string(context_) + " tokens; " +
                                                    std::to_string(item.sequence->length()) + " are used and " +
                                                    std::to_string(item.tokens.size()) + " more were given"};
    }
  }
  for (const StepItem& item : items) {
    item.sequence->Extend(item.tokens, item.adapter == nullptr ? 0 : item.adapter->id());
  }
  const StepOutput output = forward_->Run(items);
  if (const std::optional<size_t> broken = FirstBrokenItem(items, output)) {
    for (const StepItem& item : items) {
      item.sequence->Truncate(item.sequence->length() - static_cast<int64_t>(item.tokens.size()));
    }
    return Error{ErrorCode::kNumeric, "the model produced NaN or infinite values for sequence " +
                                          std::to_string(*broken + 1) + " of " + std::to_string(items.size()) +
                                          " of the step: broken weights, or an adapter out of range"};
  }
  return output;
}

Result<StepOutput> Engine::Prefill(Sequence& sequence, std::span<const int32_t> tokens, const Adapter* adapter,
                                   const PrefillOptions& options) {
  if (tokens.empty()) return Error{ErrorCode::kInvalidArgument, "nothing to prefill"};
  if (options.logits == Rows::kAll) {
    return Error{ErrorCode::kInvalidArgument, "a prefill gives the logits of the last token; use Step for all of them"};
  }
  const auto total = static_cast<int64_t>(tokens.size());
  if (sequence.length() + total > context_) {
    return Error{ErrorCode::kContextOverflow, "the prompt has " + std::to_string(sequence.length() + total) +
                                                  " tokens, the context holds " + std::to_string(context_)};
  }
  StepOutput output;
  for (int64_t done = 0; done < total;) {
    if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) {
      return Error{ErrorCode::kCancelled,
                   "cancelled after " + std::to_string(done) + " of " + std::to_string(total) + " prompt tokens"};
    }
    const int64_t n = std::min(options_.prefill_chunk, total - done);
    const bool last = done + n == total;
    StepItem item{&sequence, tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(n)), adapter,
                  last ? options.logits : Rows::kNone, options.on_states ? Rows::kAll : Rows::kNone};
    PITH_ASSIGN(output, Step({&item, 1}));
    done += n;
    if (options.on_states) options.on_states(output.states, n);
    if (options.on_progress) options.on_progress(done);
  }
  return output;
}

}  // namespace pith
