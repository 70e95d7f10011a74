#include "quant/local_optimizer.h"

#include <torch/csrc/autograd/custom_function.h>  // first: clang does not parse types.h without it
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/blas.h"
#include "train/optimizer.h"

namespace pith::quant {

namespace {

at::Tensor View(const WeightMatrix& matrix, at::IntArrayRef shape) {
  // The tensor does not outlive the matrix and is never written to.
  return at::from_blob(const_cast<float*>(matrix.values.data()), shape, at::kFloat);
}

at::Tensor Trained(at::Tensor start) { return start.contiguous().requires_grad_(true); }

std::span<float> Span(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

std::vector<float> Copy(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

class Problem {
 public:
  Problem(const ModelConfig& config, const LayerWeights& weights, const LocalOptions& options)
      : config_(config), p_(options.p), d_(config.head_dim), group_(config.heads / config.kv_heads) {
    const int64_t kv = config.kv_heads, half = d_ / 2;
    if (options.keys && !config.qk_norm) {
      angle_ = Trained(at::zeros({kv, half}));
      log_scale_ = Trained(at::zeros({kv, half}));
      q_ = View(weights.q, {kv, group_, 2, half, config.hidden});
      k_ = View(weights.k, {kv, 1, 2, half, config.hidden});
    }
    if (options.values) {
      value_ = Trained(at::eye(d_).expand({kv, d_, d_}));
      v_ = View(weights.v, {kv, d_, config.hidden});
      // [kv head, query head of the group and output, input]
      o_ = View(weights.o, {config.hidden, kv, group_, d_}).permute({1, 2, 0, 3}).reshape({kv, -1, d_}).contiguous();
    }
    if (options.up) {
      log_up_ = Trained(at::zeros({config.intermediate}));
      // The norms are functions of u and of the moments of rows and columns.
      up_moments_ = View(weights.up, {config.intermediate, config.hidden}).abs().pow(p_).mean(1);
      down_moments_ = View(weights.down, {config.hidden, config.intermediate}).abs().pow(p_).mean(0);
    }
  }

  std::vector<train::Parameter> Parameters() {
    std::vector<train::Parameter> parameters;
    for (at::Tensor* tensor : {&angle_, &log_scale_, &value_, &log_up_}) {
      if (!tensor->defined()) continue;
      tensor->mutable_grad() = at::zeros_like(*tensor);
      parameters.push_back({"transform", tensor->sizes().vec(), Span(*tensor), Span(tensor->grad()), false});
    }
    return parameters;
  }

  at::Tensor Loss() const {
    at::Tensor loss = at::zeros({});
    if (angle_.defined()) {
      const at::Tensor scale = log_scale_.exp();
      loss = loss + Norm(Turn(k_, scale)) + Norm(Turn(q_, scale.reciprocal()));
    }
    if (value_.defined()) {
      const at::Tensor inverse = at::linalg_inv(value_);
      loss = loss + Norm(value_.transpose(1, 2).matmul(v_)) + Norm(o_.matmul(inverse.transpose(1, 2)));
    }
    if (log_up_.defined()) {
      const at::Tensor power = (log_up_ * p_).exp();
      loss = loss + (power * up_moments_).mean().pow(1.0 / p_) + (down_moments_ / power).mean().pow(1.0 / p_);
    }
    return loss;
  }

  LayerTransforms Get() const {
    LayerTransforms transforms;
    if (angle_.defined()) {
      transforms.key_angle = Copy(angle_);
      transforms.key_scale = Copy(log_scale_.detach().exp());
    }
    if (value_.defined()) transforms.value = Copy(value_);
    if (log_up_.defined()) transforms.up = Copy(log_up_.detach().exp());
    return transforms;
  }

 private:
  at::Tensor Norm(const at::Tensor& weights) const {
    const at::Tensor power = p_ == 4.0 ? weights.square().square() : weights.abs().pow(p_);
    return power.mean().pow(1.0 / p_);
  }

  // Pairs of w[kv, heads, 2, half, hidden] by the angles and scales of their kv head.
  at::Tensor Turn(const at::Tensor& w, const at::Tensor& scale) const {
    const std::vector<int64_t> shape = {config_.kv_heads, 1, d_ / 2, 1};
    const at::Tensor c = (angle_.cos() * scale).view(shape), s = (angle_.sin() * scale).view(shape);
    const at::Tensor a = w.select(2, 0), b = w.select(2, 1);
    return at::stack({a * c - b * s, b * c + a * s});
  }

  const ModelConfig& config_;
  double p_;
  int64_t d_, group_;
  at::Tensor angle_, log_scale_, value_, log_up_;
  at::Tensor q_, k_, v_, o_, up_moments_, down_moments_;
};

}  // namespace

Result<LocalResult> OptimizeLayer(const ModelConfig& config, const LayerWeights& weights, const LocalOptions& options) {
  const train::SerialBlas serial;
  Problem problem(config, weights, options);
  std::vector<train::Parameter> parameters = problem.Parameters();
  LocalResult result;
  if (parameters.empty()) return result;
  train::AdamW optimizer(parameters, {});
  for (int64_t step = 0; step <= options.iterations; ++step) {
    for (const train::Parameter& parameter : parameters) {
      std::fill(parameter.gradient.begin(), parameter.gradient.end(), 0.0f);
    }
    const at::Tensor loss = problem.Loss();
    result.loss_after = loss.item<double>();
    if (!std::isfinite(result.loss_after)) {
      return Error{ErrorCode::kNumeric, "local optimization: the loss is not finite at step " + std::to_string(step)};
    }
    if (step == 0) result.loss_before = result.loss_after;
    if (step == options.iterations) break;
    loss.backward();
    optimizer.Step(options.learning_rate);
  }
  result.transforms = problem.Get();
  return result;
}

}  // namespace pith::quant
