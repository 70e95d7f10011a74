#include "train/device_decoder.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace pith::train {

using at::Tensor;

namespace {

// Logits of so many elements are held at once.
constexpr int64_t kHeadElements = int64_t{1} << 28;

Tensor FromFloats(const std::vector<float>& values, at::IntArrayRef shape, at::Device device) {
  Tensor tensor = at::empty(shape, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
  return tensor.to(device);
}

template <class Int>
Tensor FromInts(const std::vector<Int>& values, at::Device device) {
  Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.data_ptr<int64_t>());
  return tensor.to(device);
}

std::vector<float> ToFloats(const Tensor& tensor) {
  const Tensor host = tensor.to(at::kCPU).contiguous();
  const float* values = host.data_ptr<float>();
  return {values, values + host.numel()};
}

// Values that pass as they are in the backward pass.
Tensor StraightThrough(const Tensor& x, const Tensor& rounded) { return x + (rounded - x).detach(); }

// As RoundActivations and RoundCached (runtime_rounding.h), whose last dimension is one vector with one scale.
Tensor RoundVectors(const Tensor& x, double limit) {
  const Tensor most = x.detach().abs().amax(-1, true);
  const Tensor scale = most / limit;
  const Tensor q = at::round(at::clamp(x.detach() / scale, -limit, limit));
  return at::where(scale < std::numeric_limits<float>::min(), at::zeros_like(q), q * scale);
}

constexpr double kActivationLimit = 32639;
constexpr double kCacheLimit = 127;

Tensor OneOrZero(const std::vector<uint8_t>& on, at::Device device) {
  return FromFloats({on.begin(), on.end()}, {static_cast<int64_t>(on.size()), 1}, device);
}

}  // namespace

Result<at::Device> ParseDevice(const std::string& name) {
  if (name == "torch") return at::Device(at::kCPU);
  const std::string number = name.rfind("cuda:", 0) == 0 ? name.substr(5) : "";
  const bool numbered =
      !number.empty() && number.size() <= 3 && number.find_first_not_of("0123456789") == std::string::npos;
  if (name != "cuda" && !numbered) {
    return Error{ErrorCode::kInvalidArgument, "no device is called '" + name + "': cpu, cuda, cuda:N or torch"};
  }
  if (!at::hasCUDA()) {
    return Error{ErrorCode::kUnavailable, "--device " + name +
                                              ": this program's libtorch finds no CUDA device (a build for one: "
                                              "docs/training.md)"};
  }
  const int index = numbered ? std::stoi(number) : 0;
  try {
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(index));
    (void)at::zeros({1}, at::TensorOptions(device));
    return device;
  } catch (const std::exception& exception) {
    return Error{ErrorCode::kUnavailable, "--device " + name + ": " + exception.what()};
  }
}

Result<std::unique_ptr<DeviceDecoder>> DeviceDecoder::Make(const Decoder& host, const std::vector<Tensor>& trained,
                                                           const RopeFrequencies& rope,
                                                           const std::vector<std::vector<float>>& key_equalizers,
                                                           const TrainModelOptions& options, ThreadPool& pool) {
  PITH_ASSIGN(const at::Device device, ParseDevice(options.device));
  std::unique_ptr<DeviceDecoder> made(new DeviceDecoder(host, device));
  made->pool_ = &pool;
  made->rope_ = rope;
  made->options_ = options;
  made->decoder_ = host;
  made->trained_ = trained;
  std::map<const void*, Tensor> leaves;
  for (const Tensor& tensor : trained) {
    // Also on the CPU a copy: gradients of both must not mix.
    Tensor leaf = tensor.detach().to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    leaf.set_requires_grad(true);
    leaves[tensor.unsafeGetTensorImpl()] = leaf;
    made->leaves_.push_back(leaf);
  }
  made->decoder_.ForEachTensor([&](Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto found = leaves.find(tensor.unsafeGetTensorImpl());
    tensor = found != leaves.end() ? found->second : tensor.to(device);
  });
  const auto add = [&](const FrozenLinear* frozen) {
    if (frozen == nullptr) return;
    Dense dense;
    Tensor weight = at::empty({frozen->rows(), frozen->cols()}, at::kFloat);
    for (int64_t r = 0; r < frozen->rows(); ++r) frozen->Row(r, weight.data_ptr<float>() + r * frozen->cols());
    dense.weight = weight.to(device);
    if (!frozen->bias().empty()) dense.bias = FromFloats(frozen->bias(), {frozen->rows()}, device);
    made->dense_[frozen] = std::move(dense);
  };
  for (const std::vector<float>& equalizer : key_equalizers) {
    made->key_equalizers_.push_back(FromFloats(equalizer, {host.config.kv_heads, host.config.head_dim}, device));
  }
  for (const DecoderLayer& layer : host.layers) {
    for (const Projection* p : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      add(p->frozen);
    }
  }
  add(host.head.frozen);
  return made;
}

