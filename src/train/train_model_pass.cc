// TrainModel: forward and backward passes over batches.
#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/elementwise.h"
#include "train/runtime_rounding.h"
#include "train/train_model_impl.h"

namespace pith::train {

using at::Tensor;

Status TrainModel::Impl::Check(const TrainBatch& batch) const {
  const auto token_ok = [&](int32_t token) { return token >= 0 && token < config.vocab; };
  const auto bad_token = [&](const char* what, int32_t token) {
    return BadArgument(std::string(what) + " " + std::to_string(token) + " is not in the vocabulary of " +
                       std::to_string(config.vocab));
  };
  if (batch.segments.empty()) return BadArgument("a batch without segments");
  if (!(batch.temperature > 0) || !std::isfinite(batch.temperature)) {
    return BadArgument("the temperature of a batch must be above 0");
  }
  if (!options.lora && !batch.prefixes.empty()) {
    return BadArgument("prefixes have no gradient: they need a frozen base with an adapter");
  }
  for (const auto& prefix : batch.prefixes) {
    if (prefix.empty()) return BadArgument("an empty prefix");
    for (const int32_t token : prefix) {
      if (!token_ok(token)) return bad_token("token", token);
    }
  }
  for (const Segment& segment : batch.segments) {
    const auto length = static_cast<int64_t>(segment.tokens.size());
    if (segment.tokens.empty() || segment.labels.size() != segment.tokens.size()) {
      return BadArgument("a segment of " + std::to_string(segment.tokens.size()) + " tokens and " +
                         std::to_string(segment.labels.size()) + " labels");
    }
    if (segment.prefix < -1 || segment.prefix >= static_cast<int32_t>(batch.prefixes.size())) {
      return BadArgument("a segment names prefix " + std::to_string(segment.prefix) + " of " +
                         std::to_string(batch.prefixes.size()));
    }
    if (segment.adapter_from < 0 || segment.adapter_from > length) {
      return BadArgument("a segment's adapter begins at " + std::to_string(segment.adapter_from) + " of " +
                         std::to_string(length));
    }
    for (const int32_t token : segment.tokens) {
      if (!token_ok(token)) return bad_token("token", token);
    }
    for (const int32_t label : segment.labels) {
      if (label != kNoLabel && !token_ok(label)) return bad_token("label", label);
    }
  }
  return {};
}

// Cuts a batch into at most one part a thread: segments in their order, about the same work each. Prefixes go where
// their segments go.
auto TrainModel::Impl::Parts(const TrainBatch& batch) -> std::vector<Run> {
  const auto work_of = [&](const Segment& segment) {
    const size_t prefix = segment.prefix < 0 ? 0 : batch.prefixes[static_cast<size_t>(segment.prefix)].size();
    return static_cast<double>(3 * segment.tokens.size() + prefix);
  };
  double total = 0;
  for (const Segment& segment : batch.segments) total += work_of(segment);
  const auto count = std::min(static_cast<size_t>(pool.threads()), batch.segments.size());
  std::vector<Run> runs(count);
  for (Run& run : runs) run.batch.temperature = batch.temperature;
  std::vector<std::map<int32_t, int32_t>> prefixes(count);
  double done = 0;
  size_t part = 0;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& segment = batch.segments[i];
    const double work = work_of(segment);
    // Into the next part when its middle lies beyond the end of this one, or when the rest needs every segment left.
    const double end = total * static_cast<double>(part + 1) / static_cast<double>(count);
    const bool full = done + work / 2 > end && !runs[part].batch.segments.empty();
    const bool must = batch.segments.size() - i == count - 1 - part && !runs[part].batch.segments.empty();
    if (part + 1 < count && (full || must)) ++part;
    done += work;
    Segment copy = segment;
    if (segment.prefix >= 0) {
      TrainBatch& target = runs[part].batch;
      const auto [found, added] =
          prefixes[part].try_emplace(segment.prefix, static_cast<int32_t>(target.prefixes.size()));
      if (added) target.prefixes.push_back(batch.prefixes[static_cast<size_t>(segment.prefix)]);
      copy.prefix = found->second;
    }
    runs[part].batch.segments.push_back(std::move(copy));
  }
  std::erase_if(runs, [](const Run& run) { return run.batch.segments.empty(); });
  MakeReplicas(runs.size() - 1);
  int64_t first_row = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].decoder = i == 0 ? &decoder : replicas[i - 1].get();
    runs[i].pool = runs.size() == 1 ? &pool : &serial;
    runs[i].pass.first_row = first_row;
    first_row += runs[i].batch.LiveTokens();
  }
  return runs;
}

