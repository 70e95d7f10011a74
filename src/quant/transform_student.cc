#include "quant/transform_student.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <span>
#include <utility>

#include "deploy/matrix_reader.h"
#include "model/hf_names.h"
#include "quant/fake_quant.h"
#include "quant/stored_scale.h"
#include "train/blas.h"

namespace pith::quant {

namespace {

using at::Tensor;

// What a step of the optimizer is to each kind of parameter, beside the logarithm of a scale.
constexpr double kRotationUnit = 0.25;  // entries of A
constexpr double kAngleUnit = 4.0;
constexpr double kValueUnit = 1.0;

std::span<float> Span(const Tensor& tensor) { return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())}; }

std::vector<float> Copy(const Tensor& tensor) {
  const Tensor flat = tensor.detach().to(at::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

Tensor MatrixTensor(const std::vector<float>& values, int64_t rows, int64_t cols) {
  Tensor tensor = at::empty({rows, cols}, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
  return tensor;
}

Tensor VectorTensor(std::span<const float> values) {
  Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
  return tensor;
}

// A view of a parameter's values or gradients.
Tensor View(std::span<float> values, at::IntArrayRef shape) { return at::from_blob(values.data(), shape, at::kFloat); }

// R of the trained P[n, n]: A = unit * (upper triangle of P minus its transpose). In double: float32 loses three digits
// of orthogonality.
Tensor Cayley(const Tensor& p) {
  const Tensor upper = (p.to(at::kDouble) * kRotationUnit).triu(1);
  const Tensor a = upper - upper.t();
  const Tensor identity = at::eye(p.size(0), at::kDouble);
  return at::linalg_solve(identity + a, identity - a).to(at::kFloat);
}

// One matrix of the model: what it is made of and where it goes.
struct Linear {
  std::string module;
  Tensor base;  // [rows, cols]
  Tensor bias;  // [rows] or undefined
  train::Parameter* weight = nullptr;
  train::Parameter* bias_target = nullptr;
  QuantSpec spec;
  DType scale_type = DType::kF16;
  Tensor start;      // [tiles] scales; undefined = not quantized
  Tensor log_scale;  // [tiles], trained

  // The stored scales, straight through the rounding to their type.
  Tensor Scales() const {
    const Tensor exact = start * log_scale.exp();
    Tensor stored = exact.detach().clone();
    for (float& value : Span(stored)) value = StoredScale(value, scale_type);
    return exact + (stored - exact.detach());
  }
  Tensor Quantized(const Tensor& merged) const {
    if (!start.defined()) return merged;
    return FakeQuantize(spec, merged.contiguous(), {Scales(), Tensor()});
  }
};

struct Layer {
  Linear q, k, v, o, gate, up, down;
  Tensor angle, log_key, value, log_up;  // trained; undefined = not

  std::vector<Linear*> All() { return {&q, &k, &v, &o, &gate, &up, &down}; }
};

}  // namespace

struct TransformStudent::Impl {
  ModelConfig config;
  TransformTrainables trainables;
  std::vector<Layer> layers;
  Linear head;
  Tensor embedding;  // [vocab, hidden]
  train::Parameter* embedding_target = nullptr;
  std::optional<QuantFormat> embedding_format;
  Tensor rotation;  // P
  std::vector<train::Parameter> parameters;

  int64_t half() const { return config.head_dim / 2; }
  int64_t group() const { return config.heads / config.kv_heads; }

  Tensor AddParameter(const std::string& name, const Tensor& start) {
    Tensor tensor = start.contiguous().clone();
    tensor.set_requires_grad(true);
    tensor.mutable_grad() = at::zeros_like(tensor);
    const auto sizes = tensor.sizes();
    parameters.push_back({name, {sizes.begin(), sizes.end()}, Span(tensor), Span(tensor.grad()), false});
    return tensor;
  }

  // Pairs (j, j + d/2) of heads of rows, turned and scaled; w[heads * d, width].
  Tensor Turned(const Layer& layer, const Tensor& w, int64_t heads, bool inverse) const {
    if (!layer.angle.defined()) return w;
    const Tensor scale = inverse ? (-layer.log_key).exp() : layer.log_key.exp();
    const Tensor angle = layer.angle * kAngleUnit;
    const std::vector<int64_t> shape = {config.kv_heads, 1, half(), 1};
    const Tensor c = (angle.cos() * scale).view(shape), s = (angle.sin() * scale).view(shape);
    const Tensor pairs = w.reshape({config.kv_heads, heads / config.kv_heads, 2, half(), -1});
    const Tensor a = pairs.select(2, 0), b = pairs.select(2, 1);
    return at::stack({a * c - b * s, b * c + a * s}, 2).reshape(w.sizes());
  }

  Tensor ValueMatrix(const Layer& layer) const { return at::eye(config.head_dim) + layer.value * kValueUnit; }

  static Tensor Inputs(const Tensor& w, const Tensor& r) { return r.defined() ? w.matmul(r) : w; }

  // Weights and biases of a layer with all transforms merged, rounded, in the order of Targets.
  std::vector<Tensor> Merged(const Layer& layer, const Tensor& r) const {
    const int64_t d = config.head_dim, kv = config.kv_heads;
    std::vector<Tensor> weights, biases;
    const auto add = [&](const Linear& linear, const Tensor& merged, const Tensor& bias) {
      weights.push_back(linear.Quantized(merged));
      if (linear.bias.defined()) biases.push_back(bias);
    };
    const auto turned_bias = [&](const Linear& linear, int64_t heads, bool inverse) {
      return linear.bias.defined() ? Turned(layer, linear.bias.view({-1, 1}), heads, inverse).view({-1}) : Tensor();
    };
    add(layer.q, Inputs(Turned(layer, layer.q.base, config.heads, true), r), turned_bias(layer.q, config.heads, true));
    add(layer.k, Inputs(Turned(layer, layer.k.base, kv, false), r), turned_bias(layer.k, kv, false));
    Tensor v = layer.v.base, v_bias = layer.v.bias, o = layer.o.base;
    if (layer.value.defined()) {
      const Tensor m = ValueMatrix(layer);
      v = m.transpose(1, 2).matmul(v.view({kv, d, -1})).reshape(v.sizes());
      if (v_bias.defined()) v_bias = m.transpose(1, 2).matmul(v_bias.view({kv, d, 1})).reshape({-1});
      const Tensor inverse = at::linalg_inv(m.to(at::kDouble)).to(at::kFloat);
      // [kv head, query head of the group and output, d]
      const Tensor blocks = o.view({-1, kv, group(), d}).permute({1, 2, 0, 3}).reshape({kv, -1, d});
      o = blocks.matmul(inverse.transpose(1, 2))
              .view({kv, group(), -1, d})
              .permute({2, 0, 1, 3})
              .reshape(layer.o.base.sizes());
    }
    add(layer.v, Inputs(v, r), v_bias);
    const auto outputs = [&](const Tensor& w) { return r.defined() ? r.t().matmul(w) : w; };
    const auto rotated_bias = [&](const Linear& linear) {
      if (!linear.bias.defined() || !r.defined()) return linear.bias;
      return r.t().mv(linear.bias);
    };
    add(layer.o, outputs(o), rotated_bias(layer.o));
    add(layer.gate, Inputs(layer.gate.base, r), layer.gate.bias);
    Tensor up = layer.up.base, up_bias = layer.up.bias, down = layer.down.base;
    if (layer.log_up.defined()) {
      const Tensor u = layer.log_up.exp();
      up = up * u.view({-1, 1});
      if (up_bias.defined()) up_bias = up_bias * u;
      down = down / u;
    }
    add(layer.up, Inputs(up, r), up_bias);
    add(layer.down, outputs(down), rotated_bias(layer.down));
    weights.insert(weights.end(), biases.begin(), biases.end());
    return weights;
  }

  static std::vector<train::Parameter*> Targets(Layer* layer) {
    std::vector<train::Parameter*> weights, biases;
    for (Linear* linear : layer->All()) {
      weights.push_back(linear->weight);
      if (linear->bias.defined()) biases.push_back(linear->bias_target);
    }
    weights.insert(weights.end(), biases.begin(), biases.end());
    return weights;
  }

  // Calls body(i) for all layers and, last, the head, on the threads of the pool. What torch throws becomes an error.
  template <class Body>
  Status ForLayers(ThreadPool& pool, const Body& body) const {
    const auto count = static_cast<int64_t>(layers.size()) + 1;
    std::vector<std::string> problems(static_cast<size_t>(count));
    pool.Run(count, [&](int64_t i, int) {
      const train::SerialBlas serial;  // torch's own loops too
      try {
        body(i);
      } catch (const std::exception& exception) {
        problems[static_cast<size_t>(i)] = exception.what();
      }
    });
    for (const std::string& problem : problems) {
      if (!problem.empty()) return Error{ErrorCode::kNumeric, "transforms: " + problem.substr(0, problem.find('\n'))};
    }
    return {};
  }

  static void Store(const Tensor& from, train::Parameter* to) {
    const Tensor values = from.contiguous();
    std::copy_n(values.data_ptr<float>(), values.numel(), to->value.begin());
  }

  // Rows of the embedding as the packer rounds them: plain range, scales of their type.
  void StoreEmbedding(const Tensor& merged, ThreadPool& pool) const {
    const Tensor rows = merged.contiguous();
    const int64_t cols = config.hidden;
    float* out = embedding_target->value.data();
    pool.Run(config.vocab, [&](int64_t r, int) {
      const float* row = rows.data_ptr<float>() + r * cols;
      if (!embedding_format) {
        std::copy_n(row, cols, out + r * cols);
        return;
      }
      Quantizer quantizer;
      quantizer.format = *embedding_format;
      const int64_t groups = quantizer.format.group == 0 ? 1 : cols / quantizer.format.group;
      std::vector<uint8_t> codes(static_cast<size_t>(cols));
      std::vector<float> scales(static_cast<size_t>(groups));
      QuantizedRow result;
      result.codes = codes.data();
      result.scales = scales.data();
      QuantizeRow(quantizer, row, cols, nullptr, result);
      DequantizeRow(quantizer.format, cols, result, out + r * cols);
    });
  }

  Status Write(ThreadPool& pool) {
    const at::AutoGradMode no_graph(false);
    const Tensor r = rotation.defined() ? Cayley(rotation) : Tensor();
    PITH_RETURN_IF_ERROR(ForLayers(pool, [&](int64_t i) {
      const at::AutoGradMode none(false);
      if (i == static_cast<int64_t>(layers.size())) {
        Store(head.Quantized(Inputs(head.base, r)), head.weight);
        return;
      }
      Layer& layer = layers[static_cast<size_t>(i)];
      const std::vector<Tensor> merged = Merged(layer, r);
      const auto targets = Targets(&layer);
      for (size_t m = 0; m < merged.size(); ++m) Store(merged[m], targets[m]);
    }));
    if (r.defined()) StoreEmbedding(embedding.matmul(r), pool);
    return {};
  }

  Status Collect(ThreadPool& pool) {
    Tensor r;
    if (rotation.defined()) r = Cayley(rotation);
    std::vector<Tensor> rotations(layers.size() + 1);  // a leaf for each layer, so that sums have an order
    for (Tensor& leaf : rotations) {
      if (r.defined()) leaf = r.detach().clone().requires_grad_(true);
    }
    PITH_RETURN_IF_ERROR(ForLayers(pool, [&](int64_t i) {
      const at::AutoGradMode graph(true);
      const Tensor& leaf = rotations[static_cast<size_t>(i)];
      std::vector<Tensor> outputs;
      std::vector<train::Parameter*> targets;
      if (i == static_cast<int64_t>(layers.size())) {
        outputs = {head.Quantized(Inputs(head.base, leaf))};
        targets = {head.weight};
      } else {
        outputs = Merged(layers[static_cast<size_t>(i)], leaf);
        targets = Targets(&layers[static_cast<size_t>(i)]);
      }
      // The gradient of sum (weight * gradient) is the gradient that came in.
      Tensor projection = at::zeros({});
      for (size_t m = 0; m < outputs.size(); ++m) {
        if (!outputs[m].requires_grad()) continue;
        projection = projection + (outputs[m] * View(targets[m]->gradient, outputs[m].sizes())).sum();
      }
      if (projection.requires_grad()) projection.backward();
    }));
    if (!r.defined()) return {};
    Tensor dr = embedding.t().matmul(View(embedding_target->gradient, {config.vocab, config.hidden}));
    for (const Tensor& leaf : rotations) {
      if (leaf.grad().defined()) dr += leaf.grad();
    }
    try {
      r.backward(dr);
    } catch (const std::exception& exception) {
      return Error{ErrorCode::kNumeric, std::string("rotation: ") + exception.what()};
    }
    return {};
  }

  Status Build(const Checkpoint& merged, const Checkpoint& packed, train::TrainModel& model);
  Status SetUp(const std::string& module, const WeightMatrix& base, std::map<std::string, QuantizedMatrix>* quantized,
               std::map<std::string, train::Parameter*>* targets, Linear* linear);
};

Status TransformStudent::Impl::SetUp(const std::string& module, const WeightMatrix& base,
                                     std::map<std::string, QuantizedMatrix>* quantized,
                                     std::map<std::string, train::Parameter*>* targets, Linear* linear) {
  linear->module = module;
  linear->base = MatrixTensor(base.values, base.rows, base.cols);
  linear->weight = (*targets)[module + ".weight"];
  if (linear->weight == nullptr) return Error{ErrorCode::kInternal, "'" + module + "' is not trained"};
  if (!base.bias.empty()) {
    linear->bias = VectorTensor(base.bias);
    linear->bias_target = (*targets)[module + ".bias"];
    if (linear->bias_target == nullptr) return Error{ErrorCode::kInternal, "'" + module + ".bias' is not trained"};
  }
  const auto found = quantized->find(module);
  if (found == quantized->end()) return {};
  const QuantizedMatrix& matrix = found->second;
  linear->spec.range = RangeOfBits(matrix.format.bits);
  linear->spec.granularity = matrix.format.group == 0 ? Granularity::kRow : Granularity::kGroup;
  linear->spec.group = matrix.format.group;
  linear->scale_type = matrix.format.scale_type;
  linear->start = VectorTensor(matrix.scales);
  linear->log_scale = at::zeros_like(linear->start);
  if (trainables.ranges) linear->log_scale = AddParameter(module + ".scale", linear->log_scale);
  quantized->erase(found);
  return {};
}

Status TransformStudent::Impl::Build(const Checkpoint& merged, const Checkpoint& packed, train::TrainModel& model) {
  config = merged.config();
  std::map<std::string, train::Parameter*> targets;
  for (train::Parameter& parameter : model.parameters()) targets[parameter.name] = &parameter;
  PITH_ASSIGN(auto quantized, ReadQuantizedMatrices(packed));
  for (const ModelModule& module : ModulesOf(config)) {
    // The norms on queries and keys stay where they are.
    if (module.kind != ModuleKind::kNorm || module.shape[0] != config.hidden) continue;
    PITH_ASSIGN(const std::vector<float> gain, ReadVector(merged, module.name, "weight", config.hidden));
    if (std::any_of(gain.begin(), gain.end(), [](float value) { return value != 1.0F; })) {
      return Error{ErrorCode::kInvalidArgument, "'" + module.name + "' has gains that are not folded"};
    }
  }
  if (trainables.rotation) rotation = AddParameter("rotation", at::zeros({config.hidden, config.hidden}));
  layers.resize(static_cast<size_t>(config.layers));
  for (int64_t i = 0; i < config.layers; ++i) {
    Layer& layer = layers[static_cast<size_t>(i)];
    PITH_ASSIGN(const LayerWeights weights, ReadLayer(merged, i));
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    const auto set_up = [&](const char* name, const WeightMatrix& base, Linear* linear) {
      return SetUp(prefix + name, base, &quantized, &targets, linear);
    };
    PITH_RETURN_IF_ERROR(set_up("self_attn.q_proj", weights.q, &layer.q));
    PITH_RETURN_IF_ERROR(set_up("self_attn.k_proj", weights.k, &layer.k));
    PITH_RETURN_IF_ERROR(set_up("self_attn.v_proj", weights.v, &layer.v));
    PITH_RETURN_IF_ERROR(set_up("self_attn.o_proj", weights.o, &layer.o));
    PITH_RETURN_IF_ERROR(set_up("mlp.gate_proj", weights.gate, &layer.gate));
    PITH_RETURN_IF_ERROR(set_up("mlp.up_proj", weights.up, &layer.up));
    PITH_RETURN_IF_ERROR(set_up("mlp.down_proj", weights.down, &layer.down));
    const int64_t kv = config.kv_heads;
    if (trainables.keys && !config.qk_norm) {
      layer.angle = AddParameter(prefix + "key_angle", at::zeros({kv, half()}));
      layer.log_key = AddParameter(prefix + "key_scale", at::zeros({kv, half()}));
    }
    if (trainables.values) {
      layer.value = AddParameter(prefix + "value", at::zeros({kv, config.head_dim, config.head_dim}));
    }
    if (trainables.up) layer.log_up = AddParameter(prefix + "up", at::zeros({config.intermediate}));
  }
  const auto table = [&](const std::string& module) -> Result<WeightMatrix> {
    WeightMatrix matrix;
    matrix.rows = config.vocab;
    matrix.cols = config.hidden;
    matrix.values.resize(static_cast<size_t>(matrix.rows * matrix.cols));
    PITH_ASSIGN(const MatrixReader reader, MatrixReader::Open(merged, module, matrix.rows, matrix.cols));
    for (int64_t r = 0; r < matrix.rows; ++r) reader.ReadRow(r, matrix.values.data() + r * matrix.cols);
    return matrix;
  };
  PITH_ASSIGN(const WeightMatrix head_matrix, table("lm_head"));
  PITH_RETURN_IF_ERROR(SetUp("lm_head", head_matrix, &quantized, &targets, &head));
  if (!trainables.rotation) return {};
  PITH_ASSIGN(const WeightMatrix embedding_matrix, table("model.embed_tokens"));
  embedding = MatrixTensor(embedding_matrix.values, config.vocab, config.hidden);
  embedding_target = targets["model.embed_tokens.weight"];
  PITH_ASSIGN(const MatrixReader reader, MatrixReader::Open(packed, "model.embed_tokens", config.vocab, config.hidden));
  embedding_format = reader.format();
  if (embedding_format && embedding_format->zero != ZeroForm::kSymmetric) {
    return Error{ErrorCode::kUnsupported, "the embedding table has zero points or minimums"};
  }
  return {};
}

TransformStudent::TransformStudent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TransformStudent::~TransformStudent() = default;

Result<std::unique_ptr<TransformStudent>> TransformStudent::Make(const Checkpoint& merged, const Checkpoint& packed,
                                                                 train::TrainModel& model,
                                                                 const TransformTrainables& trainables) {
  auto impl = std::make_unique<Impl>();
  impl->trainables = trainables;
  PITH_RETURN_IF_ERROR(impl->Build(merged, packed, model));
  return std::unique_ptr<TransformStudent>(new TransformStudent(std::move(impl)));
}

std::vector<train::Parameter>& TransformStudent::parameters() { return impl_->parameters; }
Status TransformStudent::Write(ThreadPool& pool) { return impl_->Write(pool); }
Status TransformStudent::Collect(ThreadPool& pool) { return impl_->Collect(pool); }

Transforms TransformStudent::TrainedTransforms() const {
  const at::AutoGradMode no_graph(false);
  Transforms transforms;
  if (impl_->rotation.defined()) transforms.rotation = Copy(Cayley(impl_->rotation));
  for (const Layer& layer : impl_->layers) {
    LayerTransforms& result = transforms.layers.emplace_back();
    if (layer.angle.defined()) {
      result.key_angle = Copy(layer.angle * kAngleUnit);
      result.key_scale = Copy(layer.log_key.exp());
    }
    if (layer.value.defined()) result.value = Copy(impl_->ValueMatrix(layer));
    if (layer.log_up.defined()) result.up = Copy(layer.log_up.exp());
  }
  return transforms;
}

std::map<std::string, std::vector<float>> TransformStudent::TrainedScales() const {
  const at::AutoGradMode no_graph(false);
  std::map<std::string, std::vector<float>> scales;
  const auto add = [&](const Linear& linear) {
    if (linear.start.defined()) scales[linear.module] = Copy(linear.Scales());
  };
  for (Layer& layer : impl_->layers) {
    for (const Linear* linear : layer.All()) add(*linear);
  }
  add(impl_->head);
  return scales;
}

double OrthogonalityError(const std::vector<float>& rotation, int64_t n) {
  if (rotation.empty()) return 0.0;
  const Tensor r = MatrixTensor(rotation, n, n).to(at::kDouble);
  return (r.t().matmul(r) - at::eye(n, at::kDouble)).abs().max().item<double>();
}

}  // namespace pith::quant