void DeviceDecoder::PushParameters() {
  const at::AutoGradMode no_graph(false);
  for (size_t i = 0; i < leaves_.size(); ++i) leaves_[i].copy_(trained_[i]);
}

void DeviceDecoder::PullGradients() {
  const at::AutoGradMode no_graph(false);
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (!leaves_[i].grad().defined()) continue;
    trained_[i].mutable_grad().add_(leaves_[i].grad().to(at::kCPU));
    leaves_[i].mutable_grad() = Tensor();
  }
}

Tensor DeviceDecoder::Embed(const std::vector<int32_t>& tokens) const {
  if (decoder_.embedding.defined()) return decoder_.embedding.index_select(0, FromInts(tokens, device_));
  const int64_t hidden = host_.config.hidden;
  Tensor x = at::empty({static_cast<int64_t>(tokens.size()), hidden}, at::kFloat);
  for (size_t r = 0; r < tokens.size(); ++r) {
    host_.embedding_table->Row(tokens[r], x.data_ptr<float>() + static_cast<int64_t>(r) * hidden);
  }
  return x.to(device_);
}

// Angles in float, as the engine and transformers compute them.
void DeviceDecoder::SetPositions(const std::vector<int64_t>& positions, Rows* rows) const {
  std::vector<float> cos, sin;
  const auto factor = static_cast<float>(rope_.attention_factor);
  for (const int64_t position : positions) {
    for (const double frequency : rope_.inv_freq) {
      const float angle = static_cast<float>(position) * static_cast<float>(frequency);
      cos.push_back(std::cos(angle) * factor);
      sin.push_back(std::sin(angle) * factor);
    }
  }
  const auto count = static_cast<int64_t>(positions.size());
  const int64_t half = host_.config.head_dim / 2;
  rows->cos = FromFloats(cos, {count, 1, half}, device_);
  rows->sin = FromFloats(sin, {count, 1, half}, device_);
  rows->host.rows = count;
}

// The input of A: masked rows and dropped elements are zero. The masks of dropout are drawn on the host, the same as
// without a device.
Tensor DeviceDecoder::LoraInput(const Projection& projection, const Tensor& x, const Rows& rows) const {
  Tensor input = rows.adapter.defined() ? x * rows.adapter : x;
  if (rows.host.dropout <= 0) return input;
  Tensor mask = at::ones(x.sizes(), at::kFloat);
  ApplyDropout(rows.host, projection.Stream(), mask.data_ptr<float>(), x.size(1));
  return input * mask.to(device_);
}

Tensor DeviceDecoder::LinearInput(const Tensor& x) const {
  return options_.round_activations ? StraightThrough(x, RoundVectors(x, kActivationLimit)) : x;
}

Tensor DeviceDecoder::CachedKeys(int64_t index, const Tensor& k) const {
  if (!options_.round_cache) return k;
  if (key_equalizers_.empty()) return StraightThrough(k, RoundVectors(k, kCacheLimit));
  const Tensor& equalizer = key_equalizers_[static_cast<size_t>(index)];
  return StraightThrough(k, RoundVectors(k * equalizer, kCacheLimit) / equalizer);
}

