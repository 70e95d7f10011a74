#include "heads/head_net.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace pith::heads {

double Sigmoid(double x) {
  if (x >= 0) return 1.0 / (1.0 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1.0 + e);
}

double BinaryCrossEntropy(double logit, bool label) {
  const double z = label ? -logit : logit;
  return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
}

HeadNet::HeadNet(int64_t inputs, int64_t inner, uint64_t seed) : inputs_(inputs), inner_(inner) {
  struct Shape {
    const char* name;
    std::vector<int64_t> shape;
    int64_t fan_in;
    bool matrix;
  };
  const std::vector<Shape> shapes =
      inner == 0 ? std::vector<Shape>{{"weight", {1, inputs}, inputs, true}, {"bias", {1}, inputs, false}}
                 : std::vector<Shape>{{"fc1.weight", {inner, inputs}, inputs, true},
                                      {"fc1.bias", {inner}, inputs, false},
                                      {"fc2.weight", {1, inner}, inner, true},
                                      {"fc2.bias", {1}, inner, false}};
  const auto elements = [](const Shape& shape) {
    size_t count = 1;
    for (const int64_t n : shape.shape) count *= static_cast<size_t>(n);
    return count;
  };
  size_t total = 0;
  for (const Shape& shape : shapes) total += elements(shape);
  values_.resize(total);
  gradients_.assign(total, 0.0F);
  size_t at = 0;
  for (size_t p = 0; p < shapes.size(); ++p) {
    const size_t count = elements(shapes[p]);
    const double bound = 1.0 / std::sqrt(static_cast<double>(shapes[p].fan_in));
    for (size_t i = 0; i < count; ++i) {
      values_[at + i] = static_cast<float>(bound * (2 * RandomUniform(seed, p, i) - 1));
    }
    parameters_.push_back({shapes[p].name, shapes[p].shape, std::span(values_).subspan(at, count),
                           std::span(gradients_).subspan(at, count), shapes[p].matrix});
    at += count;
  }
}

double HeadNet::Forward(std::span<const float> x, std::span<const float> keep, std::vector<double>* hidden) const {
  const auto inputs = static_cast<size_t>(inputs_);
  const auto dot = [&](const float* w) {
    double sum = 0;
    for (size_t i = 0; i < inputs; ++i) sum += static_cast<double>(w[i]) * static_cast<double>(x[i]);
    return sum;
  };
  const auto value = [&](size_t p, size_t i) { return static_cast<double>(parameters_[p].value[i]); };
  if (inner_ == 0) return dot(values_.data()) + value(1, 0);
  double logit = value(3, 0);
  for (size_t j = 0; j < static_cast<size_t>(inner_); ++j) {
    double h = std::max(0.0, dot(values_.data() + j * inputs) + value(1, j));
    if (!keep.empty()) h *= static_cast<double>(keep[j]);
    logit += h * value(2, j);
    if (hidden != nullptr) (*hidden)[j] = h;
  }
  return logit;
}

double HeadNet::Logit(std::span<const float> x) const { return Forward(x, {}, nullptr); }

double HeadNet::Accumulate(std::span<const float> x, bool label, double weight, std::span<const float> keep) {
  const auto inputs = static_cast<size_t>(inputs_);
  hidden_.resize(static_cast<size_t>(inner_));
  const double logit = Forward(x, keep, &hidden_);
  const double slope = weight * (Sigmoid(logit) - (label ? 1.0 : 0.0));  // d loss / d logit
  const auto add = [](float& to, double what) { to += static_cast<float>(what); };
  const auto add_row = [&](float* to, double factor) {
    for (size_t i = 0; i < inputs; ++i) add(to[i], factor * static_cast<double>(x[i]));
  };
  if (inner_ == 0) {
    add_row(gradients_.data(), slope);
    add(parameters_[1].gradient[0], slope);
  } else {
    for (size_t j = 0; j < hidden_.size(); ++j) {
      add(parameters_[2].gradient[j], slope * hidden_[j]);
      // What ReLU or dropout has zeroed passes nothing on.
      if (hidden_[j] == 0) continue;
      const double factor = keep.empty() ? 1.0 : static_cast<double>(keep[j]);
      const double inner_slope = slope * static_cast<double>(parameters_[2].value[j]) * factor;
      add_row(gradients_.data() + j * inputs, inner_slope);
      add(parameters_[1].gradient[j], inner_slope);
    }
    add(parameters_[3].gradient[0], slope);
  }
  return weight * BinaryCrossEntropy(logit, label);
}

void HeadNet::ZeroGradients() { std::fill(gradients_.begin(), gradients_.end(), 0.0F); }

}  // namespace pith::heads