// Tables of RoPE for rows at these positions. Angles in float, as the engine and transformers compute them.
void TrainModel::Impl::SetPositions(const std::vector<int64_t>& positions, Pass* pass) const {
  const int64_t half = config.head_dim / 2;
  const auto n = positions.size() * static_cast<size_t>(half);
  pass->rows = static_cast<int64_t>(positions.size());
  pass->cos.resize(n);
  pass->sin.resize(n);
  pass->negative_sin.resize(n);
  const auto factor = static_cast<float>(rope.attention_factor);
  pass->pool->Run(pass->rows, [&](int64_t r, int) {
    const auto position = static_cast<float>(positions[static_cast<size_t>(r)]);
    for (int64_t j = 0; j < half; ++j) {
      const float angle = position * static_cast<float>(rope.inv_freq[static_cast<size_t>(j)]);
      const auto at = static_cast<size_t>(r * half + j);
      pass->cos[at] = std::cos(angle) * factor;
      pass->sin[at] = std::sin(angle) * factor;
      pass->negative_sin[at] = -pass->sin[at];
    }
  });
}

void TrainModel::Impl::InitPass(ThreadPool* pass_pool, Pass* pass) const {
  pass->pool = pass_pool;
  pass->shape = {config.heads, config.kv_heads, config.head_dim};
  pass->seed = options.seed;
  pass->round_activations = options.round_activations;
  pass->round_cache = options.round_cache;
  pass->key_equalizers = &key_equalizers;
}

void TrainModel::Impl::RoundHeadInput(int64_t rows, float* states, ThreadPool& rounding_pool) const {
  if (options.round_activations) RoundActivations(states, rows, config.hidden, states, rounding_pool);
}

void TrainModel::Impl::RunPrefixes(Run* run) const {
  const at::AutoGradMode no_graph(false);
  Pass pass;
  InitPass(run->pool, &pass);
  std::vector<int64_t> positions;
  std::vector<int32_t> tokens;
  for (const auto& prefix : run->batch.prefixes) {
    pass.spans.push_back({static_cast<int64_t>(tokens.size()), static_cast<int64_t>(prefix.size()), 0, 0});
    for (size_t i = 0; i < prefix.size(); ++i) positions.push_back(static_cast<int64_t>(i));
    tokens.insert(tokens.end(), prefix.begin(), prefix.end());
  }
  SetPositions(positions, &pass);
  pass.keep = &run->prefix;
  Tensor x = run->decoder->Embed(tokens, *run->pool);
  for (int64_t i = 0; i + 1 < config.layers; ++i) x = run->decoder->Layer(i, x, pass);
  run->decoder->KeysValuesOnly(config.layers - 1, x, pass);
}