// `x` went through LinearInput.
Tensor DeviceDecoder::Project(const Projection& projection, const Tensor& x, const Rows& rows) const {
  Tensor y;
  if (projection.frozen != nullptr) {
    const Dense& dense = dense_.at(projection.frozen);
    y = at::linear(x, dense.weight, dense.bias);
  } else {
    y = at::linear(x, projection.weight, projection.bias);
  }
  if (!rows.adapter_on || !projection.a.defined()) return y;
  const Tensor inner = at::matmul(LoraInput(projection, x, rows), projection.a.t());
  return y + at::matmul(inner, projection.b.t()) * projection.scaling;
}

Tensor DeviceDecoder::Norm(const Tensor& x, const Tensor& weight) const {
  return x * at::rsqrt(x.square().mean(-1, true) + host_.config.rms_eps) * weight;
}

// x[rows, heads, head_dim]: each half-pair (j, j + half) turned by the row's angle j.
Tensor DeviceDecoder::Rotate(const Tensor& x, const Rows& rows) const {
  const int64_t half = x.size(2) / 2;
  const Tensor first = x.slice(2, 0, half);
  const Tensor second = x.slice(2, half);
  return at::cat({first * rows.cos - second * rows.sin, second * rows.cos + first * rows.sin}, 2);
}

Tensor DeviceDecoder::Attention(int64_t index, const Tensor& given, const Rows& rows) const {
  const DecoderLayer& layer = decoder_.layers[static_cast<size_t>(index)];
  const ModelConfig& config = host_.config;
  const int64_t d = config.head_dim;
  const Tensor x = LinearInput(given);
  Tensor q = Project(layer.q, x, rows).view({-1, config.heads, d});
  Tensor k = Project(layer.k, x, rows).view({-1, config.kv_heads, d});
  Tensor v = Project(layer.v, x, rows).view({-1, config.kv_heads, d});
  if (config.qk_norm) {
    q = Norm(q, layer.q_norm);
    k = Norm(k, layer.k_norm);
  }
  q = Rotate(q, rows);
  k = CachedKeys(index, Rotate(k, rows));
  if (options_.round_cache) v = StraightThrough(v, RoundVectors(v, kCacheLimit));
  if (rows.keep != nullptr) rows.keep->emplace_back(k, v);
  std::vector<Tensor> mixed;
  for (const AttentionSpan& span : rows.host.spans) {
    Tensor keys = k.narrow(0, span.begin, span.length);
    Tensor values = v.narrow(0, span.begin, span.length);
    if (span.prefix_length > 0) {
      const KeysValues& prefix = (*rows.prefix)[static_cast<size_t>(index)];
      keys = at::cat({prefix.first.narrow(0, span.prefix_begin, span.prefix_length), keys}, 0);
      values = at::cat({prefix.second.narrow(0, span.prefix_begin, span.prefix_length), values}, 0);
    }
    // [heads, length, d] and [heads, seen, d]; each key head serves heads / kv_heads queries.
    const int64_t group = config.heads / config.kv_heads;
    const Tensor queries = q.narrow(0, span.begin, span.length).transpose(0, 1);
    keys = keys.transpose(0, 1).repeat_interleave(group, 0);
    values = values.transpose(0, 1).repeat_interleave(group, 0);
    const Tensor hidden_from =
        at::ones({span.length, keys.size(1)}, at::TensorOptions(device_).dtype(at::kBool)).triu(span.prefix_length + 1);
    const Tensor scores = (at::matmul(queries, keys.transpose(1, 2)) / std::sqrt(static_cast<double>(d)))
                              .masked_fill(hidden_from, -std::numeric_limits<float>::infinity());
    mixed.push_back(at::matmul(at::softmax(scores, -1), values).transpose(0, 1).reshape({span.length, -1}));
  }
  return at::cat(mixed, 0);
}

