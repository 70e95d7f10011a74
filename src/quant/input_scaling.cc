#include "quant/input_scaling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/blas.h"

namespace pith::quant {

namespace {

constexpr int kStrengths = 20;  // of AWQ's grid

// Divided by the geometric mean of the extremes; what is not a positive number becomes 1.
void Normalize(std::vector<float>* scales) {
  float low = std::numeric_limits<float>::infinity(), high = 0.0f;
  for (float& s : *scales) {
    if (!(s > 1e-4f) || !std::isfinite(s)) s = 1e-4f;
    low = std::min(low, s);
    high = std::max(high, s);
  }
  const float mean = std::sqrt(low * high);
  for (float& s : *scales) s /= mean;
}

// sum over rows of e^T H e, e = Q(w s) / s - w.
double OutputError(const WeightMatrix& matrix, const std::vector<float>& scales, const Quantizer& quantizer,
                   const std::vector<float>& gram, ThreadPool& pool) {
  const int64_t rows = matrix.rows, cols = matrix.cols;
  const int64_t groups = quantizer.format.group == 0 ? 1 : cols / quantizer.format.group;
  std::vector<float> errors(matrix.values.size()), products(matrix.values.size());
  pool.Run(rows, [&](int64_t r, int) {
    const float* row = matrix.values.data() + r * cols;
    std::vector<float> scaled(row, row + cols), values(static_cast<size_t>(cols));
    for (size_t j = 0; j < scaled.size(); ++j) scaled[j] *= scales[j];
    std::vector<uint8_t> codes(static_cast<size_t>(cols)), zeros(static_cast<size_t>(groups));
    std::vector<float> steps(static_cast<size_t>(groups)), minimums(static_cast<size_t>(groups));
    const QuantizedRow out{codes.data(), steps.data(), zeros.data(), minimums.data()};
    QuantizeRow(quantizer, scaled.data(), cols, nullptr, out);
    DequantizeRow(quantizer.format, cols, out, values.data());
    for (int64_t j = 0; j < cols; ++j) {
      const auto at = static_cast<size_t>(j);
      errors[static_cast<size_t>(r * cols + j)] = values[at] / scales[at] - row[j];
    }
  });
  train::Gemm(pool, rows, cols, cols, 1.0f, {errors.data(), cols}, {gram.data(), cols}, 0.0f, products.data(), cols);
  double total = 0;
  for (size_t i = 0; i < errors.size(); ++i) total += static_cast<double>(errors[i]) * static_cast<double>(products[i]);
  return total;
}

}  // namespace

std::vector<float> InputScales(const std::vector<const WeightMatrix*>& matrices, ScalingKind kind,
                               const Quantizer& quantizer, const std::vector<float>& gram, ThreadPool& pool) {
  const int64_t cols = matrices.front()->cols;
  std::vector<float> size(static_cast<size_t>(cols)), scales(size.size(), 1.0f);
  for (int64_t j = 0; j < cols; ++j) {
    size[static_cast<size_t>(j)] = std::sqrt(std::max(gram[static_cast<size_t>(j * cols + j)], 0.0f));
  }
  if (kind == ScalingKind::kSmooth) {
    std::vector<float> largest(size.size(), 0.0f);
    for (const WeightMatrix* matrix : matrices) {
      for (size_t i = 0; i < matrix->values.size(); ++i) {
        float& most = largest[i % static_cast<size_t>(cols)];
        most = std::max(most, std::fabs(matrix->values[i]));
      }
    }
    for (size_t j = 0; j < scales.size(); ++j) scales[j] = std::sqrt(size[j] / std::max(largest[j], 1e-6f));
    Normalize(&scales);
    return scales;
  }
  double least = std::numeric_limits<double>::infinity();
  for (int step = 0; step < kStrengths; ++step) {
    const float strength = static_cast<float>(step) / static_cast<float>(kStrengths);
    std::vector<float> candidate(size.size());
    for (size_t j = 0; j < size.size(); ++j) candidate[j] = std::pow(size[j], strength);
    Normalize(&candidate);
    double error = 0;
    for (const WeightMatrix* matrix : matrices) error += OutputError(*matrix, candidate, quantizer, gram, pool);
    if (error < least) {
      least = error;
      scales = candidate;
    }
  }
  return scales;
}

Result<LayerScaling> ScaleLayer(const ModelConfig& config, const LayerWeights& weights, ScalingKind kind,
                                const Quantizer& quantizer, const GramOf& gram, ThreadPool& pool) {
  LayerScaling scaling;
  const auto scales = [&](const std::string& linear,
                          const std::vector<const WeightMatrix*>& matrices) -> Result<std::vector<float>> {
    PITH_ASSIGN(const std::vector<float>* inputs, gram(linear));
    if (static_cast<int64_t>(inputs->size()) != matrices.front()->cols * matrices.front()->cols) {
      return Error{ErrorCode::kInternal, "a Gram matrix of another size than the inputs of '" + linear + "'"};
    }
    return InputScales(matrices, kind, quantizer, *inputs, pool);
  };
  PITH_ASSIGN(scaling.attention, scales("self_attn.q_proj", {&weights.q, &weights.k, &weights.v}));
  PITH_ASSIGN(const std::vector<float> output, scales("self_attn.o_proj", {&weights.o}));
  PITH_ASSIGN(scaling.mlp, scales("mlp.gate_proj", {&weights.gate, &weights.up}));
  PITH_ASSIGN(const std::vector<float> down, scales("mlp.down_proj", {&weights.down}));
  for (const float s : down) scaling.transforms.up.push_back(1.0f / s);
  // One matrix per value head: its diagonal is 1 / s, the geometric mean over the query heads that read it.
  const int64_t d = config.head_dim, group = config.heads / config.kv_heads;
  scaling.transforms.value.assign(static_cast<size_t>(config.kv_heads * d * d), 0.0f);
  for (int64_t h = 0; h < config.kv_heads; ++h) {
    for (int64_t j = 0; j < d; ++j) {
      double sum = 0;
      for (int64_t q = h * group; q < (h + 1) * group; ++q) {
        sum += std::log(static_cast<double>(output[static_cast<size_t>(q * d + j)]));
      }
      scaling.transforms.value[static_cast<size_t>((h * d + j) * d + j)] =
          static_cast<float>(std::exp(-sum / static_cast<double>(group)));
    }
  }
  return scaling;
}

}  // namespace pith::quant