// Forward through all layers, with a graph for a backward pass or without.
void TrainModel::Impl::RunLayers(bool graph, bool adapter, uint64_t dropout_key, Run* run) const {
  const TrainBatch& batch = run->batch;
  if (!batch.prefixes.empty()) RunPrefixes(run);
  std::vector<int64_t> prefix_begin;
  int64_t total = 0;
  for (const auto& prefix : batch.prefixes) {
    prefix_begin.push_back(total);
    total += static_cast<int64_t>(prefix.size());
  }
  Pass& pass = run->pass;
  InitPass(run->pool, &pass);
  pass.adapter = adapter && options.lora.has_value();
  pass.dropout = graph && pass.adapter ? options.lora->dropout : 0.0;
  pass.dropout_key = dropout_key;
  std::vector<int64_t> positions;
  std::vector<uint8_t> adapter_rows;
  bool everywhere = true;
  for (const Segment& segment : batch.segments) {
    AttentionSpan span{static_cast<int64_t>(run->tokens.size()), static_cast<int64_t>(segment.tokens.size()), 0, 0};
    if (segment.prefix >= 0) {
      span.prefix_begin = prefix_begin[static_cast<size_t>(segment.prefix)];
      span.prefix_length = static_cast<int64_t>(batch.prefixes[static_cast<size_t>(segment.prefix)].size());
    }
    pass.spans.push_back(span);
    everywhere = everywhere && segment.adapter_from == 0;
    for (int64_t i = 0; i < span.length; ++i) {
      positions.push_back(span.prefix_length + i);
      adapter_rows.push_back(i >= segment.adapter_from ? 1 : 0);
      if (segment.labels[static_cast<size_t>(i)] == kNoLabel) continue;
      run->label_rows.push_back(span.begin + i);
      run->labels.push_back(segment.labels[static_cast<size_t>(i)]);
    }
    run->tokens.insert(run->tokens.end(), segment.tokens.begin(), segment.tokens.end());
  }
  SetPositions(positions, &pass);
  if (!everywhere) pass.adapter_rows = adapter_rows;
  for (const int64_t row : run->label_rows) {
    run->label_adapter.push_back(pass.adapter ? adapter_rows[static_cast<size_t>(row)] : uint8_t{0});
  }
  if (!run->prefix.empty()) pass.prefix = &run->prefix;

  const at::AutoGradMode mode(graph);
  run->input = run->decoder->Embed(run->tokens, *run->pool);
  // The embeddings themselves are trained, or checkpointed layers need something to hang on to.
  if (graph && (decoder.embedding.defined() || options.gradient_checkpointing)) run->input.set_requires_grad(true);
  Tensor x = run->input;
  for (int64_t i = 0; i < config.layers; ++i) {
    x = graph && options.gradient_checkpointing ? run->decoder->CheckpointedLayer(i, x, pass)
                                                : run->decoder->Layer(i, x, pass);
  }
  run->final_x = x;
  if (run->labels.empty()) return;
  Tensor rows = at::empty({static_cast<int64_t>(run->label_rows.size())}, at::kLong);
  std::copy(run->label_rows.begin(), run->label_rows.end(), rows.data_ptr<int64_t>());
  run->states = RmsNormOp(pass, x.index_select(0, rows), run->decoder->final_norm, config.rms_eps);
  // In place: the norm's backward pass does not read its result.
  RoundHeadInput(run->states.size(0), run->states.data_ptr<float>(), *run->pool);
}

void TrainModel::Impl::ScoreRun(Run* run) {
  if (run->labels.empty()) return;
  HeadScores(run->decoder->head, run->states.data_ptr<float>(), run->labels, run->label_adapter, &run->scores,
             *run->pool, run->batch.temperature);
}

// With the scores, unless they are known already.
void TrainModel::Impl::BackwardRun(std::span<const float> label_weights, bool scores, Run* run) const {
  if (run->labels.empty()) return;
  Tensor dstates = at::empty_like(run->states);
  HeadBackward(run->decoder->head, run->states.data_ptr<float>(), run->labels, label_weights, run->label_adapter,
               scores ? &run->scores : nullptr, dstates.data_ptr<float>(), *run->pool, run->batch.temperature);
  BackwardFromStates(dstates, run);
}

void TrainModel::Impl::BackwardFromStates(const Tensor& dstates, Run* run) const {
  if (run->states.requires_grad()) run->states.backward(dstates);
  if (!run->decoder->embedding.defined()) return;
  const float* rows = run->input.grad().data_ptr<float>();
  float* table = run->decoder->embedding.grad().data_ptr<float>();
  for (size_t r = 0; r < run->tokens.size(); ++r) {
    AddInPlace(table + run->tokens[r] * config.hidden, rows + static_cast<int64_t>(r) * config.hidden, config.hidden);
  }
}

// Adds the replicas' gradients, in their order, and clears them.
void TrainModel::Impl::GatherGradients(size_t parts) {
  for (size_t part = 1; part < parts; ++part) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::span<float> share = Span(replica_leaves[part - 1][i].grad());
      AddInPlace(parameters[i].gradient.data(), share.data(), static_cast<int64_t>(share.size()));
      std::fill(share.begin(), share.end(), 0.0F);
    }
  }
}

TokenScores TrainModel::Impl::Join(const std::vector<Run>& runs) {
  TokenScores all;
  for (const Run& run : runs) {
    all.log_probs.insert(all.log_probs.end(), run.scores.log_probs.begin(), run.scores.log_probs.end());
    all.entropies.insert(all.entropies.end(), run.scores.entropies.begin(), run.scores.entropies.end());
  }
  return all;
}