Tensor DeviceDecoder::Layer(int64_t index, const Tensor& x, const Rows& rows) const {
  const DecoderLayer& layer = decoder_.layers[static_cast<size_t>(index)];
  const Tensor mixed = Attention(index, Norm(x, layer.attention_norm), rows);
  const Tensor middle = x + Project(layer.o, LinearInput(mixed), rows);
  const Tensor normed = LinearInput(Norm(middle, layer.mlp_norm));
  const Tensor active = at::silu(Project(layer.gate, normed, rows)) * Project(layer.up, normed, rows);
  return middle + Project(layer.down, LinearInput(active), rows);
}

// A layer without a graph inside: the backward pass computes it again.
struct DeviceLayerFunction : torch::autograd::Function<DeviceLayerFunction> {
  static Tensor forward(torch::autograd::AutogradContext* context, const DeviceDecoder* decoder, int64_t index,
                        const DeviceDecoder::Rows* rows, const Tensor& x) {
    context->save_for_backward({x});
    context->saved_data["index"] = index;
    context->saved_data["decoder"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(decoder));
    context->saved_data["rows"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(rows));
    return decoder->Layer(index, x, *rows);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto pointer = [&](const char* name) { return static_cast<intptr_t>(context->saved_data[name].toInt()); };
    const auto& decoder = *reinterpret_cast<const DeviceDecoder*>(pointer("decoder"));
    const auto& rows = *reinterpret_cast<const DeviceDecoder::Rows*>(pointer("rows"));
    const at::AutoGradMode with_graph(true);
    Tensor x = context->get_saved_variables()[0].detach();
    x.set_requires_grad(true);
    decoder.Layer(context->saved_data["index"].toInt(), x, rows).backward(gradients[0]);
    return {Tensor(), Tensor(), Tensor(), x.grad()};
  }
};

void DeviceDecoder::RunPrefixes(const TrainBatch& batch, Forward* forward) const {
  const at::AutoGradMode no_graph(false);
  Rows rows;
  std::vector<int64_t> positions;
  std::vector<int32_t> tokens;
  for (const auto& prefix : batch.prefixes) {
    rows.host.spans.push_back({static_cast<int64_t>(tokens.size()), static_cast<int64_t>(prefix.size()), 0, 0});
    for (size_t i = 0; i < prefix.size(); ++i) positions.push_back(static_cast<int64_t>(i));
    tokens.insert(tokens.end(), prefix.begin(), prefix.end());
  }
  SetPositions(positions, &rows);
  rows.keep = &forward->prefix;
  Tensor x = Embed(tokens);
  for (int64_t i = 0; i < host_.config.layers; ++i) x = Layer(i, x, rows);
}

DeviceDecoder::Forward DeviceDecoder::RunLayers(const TrainBatch& batch, bool graph, bool adapter,
                                                uint64_t dropout_key) const {
  Forward forward;
  if (!batch.prefixes.empty()) RunPrefixes(batch, &forward);
  std::vector<int64_t> prefix_begin;
  int64_t total = 0;
  for (const auto& prefix : batch.prefixes) {
    prefix_begin.push_back(total);
    total += static_cast<int64_t>(prefix.size());
  }
  Rows& rows = forward.rows;
  rows.adapter_on = adapter && options_.lora.has_value();
  rows.host.pool = pool_;
  rows.host.seed = options_.seed;
  rows.host.dropout = graph && rows.adapter_on ? options_.lora->dropout : 0.0;
  rows.host.dropout_key = dropout_key;
  std::vector<int64_t> positions, label_rows;
  std::vector<int32_t> tokens, labels;
  std::vector<uint8_t> on, label_on;
  for (const Segment& segment : batch.segments) {
    AttentionSpan span{static_cast<int64_t>(tokens.size()), static_cast<int64_t>(segment.tokens.size()), 0, 0};
    if (segment.prefix >= 0) {
      span.prefix_begin = prefix_begin[static_cast<size_t>(segment.prefix)];
      span.prefix_length = static_cast<int64_t>(batch.prefixes[static_cast<size_t>(segment.prefix)].size());
    }
    rows.host.spans.push_back(span);
    for (int64_t i = 0; i < span.length; ++i) {
      positions.push_back(span.prefix_length + i);
      on.push_back(i >= segment.adapter_from ? 1 : 0);
      if (segment.labels[static_cast<size_t>(i)] == kNoLabel) continue;
      label_rows.push_back(span.begin + i);
      labels.push_back(segment.labels[static_cast<size_t>(i)]);
      label_on.push_back(rows.adapter_on ? on.back() : uint8_t{0});
    }
    tokens.insert(tokens.end(), segment.tokens.begin(), segment.tokens.end());
  }
  SetPositions(positions, &rows);
  if (std::count(on.begin(), on.end(), 0) > 0) rows.adapter = OneOrZero(on, device_);
  rows.prefix = &forward.prefix;
  forward.label_rows = FromInts(label_rows, device_);
  forward.labels = FromInts(labels, device_);
  if (std::count(label_on.begin(), label_on.end(), 0) > 0) forward.label_adapter = OneOrZero(label_on, device_);

  const at::AutoGradMode mode(graph);
  Tensor x = Embed(tokens);
  const bool again = graph && options_.gradient_checkpointing;
  if (again && !x.requires_grad()) x.set_requires_grad(true);  // something to hang on to
  for (int64_t i = 0; i < host_.config.layers; ++i) {
    x = again ? DeviceLayerFunction::apply(this, i, &rows, x) : Layer(i, x, rows);
  }
  forward.x = x;
  return forward;
}

