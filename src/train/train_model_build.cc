// TrainModel: from a checkpoint or from nothing to a decoder with its trained tensors.
#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "base/random.h"
#include "train/train_model_impl.h"

namespace pith::train {

using at::Tensor;

namespace {

// Streams of random numbers below this belong to dropout (Projection::Stream).
constexpr uint64_t kInitStream = uint64_t{1} << 32;

Tensor NewTensor(const std::vector<int64_t>& shape) { return at::zeros(shape, at::kFloat); }

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

}  // namespace

void TrainModel::Impl::MakeReplicas(size_t count) {
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

void TrainModel::Impl::AddParameter(const std::string& name, const Tensor& tensor, bool decay) {
  tensor.set_requires_grad(true);
  tensor.mutable_grad() = at::zeros_like(tensor);
  const auto sizes = tensor.sizes();
  parameters.push_back({name, {sizes.begin(), sizes.end()}, Span(tensor), Span(tensor.grad()), decay});
  tensors.push_back(tensor);
}

void TrainModel::Impl::AddLora(Projection* projection) {
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

void TrainModel::Impl::Shape(int64_t layer, LinearKind kind, Projection* projection) {
  const LinearShape shape = ShapeOf(config, kind);
  projection->layer = layer;
  projection->kind = kind;
  projection->in = shape.in;
  projection->out = shape.out;
}

auto TrainModel::Impl::Members(DecoderLayer* layer, const LayerWeights* from) const -> std::vector<Member> {
  const auto of = [from](Linear LayerWeights::*linear) { return from == nullptr ? nullptr : &(from->*linear); };
  return {{LinearKind::kQ, &layer->q, of(&LayerWeights::q), config.attention_bias},
          {LinearKind::kK, &layer->k, of(&LayerWeights::k), config.attention_bias},
          {LinearKind::kV, &layer->v, of(&LayerWeights::v), config.attention_bias},
          {LinearKind::kO, &layer->o, of(&LayerWeights::o), config.attention_out_bias},
          {LinearKind::kGate, &layer->gate, of(&LayerWeights::gate), config.mlp_bias},
          {LinearKind::kUp, &layer->up, of(&LayerWeights::up), config.mlp_bias},
          {LinearKind::kDown, &layer->down, of(&LayerWeights::down), config.mlp_bias}};
}

void TrainModel::Impl::BuildFrozen() {
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
void TrainModel::Impl::BuildTrained() {
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

Status TrainModel::Impl::Build() {
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
  if (options.round_cache && weights != nullptr) {
    for (const LayerWeights& layer : weights->layers) key_equalizers.push_back(layer.key_scale);
  }
  decoder.layers.resize(static_cast<size_t>(config.layers));
  decoder.head.vocab = config.vocab;
  decoder.head.hidden = config.hidden;
  if (options.lora) {
    BuildFrozen();
  } else {
    BuildTrained();
  }
  decoder.Link();
  if (options.device != "cpu") {
    PITH_ASSIGN(device, DeviceDecoder::Make(decoder, tensors, rope, key_equalizers, options, pool));
  }
  return {};
}

}  // namespace pith::train