Status TrainModel::Impl::CheckFinite(const TokenScores& scores) {
  for (const float value : scores.log_probs) {
    if (!std::isfinite(value)) return Error{ErrorCode::kNumeric, "a log-probability is not finite"};
  }
  return {};
}

Result<TokenScores> TrainModel::Impl::Accumulate(const TrainBatch& batch, std::span<const float> given,
                                                 const ScoreGradient* gradient, uint64_t dropout_key) {
  PITH_RETURN_IF_ERROR(Check(batch));
  const auto labels = static_cast<size_t>(batch.Labels());
  if (labels == 0) return BadArgument("a batch without labels");
  if (gradient == nullptr && given.size() != labels) {
    return BadArgument(std::to_string(given.size()) + " weights for " + std::to_string(labels) + " labels");
  }
  if (device) return device->Accumulate(batch, given, gradient, dropout_key);
  std::vector<Run> runs = Parts(batch);
  std::vector<float> label_weights(given.begin(), given.end());
  if (gradient != nullptr) {
    PITH_RETURN_IF_ERROR(ForEachRun(runs, [&](Run& run) -> Status {
      RunLayers(true, true, dropout_key, &run);
      ScoreRun(&run);
      return {};
    }));
    const TokenScores scores = Join(runs);
    PITH_RETURN_IF_ERROR(CheckFinite(scores));
    PITH_ASSIGN(label_weights, (*gradient)(scores));
    if (label_weights.size() != labels) {
      return BadArgument(std::to_string(label_weights.size()) + " gradients for " + std::to_string(labels) + " labels");
    }
    for (float& weight : label_weights) weight = -weight;  // loss = sum weight * -log p
  }
  std::vector<std::span<const float>> shares;
  size_t at = 0;
  for (const Run& run : runs) {
    const auto count = static_cast<size_t>(run.batch.Labels());
    shares.push_back(std::span<const float>(label_weights).subspan(at, count));
    at += count;
  }
  const Status status = ForEachRun(runs, [&](Run& run) -> Status {
    if (gradient == nullptr) RunLayers(true, true, dropout_key, &run);
    BackwardRun(shares[static_cast<size_t>(&run - runs.data())], gradient == nullptr, &run);
    return {};
  });
  GatherGradients(runs.size());
  if (!status.ok()) return status.error();
  TokenScores scores = Join(runs);
  PITH_RETURN_IF_ERROR(CheckFinite(scores));
  return scores;
}

Result<double> TrainModel::Impl::AccumulateLogits(const TrainBatch& batch, const LogitGradient& gradient,
                                                  uint64_t dropout_key) {
  PITH_RETURN_IF_ERROR(Check(batch));
  if (batch.Labels() == 0) return BadArgument("a batch without labels");
  if (decoder.head.rank != 0) return BadArgument("a loss of logits has no gradient for a LoRA on the head");
  if (device) return device->AccumulateLogits(batch, gradient, dropout_key);
  std::vector<Run> runs = Parts(batch);
  std::vector<int64_t> first_label;
  int64_t labels = 0;
  for (const Run& run : runs) {
    first_label.push_back(labels);
    labels += run.batch.Labels();
  }
  std::vector<double> losses(runs.size());
  const Status status = ForEachRun(runs, [&](Run& run) -> Status {
    const auto part = static_cast<size_t>(&run - runs.data());
    RunLayers(true, true, dropout_key, &run);
    if (run.labels.empty()) return {};
    Tensor dstates = at::empty_like(run.states);
    HeadBackwardOfLogits(
        run.decoder->head, run.states.data_ptr<float>(), run.states.size(0),
        [&](int64_t first, int64_t count, float* logits) {
          losses[part] += gradient(first_label[part] + first, count, logits);
        },
        dstates.data_ptr<float>(), *run.pool);
    BackwardFromStates(dstates, &run);
    return {};
  });
  GatherGradients(runs.size());
  if (!status.ok()) return status.error();
  double loss = 0;
  for (const double part : losses) loss += part;
  if (!std::isfinite(loss)) return Error{ErrorCode::kNumeric, "the loss is not finite"};
  return loss;
}

}  // namespace pith::train