Tensor DeviceDecoder::LabelStates(const Forward& forward) const {
  return LinearInput(Norm(forward.x.index_select(0, forward.label_rows), decoder_.final_norm));
}

Tensor DeviceDecoder::Logits(const Tensor& states, const Tensor& adapter) const {
  Tensor logits;
  if (host_.head.frozen != nullptr) {
    const Dense& dense = dense_.at(host_.head.frozen);
    logits = at::linear(states, dense.weight, dense.bias);
  } else {
    logits = at::linear(states, decoder_.head_weight);
  }
  const Projection& lora = decoder_.head_lora;
  if (!lora.a.defined()) return logits;
  const Tensor input = adapter.defined() ? states * adapter : states;
  return logits + at::matmul(at::matmul(input, lora.a.t()), lora.b.t()) * lora.scaling;
}

namespace {

// [rows] of log p(label) and of entropy.
std::pair<Tensor, Tensor> LogProbsAndEntropies(const Tensor& logits, const Tensor& labels, float temperature) {
  const Tensor log_probs = at::log_softmax(logits / temperature, -1);
  return {log_probs.gather(1, labels.unsqueeze(1)).squeeze(1), -(log_probs.exp() * log_probs).sum(-1)};
}

// Calls body(first, count) for chunks of rows.
template <class Body>
void ForChunks(int64_t rows, int64_t vocab, const Body& body) {
  const int64_t chunk = std::max<int64_t>(1, kHeadElements / vocab);
  for (int64_t first = 0; first < rows; first += chunk) body(first, std::min(chunk, rows - first));
}

Tensor NarrowOrNone(const Tensor& tensor, int64_t first, int64_t count) {
  return tensor.defined() ? tensor.narrow(0, first, count) : Tensor();
}

}  // namespace

TokenScores DeviceDecoder::ScoresOf(const Forward& forward, const Tensor& states, float temperature) const {
  const at::AutoGradMode no_graph(false);
  TokenScores scores;
  ForChunks(states.size(0), host_.config.vocab, [&](int64_t first, int64_t count) {
    const Tensor logits = Logits(states.narrow(0, first, count), NarrowOrNone(forward.label_adapter, first, count));
    const auto [log_probs, entropies] =
        LogProbsAndEntropies(logits, forward.labels.narrow(0, first, count), temperature);
    for (const float value : ToFloats(log_probs)) scores.log_probs.push_back(value);
    for (const float value : ToFloats(entropies)) scores.entropies.push_back(value);
  });
  return scores;
}

