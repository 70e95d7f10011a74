#include "train/train_model.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <numbers>
#include <thread>

#include "base/random.h"
#include "kernels/elementwise.h"
#include "model/hf_export.h"
#include "model/safetensors.h"
#include "train/decoder.h"

namespace pith::train {

using at::Tensor;

namespace {

// Streams of random numbers below this belong to dropout (Projection::Stream).
constexpr uint64_t kInitStream = uint64_t{1} << 32;

Tensor NewTensor(const std::vector<int64_t>& shape) { return at::zeros(shape, at::kFloat); }

std::span<float> Span(const Tensor& tensor) { return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())}; }

Tensor CopyOf(const std::vector<float>& values) {
  Tensor tensor = NewTensor({static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
  return tensor;
}

void FillNormal(const Tensor& tensor, double deviation, uint64_t seed, uint64_t stream) {
  uint64_t position = 0;
  for (float& value : Span(tensor)) {
    const double u = 1.0 - RandomUniform(seed, stream, position);  // (0, 1]
    const double angle = 2.0 * std::numbers::pi * RandomUniform(seed, stream, position + 1);
    value = static_cast<float>(deviation * std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
    position += 2;
  }
}

Error BadArgument(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

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

}  // namespace

struct TrainModel::Impl {
  TrainModelOptions options;
  ModelConfig config;
  BaseFormat base = BaseFormat::kF32;
  std::unique_ptr<ModelWeights> weights;  // of a frozen base
  std::vector<std::unique_ptr<FrozenLinear>> frozen;
  std::unique_ptr<FrozenLinear> frozen_head;
  Decoder decoder;
  std::vector<Parameter> parameters;
  std::vector<Tensor> tensors;  // of the parameters
  RopeFrequencies rope;
  // A batch of several segments is cut into parts, one a thread, each of which runs a whole pass by itself: threads
  // meet once a pass, not in every product, which counts on a machine that is shared with other programs. A single
  // segment is run by all threads of the pool together.
  ThreadPool pool;
  ThreadPool serial{1};                             // runs everything on the calling thread; any thread may use it
  std::vector<std::unique_ptr<Decoder>> replicas;   // of parts 1, 2, ...: shared values, gradients of their own
  std::vector<std::vector<Tensor>> replica_leaves;  // in the order of parameters

  explicit Impl(const TrainModelOptions& o) : options(o), pool(o.threads) {
    // Large tensors are split by this room's functions over its own pool.
    at::set_num_threads(1);
  }

  void MakeReplicas(size_t count) {
    while (replicas.size() < count) {
      auto replica = std::make_unique<Decoder>(decoder);
      std::map<const void*, Tensor> leaves;
      std::vector<Tensor> in_order;
      for (const Tensor& tensor : tensors) {
        Tensor leaf = tensor.detach();
        leaf.set_requires_grad(true);
        leaf.mutable_grad() = at::zeros_like(leaf);
        leaves[tensor.unsafeGetTensorImpl()] = leaf;
        in_order.push_back(leaf);
      }
      replica->ForEachTensor([&leaves](Tensor& tensor) {
        const auto found = tensor.defined() ? leaves.find(tensor.unsafeGetTensorImpl()) : leaves.end();
        if (found != leaves.end()) tensor = found->second;
      });
      replica->Link();
      replicas.push_back(std::move(replica));
      replica_leaves.push_back(std::move(in_order));
    }
  }

  void AddParameter(const std::string& name, const Tensor& tensor, bool decay) {
    tensor.set_requires_grad(true);
    tensor.mutable_grad() = at::zeros_like(tensor);
    const auto sizes = tensor.sizes();
    parameters.push_back({name, {sizes.begin(), sizes.end()}, Span(tensor), Span(tensor.grad()), decay});
    tensors.push_back(tensor);
  }

  // ------------------------------------------------------------------------------------------------- building

  void AddLora(Projection* projection) {
    const LoraOptions& lora = *options.lora;
    if (std::find(lora.targets.begin(), lora.targets.end(), projection->kind) == lora.targets.end()) return;
    const std::string name = LinearName(projection->layer, projection->kind);
    projection->scaling = static_cast<float>(lora.rslora ? lora.alpha / std::sqrt(static_cast<double>(lora.rank))
                                                         : lora.alpha / static_cast<double>(lora.rank));
    projection->a = NewTensor({lora.rank, projection->in});
    projection->b = NewTensor({projection->out, lora.rank});
    const double bound = 1.0 / std::sqrt(static_cast<double>(projection->in));
    uint64_t position = 0;
    for (float& value : Span(projection->a)) {
      const double uniform = RandomUniform(options.seed, kInitStream + projection->Stream(), position++);
      value = static_cast<float>((2.0 * uniform - 1.0) * bound);
    }
    AddParameter(name + ".lora_A.weight", projection->a, true);
    AddParameter(name + ".lora_B.weight", projection->b, true);
  }

  void Shape(int64_t layer, LinearKind kind, Projection* projection) {
    const LinearShape shape = ShapeOf(config, kind);
    projection->layer = layer;
    projection->kind = kind;
    projection->in = shape.in;
    projection->out = shape.out;
  }

  struct Member {
    LinearKind kind;
    Projection* projection;
    const Linear* linear;
    bool bias;
  };
  std::vector<Member> Members(DecoderLayer* layer, const LayerWeights* from) const {
    const auto of = [from](Linear LayerWeights::*linear) { return from == nullptr ? nullptr : &(from->*linear); };
    return {{LinearKind::kQ, &layer->q, of(&LayerWeights::q), config.attention_bias},
            {LinearKind::kK, &layer->k, of(&LayerWeights::k), config.attention_bias},
            {LinearKind::kV, &layer->v, of(&LayerWeights::v), config.attention_bias},
            {LinearKind::kO, &layer->o, of(&LayerWeights::o), config.attention_out_bias},
            {LinearKind::kGate, &layer->gate, of(&LayerWeights::gate), config.mlp_bias},
            {LinearKind::kUp, &layer->up, of(&LayerWeights::up), config.mlp_bias},
            {LinearKind::kDown, &layer->down, of(&LayerWeights::down), config.mlp_bias}};
  }

  void BuildFrozen() {
    decoder.embedding_table = &weights->embedding;
    for (int64_t i = 0; i < config.layers; ++i) {
      DecoderLayer& layer = decoder.layers[static_cast<size_t>(i)];
      const LayerWeights& from = weights->layers[static_cast<size_t>(i)];
      layer.attention_norm = CopyOf(from.attention_norm);
      layer.mlp_norm = CopyOf(from.mlp_norm);
      if (config.qk_norm) {
        layer.q_norm = CopyOf(from.q_norm);
        layer.k_norm = CopyOf(from.k_norm);
      }
      for (const Member& member : Members(&layer, &from)) {
        Shape(i, member.kind, member.projection);
        frozen.push_back(std::make_unique<FrozenLinear>(*member.linear));
        frozen.back()->PrepareBackward(pool);
        member.projection->frozen = frozen.back().get();
        AddLora(member.projection);
      }
    }
    decoder.final_norm = CopyOf(weights->final_norm);
    frozen_head = std::make_unique<FrozenLinear>(weights->lm_head);
    frozen_head->PrepareBackward(pool);
    decoder.head.frozen = frozen_head.get();
    Shape(-1, LinearKind::kLmHead, &decoder.head_lora);
    AddLora(&decoder.head_lora);
  }

  // All parameters trained: copied from `weights` when there are any, else random.
  void BuildTrained() {
    const bool random = weights == nullptr;
    uint64_t stream = 2 * kInitStream;
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, double deviation, const float* from) {
      Tensor tensor = NewTensor({rows, cols});
      if (random) {
        FillNormal(tensor, deviation, options.seed, stream++);
      } else {
        std::copy_n(from, rows * cols, tensor.data_ptr<float>());
      }
      AddParameter(name, tensor, true);
      return tensor;
    };
    const auto vector = [&](const std::string& name, int64_t size, float value, const std::vector<float>* from) {
      Tensor tensor = random ? at::full({size}, value, at::kFloat) : CopyOf(*from);
      AddParameter(name, tensor, false);
      return tensor;
    };
    constexpr double kDeviation = 0.02;
    const double output_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(config.layers));
    std::vector<float> table;
    if (!random) {
      table.resize(static_cast<size_t>(config.vocab * config.hidden));
      for (int64_t r = 0; r < config.vocab; ++r) {
        weights->embedding.Row(static_cast<int32_t>(r), table.data() + r * config.hidden);
      }
    }
    decoder.embedding = matrix("model.embed_tokens.weight", config.vocab, config.hidden, kDeviation, table.data());
    for (int64_t i = 0; i < config.layers; ++i) {
      DecoderLayer& layer = decoder.layers[static_cast<size_t>(i)];
      const LayerWeights* from = random ? nullptr : &weights->layers[static_cast<size_t>(i)];
      const std::string prefix = "model.layers." + std::to_string(i) + ".";
      layer.attention_norm =
          vector(prefix + "input_layernorm.weight", config.hidden, 1.0F, random ? nullptr : &from->attention_norm);
      layer.mlp_norm =
          vector(prefix + "post_attention_layernorm.weight", config.hidden, 1.0F, random ? nullptr : &from->mlp_norm);
      if (config.qk_norm) {
        layer.q_norm =
            vector(prefix + "self_attn.q_norm.weight", config.head_dim, 1.0F, random ? nullptr : &from->q_norm);
        layer.k_norm =
            vector(prefix + "self_attn.k_norm.weight", config.head_dim, 1.0F, random ? nullptr : &from->k_norm);
      }
      for (const Member& member : Members(&layer, from)) {
        Projection* p = member.projection;
        Shape(i, member.kind, p);
        const std::string name = LinearName(i, member.kind);
        const bool output = member.kind == LinearKind::kO || member.kind == LinearKind::kDown;
        p->weight = matrix(name + ".weight", p->out, p->in, output ? output_deviation : kDeviation,
                           random ? nullptr : static_cast<const float*>(member.linear->matrix.data));
        if (member.bias) p->bias = vector(name + ".bias", p->out, 0.0F, random ? nullptr : &member.linear->bias);
      }
    }
    decoder.final_norm = vector("model.norm.weight", config.hidden, 1.0F, random ? nullptr : &weights->final_norm);
    decoder.head_weight = decoder.embedding;
    if (!config.tied_embeddings) {
      decoder.head_weight = matrix("lm_head.weight", config.vocab, config.hidden, kDeviation,
                                   random ? nullptr : static_cast<const float*>(weights->lm_head.matrix.data));
    }
    weights.reset();
  }

  Status Build() {
    config = decoder.config;
    if (options.lora) {
      const LoraOptions& lora = *options.lora;
      if (lora.rank < 1 || lora.rank > kMaxLoraRank) {
        return BadArgument("the LoRA rank " + std::to_string(lora.rank) + " is not in 1.." +
                           std::to_string(kMaxLoraRank));
      }
      if (!(lora.dropout >= 0 && lora.dropout < 1)) return BadArgument("the LoRA dropout must be in [0, 1)");
      if (!std::isfinite(lora.alpha)) return BadArgument("the LoRA alpha must be finite");
      if (lora.targets.empty()) return BadArgument("LoRA needs at least one target module");
    }
    rope = ComputeRopeFrequencies(config);
    decoder.layers.resize(static_cast<size_t>(config.layers));
    decoder.head.vocab = config.vocab;
    decoder.head.hidden = config.hidden;
    if (options.lora) {
      BuildFrozen();
    } else {
      BuildTrained();
    }
    decoder.Link();
    return {};
  }

  // ------------------------------------------------------------------------------------------------- passes

  Status Check(const TrainBatch& batch) const {
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

  // A part of a batch that one pass computes, and all that its backward pass needs.
  struct Run {
    const Decoder* decoder = nullptr;
    ThreadPool* pool = nullptr;
    TrainBatch batch;
    Pass pass;
    std::vector<KeysValues> prefix;
    Tensor input;    // embedded tokens
    Tensor final_x;  // after the last layer
    Tensor states;   // after the final norm, at the labelled rows
    std::vector<int32_t> tokens;
    std::vector<int64_t> label_rows;
    std::vector<int32_t> labels;
    std::vector<uint8_t> label_adapter;  // whether the head's LoRA acts on each
    TokenScores scores;
  };

  // Cuts a batch into at most one part a thread: segments in their order, about the same work each. Prefixes go where
  // their segments go.
  std::vector<Run> Parts(const TrainBatch& batch) {
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

  // Tables of RoPE for rows at these positions. Angles in float, as the engine and transformers compute them.
  void SetPositions(const std::vector<int64_t>& positions, Pass* pass) const {
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

  void InitPass(ThreadPool* pass_pool, Pass* pass) const {
    pass->pool = pass_pool;
    pass->shape = {config.heads, config.kv_heads, config.head_dim};
    pass->seed = options.seed;
  }

  void RunPrefixes(Run* run) const {
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
  void RunLayers(bool graph, bool adapter, uint64_t dropout_key, Run* run) const {
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
  }

  static void ScoreRun(Run* run) {
    if (run->labels.empty()) return;
    HeadScores(run->decoder->head, run->states.data_ptr<float>(), run->labels, run->label_adapter, &run->scores,
               *run->pool, run->batch.temperature);
  }

  // With the scores, unless they are known already.
  void BackwardRun(std::span<const float> label_weights, bool scores, Run* run) const {
    if (run->labels.empty()) return;
    Tensor dstates = at::empty_like(run->states);
    HeadBackward(run->decoder->head, run->states.data_ptr<float>(), run->labels, label_weights, run->label_adapter,
                 scores ? &run->scores : nullptr, dstates.data_ptr<float>(), *run->pool, run->batch.temperature);
    if (run->states.requires_grad()) run->states.backward(dstates);
    if (!run->decoder->embedding.defined()) return;
    const float* rows = run->input.grad().data_ptr<float>();
    float* table = run->decoder->embedding.grad().data_ptr<float>();
    for (size_t r = 0; r < run->tokens.size(); ++r) {
      AddInPlace(table + run->tokens[r] * config.hidden, rows + static_cast<int64_t>(r) * config.hidden, config.hidden);
    }
  }

  // Adds the replicas' gradients, in their order, and clears them.
  void GatherGradients(size_t parts) {
    for (size_t part = 1; part < parts; ++part) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        const std::span<float> share = Span(replica_leaves[part - 1][i].grad());
        AddInPlace(parameters[i].gradient.data(), share.data(), static_cast<int64_t>(share.size()));
        std::fill(share.begin(), share.end(), 0.0F);
      }
    }
  }

  static TokenScores Join(const std::vector<Run>& runs) {
    TokenScores all;
    for (const Run& run : runs) {
      all.log_probs.insert(all.log_probs.end(), run.scores.log_probs.begin(), run.scores.log_probs.end());
      all.entropies.insert(all.entropies.end(), run.scores.entropies.begin(), run.scores.entropies.end());
    }
    return all;
  }

  static Status CheckFinite(const TokenScores& scores) {
    for (const float value : scores.log_probs) {
      if (!std::isfinite(value)) return Error{ErrorCode::kNumeric, "a log-probability is not finite"};
    }
    return {};
  }

  Result<TokenScores> Accumulate(const TrainBatch& batch, std::span<const float> given, const ScoreGradient* gradient,
                                 uint64_t dropout_key) {
    PITH_RETURN_IF_ERROR(Check(batch));
    const auto labels = static_cast<size_t>(batch.Labels());
    if (labels == 0) return BadArgument("a batch without labels");
    if (gradient == nullptr && given.size() != labels) {
      return BadArgument(std::to_string(given.size()) + " weights for " + std::to_string(labels) + " labels");
    }
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
        return BadArgument(std::to_string(label_weights.size()) + " gradients for " + std::to_string(labels) +
                           " labels");
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
    PITH_RETURN_IF_ERROR(status);
    TokenScores scores = Join(runs);
    PITH_RETURN_IF_ERROR(CheckFinite(scores));
    return scores;
  }
};

TrainModel::TrainModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainModel::~TrainModel() = default;

Result<std::unique_ptr<TrainModel>> TrainModel::Load(std::shared_ptr<const Checkpoint> checkpoint,
                                                     const TrainModelOptions& options) {
  return Guarded([&]() -> Result<std::unique_ptr<TrainModel>> {
    auto impl = std::make_unique<Impl>(options);
    const bool has_packed = checkpoint->quantization().has_value();
    if (options.base == BaseFormat::kPacked && (!has_packed || !options.lora)) {
      return Error{ErrorCode::kUnsupported, "'" + checkpoint->path() + "': a packed base needs " +
                                                (has_packed ? "an adapter to train" : "a packed model (pith pack)")};
    }
    const bool packed = has_packed && options.lora && options.base != BaseFormat::kF32;
    impl->base = packed ? BaseFormat::kPacked : BaseFormat::kF32;
    PITH_ASSIGN(impl->weights, ModelWeights::Load(checkpoint, packed ? WeightFormat::kStored : WeightFormat::kF32));
    impl->decoder.config = impl->weights->config;
    PITH_RETURN_IF_ERROR(impl->Build());
    return std::unique_ptr<TrainModel>(new TrainModel(std::move(impl)));
  });
}

Result<std::unique_ptr<TrainModel>> TrainModel::Random(const ModelConfig& config, const TrainModelOptions& options) {
  return Guarded([&]() -> Result<std::unique_ptr<TrainModel>> {
    if (options.lora) return BadArgument("a model from nothing is trained as a whole, without LoRA");
    auto impl = std::make_unique<Impl>(options);
    impl->decoder.config = config;
    PITH_RETURN_IF_ERROR(impl->Build());
    return std::unique_ptr<TrainModel>(new TrainModel(std::move(impl)));
  });
}

const ModelConfig& TrainModel::config() const { return impl_->config; }
const TrainModelOptions& TrainModel::options() const { return impl_->options; }
BaseFormat TrainModel::base() const { return impl_->base; }
std::vector<Parameter>& TrainModel::parameters() { return impl_->parameters; }

int64_t TrainModel::TrainedElements() const {
  int64_t elements = 0;
  for (const Parameter& parameter : impl_->parameters) elements += static_cast<int64_t>(parameter.value.size());
  return elements;
}

void TrainModel::ZeroGradients() {
  for (const Parameter& parameter : impl_->parameters) {
    std::fill(parameter.gradient.begin(), parameter.gradient.end(), 0.0F);
  }
}

Result<TokenScores> TrainModel::Accumulate(const TrainBatch& batch, std::span<const float> weights,
                                           uint64_t dropout_key) {
  return Guarded([&] { return impl_->Accumulate(batch, weights, nullptr, dropout_key); });
}

Result<TokenScores> TrainModel::AccumulateScores(const TrainBatch& batch, const ScoreGradient& gradient,
                                                 uint64_t dropout_key) {
  return Guarded([&] { return impl_->Accumulate(batch, {}, &gradient, dropout_key); });
}

Result<TokenScores> TrainModel::Score(const TrainBatch& batch, bool adapter) {
  return Guarded([&]() -> Result<TokenScores> {
    PITH_RETURN_IF_ERROR(impl_->Check(batch));
    std::vector<Impl::Run> runs = impl_->Parts(batch);
    PITH_RETURN_IF_ERROR(Impl::ForEachRun(runs, [&](Impl::Run& run) -> Status {
      impl_->RunLayers(false, adapter, 0, &run);
      Impl::ScoreRun(&run);
      return {};
    }));
    TokenScores scores = Impl::Join(runs);
    PITH_RETURN_IF_ERROR(Impl::CheckFinite(scores));
    return scores;
  });
}

Result<TrainModel::Outputs> TrainModel::Run(const TrainBatch& batch, bool adapter, bool logits) {
  return Guarded([&]() -> Result<Outputs> {
    PITH_RETURN_IF_ERROR(impl_->Check(batch));
    const at::AutoGradMode no_graph(false);
    Impl::Run run;
    run.decoder = &impl_->decoder;
    run.pool = &impl_->pool;
    run.batch = batch;
    impl_->RunLayers(false, adapter, 0, &run);
    const Tensor states = RmsNormOp(run.pass, run.final_x, impl_->decoder.final_norm, impl_->config.rms_eps);
    Outputs outputs;
    const auto values = Span(states);
    outputs.states.assign(values.begin(), values.end());
    if (!logits) return outputs;
    const int64_t rows = run.pass.rows;
    std::vector<uint8_t> on = run.pass.adapter_rows;
    if (!run.pass.adapter) on.assign(static_cast<size_t>(rows), 0);
    outputs.logits.resize(static_cast<size_t>(rows * impl_->config.vocab));
    HeadLogits(impl_->decoder.head, outputs.states.data(), rows, on, outputs.logits.data(), impl_->pool);
    return outputs;
  });
}

std::vector<float> TrainModel::CopyParameters() const {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(TrainedElements()));
  for (const Parameter& parameter : impl_->parameters) {
    values.insert(values.end(), parameter.value.begin(), parameter.value.end());
  }
  return values;
}

Status TrainModel::SetParameters(std::span<const float> values) {
  if (static_cast<int64_t>(values.size()) != TrainedElements()) {
    return BadArgument(std::to_string(values.size()) + " values for " + std::to_string(TrainedElements()) +
                       " trained elements");
  }
  size_t at = 0;
  for (const Parameter& parameter : impl_->parameters) {
    std::copy_n(values.begin() + static_cast<int64_t>(at), parameter.value.size(), parameter.value.begin());
    at += parameter.value.size();
  }
  return {};
}

// ------------------------------------------------------------------------------------------------------- files

Status TrainModel::LoadAdapter(const std::string& dir) {
  if (!is_lora()) return BadArgument("the model is trained as a whole: it has no adapter to load into");
  PITH_ASSIGN(const auto file, AdapterFile::Open(dir, config()));
  std::map<std::string, const LoraModule*> modules;
  for (const LoraModule& module : file->modules) modules[LinearName(module.layer, module.kind)] = &module;
  std::map<std::string, Projection*> wanted;
  for (DecoderLayer& layer : impl_->decoder.layers) {
    for (const Impl::Member& member : impl_->Members(&layer, nullptr)) {
      Projection* projection = member.projection;
      if (projection->a.defined()) wanted[LinearName(projection->layer, projection->kind)] = projection;
    }
  }
  if (impl_->decoder.head_lora.a.defined()) wanted[LinearName(-1, LinearKind::kLmHead)] = &impl_->decoder.head_lora;
  for (const auto& [name, module] : modules) {
    if (!wanted.contains(name)) {
      return Error{ErrorCode::kMismatch, "'" + dir + "' adapts '" + name + "', which is not trained"};
    }
  }
  for (const auto& [name, projection] : wanted) {
    const auto found = modules.find(name);
    if (found == modules.end()) {
      return Error{ErrorCode::kMismatch, "'" + dir + "' does not adapt '" + name + "', which is trained"};
    }
    const LoraModule& module = *found->second;
    if (module.rank != projection->a.size(0) || module.scaling != projection->scaling) {
      return Error{ErrorCode::kMismatch, "'" + dir + "': '" + name + "' has rank " + std::to_string(module.rank) +
                                             " and scaling " + std::to_string(module.scaling) + ", what is trained " +
                                             std::to_string(projection->a.size(0)) + " and " +
                                             std::to_string(projection->scaling)};
    }
    if (module.a.type == DType::kI8) {
      return Error{ErrorCode::kUnsupported, "'" + dir + "' is an INT8 adapter: training starts from float ones"};
    }
    PITH_ASSIGN(const auto a, ToFloats(module.a));
    PITH_ASSIGN(const auto b, ToFloats(module.b));
    std::copy(a.begin(), a.end(), projection->a.data_ptr<float>());
    std::copy(b.begin(), b.end(), projection->b.data_ptr<float>());
  }
  return {};
}

std::vector<LoraWeights> TrainModel::AdapterWeights() const {
  std::vector<LoraWeights> modules;
  if (!is_lora()) return modules;
  const LoraOptions& lora = *options().lora;
  const auto add = [&](const Projection& projection) {
    if (!projection.a.defined()) return;
    modules.push_back(
        {projection.layer, projection.kind, lora.rank, lora.alpha, Span(projection.a), Span(projection.b)});
  };
  for (const DecoderLayer& layer : impl_->decoder.layers) {
    for (const Projection* p : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) add(*p);
  }
  add(impl_->decoder.head_lora);
  return modules;
}

Status TrainModel::SaveAdapter(const std::string& dir, AdapterStorage storage, const std::string& base_model) const {
  if (!is_lora()) return BadArgument("the model is trained as a whole: it has no adapter to save");
  const LoraOptions& lora = *options().lora;
  AdapterWriteOptions write;
  write.storage = storage;
  write.rslora = lora.rslora;
  write.dropout = lora.dropout;
  write.base_model = base_model;
  return WriteAdapter(dir, config(), AdapterWeights(), write);
}

Status TrainModel::SaveModel(const std::string& dir, DType type) const {
  if (is_lora()) return BadArgument("only an adapter is trained: there is no new model to save");
  if (type != DType::kF32 && type != DType::kBF16) return BadArgument("models are saved as F32 or BF16");
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return Error{ErrorCode::kIo, "cannot create '" + dir + "': " + error.message()};
  PITH_ASSIGN(const std::string config_text, HfConfigText(config()));
  std::ofstream(dir + "/config.json") << config_text;
  std::vector<SafetensorsEntry> entries;
  for (const Parameter& parameter : impl_->parameters) entries.push_back({parameter.name, type, parameter.shape});
  PITH_ASSIGN(const auto writer, SafetensorsWriter::Create(dir + "/model.safetensors", entries, {{"format", "pt"}}));
  std::vector<uint16_t> rounded;
  for (const Parameter& parameter : impl_->parameters) {
    auto bytes = std::as_bytes(std::span(parameter.value));
    if (type == DType::kBF16) {
      rounded.resize(parameter.value.size());
      ConvertToBF16(parameter.value.data(), static_cast<int64_t>(rounded.size()), rounded.data());
      bytes = std::as_bytes(std::span(rounded));
    }
    PITH_RETURN_IF_ERROR(writer->Write(parameter.name, bytes));
  }
  return writer->Finish();
}

}  // namespace pith::train