Result<TokenScores> DeviceDecoder::Accumulate(const TrainBatch& batch, std::span<const float> given,
                                              const TrainModel::ScoreGradient* gradient, uint64_t dropout_key) {
  PushParameters();
  const Forward forward = RunLayers(batch, true, true, dropout_key);
  const Tensor graph_states = LabelStates(forward);
  Tensor states = graph_states.detach();
  TokenScores scores = ScoresOf(forward, states, batch.temperature);
  for (const float value : scores.log_probs) {
    if (!std::isfinite(value)) return Error{ErrorCode::kNumeric, "a log-probability is not finite"};
  }
  std::vector<float> weights(given.begin(), given.end());
  if (gradient != nullptr) {
    PITH_ASSIGN(weights, (*gradient)(scores));
    if (weights.size() != scores.log_probs.size()) {
      return Error{ErrorCode::kInvalidArgument, std::to_string(weights.size()) + " gradients for " +
                                                    std::to_string(scores.log_probs.size()) + " labels"};
    }
    for (float& weight : weights) weight = -weight;  // loss = sum weight * -log p
  }
  const Tensor label_weights = FromFloats(weights, {static_cast<int64_t>(weights.size())}, device_);
  states.set_requires_grad(true);
  ForChunks(states.size(0), host_.config.vocab, [&](int64_t first, int64_t count) {
    const Tensor logits = Logits(states.narrow(0, first, count), NarrowOrNone(forward.label_adapter, first, count));
    const Tensor log_probs =
        LogProbsAndEntropies(logits, forward.labels.narrow(0, first, count), batch.temperature).first;
    (-(log_probs * label_weights.narrow(0, first, count)).sum()).backward();
  });
  if (graph_states.requires_grad()) graph_states.backward(states.grad());
  PullGradients();
  return scores;
}

Result<double> DeviceDecoder::AccumulateLogits(const TrainBatch& batch, const TrainModel::LogitGradient& gradient,
                                               uint64_t dropout_key) {
  PushParameters();
  const Forward forward = RunLayers(batch, true, true, dropout_key);
  const Tensor graph_states = LabelStates(forward);
  Tensor states = graph_states.detach();
  states.set_requires_grad(true);
  double loss = 0;
  ForChunks(states.size(0), host_.config.vocab, [&](int64_t first, int64_t count) {
    const Tensor logits = Logits(states.narrow(0, first, count), Tensor());
    // On the host the function may write over what it is given.
    Tensor values = logits.detach().to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
    loss += gradient(first, count, values.data_ptr<float>());
    logits.backward(values.to(device_));
  });
  if (graph_states.requires_grad()) graph_states.backward(states.grad());
  PullGradients();
  if (!std::isfinite(loss)) return Error{ErrorCode::kNumeric, "the loss is not finite"};
  return loss;
}

TokenScores DeviceDecoder::Score(const TrainBatch& batch, bool adapter) {
  const at::AutoGradMode no_graph(false);
  PushParameters();
  const Forward forward = RunLayers(batch, false, adapter, 0);
  return ScoresOf(forward, LabelStates(forward), batch.temperature);
}

TrainModel::Outputs DeviceDecoder::Run(const TrainBatch& batch, bool adapter, bool logits) {
  const at::AutoGradMode no_graph(false);
  PushParameters();
  const Forward forward = RunLayers(batch, false, adapter, 0);
  const Tensor states = Norm(forward.x, decoder_.final_norm);
  TrainModel::Outputs outputs;
  outputs.states = ToFloats(states);
  if (!logits) return outputs;
  const Tensor inputs = LinearInput(states);
  const Tensor off = at::zeros({states.size(0), 1}, states.options());
  const Tensor on = forward.rows.adapter_on ? forward.rows.adapter : off;
  ForChunks(states.size(0), host_.config.vocab, [&](int64_t first, int64_t count) {
    const auto values = ToFloats(Logits(inputs.narrow(0, first, count), NarrowOrNone(on, first, count)));
    outputs.logits.insert(outputs.logits.end(), values.begin(), values.end());
  });
  return outputs;
}

}  // namespace pith::train
