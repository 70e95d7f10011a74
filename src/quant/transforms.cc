#include "quant/transforms.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "deploy/matrix_reader.h"
#include "train/blas.h"

namespace pith::quant {

namespace {

using Square = std::vector<double>;  // [n, n]

// Gauss-Jordan with partial pivoting; false for a matrix that is singular to working precision.
bool Invert(const float* matrix, int64_t n, Square* inverse) {
  const auto size = static_cast<size_t>(n);
  Square work(matrix, matrix + size * size);
  inverse->assign(size * size, 0.0);
  double largest = 0.0;
  for (const double value : work) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < size; ++i) (*inverse)[i * size + i] = 1.0;
  for (size_t c = 0; c < size; ++c) {
    size_t pivot = c;
    for (size_t r = c + 1; r < size; ++r) {
      if (std::fabs(work[r * size + c]) > std::fabs(work[pivot * size + c])) pivot = r;
    }
    if (!(std::fabs(work[pivot * size + c]) > 1e-7 * largest)) return false;
    for (size_t k = 0; k < size && pivot != c; ++k) {
      std::swap(work[pivot * size + k], work[c * size + k]);
      std::swap((*inverse)[pivot * size + k], (*inverse)[c * size + k]);
    }
    const double scale = 1.0 / work[c * size + c];
    for (size_t k = 0; k < size; ++k) {
      work[c * size + k] *= scale;
      (*inverse)[c * size + k] *= scale;
    }
    for (size_t r = 0; r < size; ++r) {
      const double factor = work[r * size + c];
      if (r == c || factor == 0.0) continue;
      for (size_t k = 0; k < size; ++k) {
        work[r * size + k] -= factor * work[c * size + k];
        (*inverse)[r * size + k] -= factor * (*inverse)[c * size + k];
      }
    }
  }
  return true;
}

// Pairs (j, j + d/2) of `heads` heads of rows, and of the bias, turned by the angle of their group and scaled.
void RotatePairs(const ModelConfig& config, const LayerTransforms& transforms, int64_t heads, bool inverse_scale,
                 WeightMatrix* matrix) {
  const int64_t half = config.head_dim / 2;
  const int64_t group = heads / config.kv_heads;
  const auto turn = [&](float* values, int64_t width, int64_t head) {
    for (int64_t j = 0; j < half; ++j) {
      const auto at = static_cast<size_t>(head / group * half + j);
      const double angle = transforms.key_angle.empty() ? 0.0 : static_cast<double>(transforms.key_angle[at]);
      double scale = transforms.key_scale.empty() ? 1.0 : static_cast<double>(transforms.key_scale[at]);
      if (inverse_scale) scale = 1.0 / scale;
      const double c = std::cos(angle) * scale, s = std::sin(angle) * scale;
      float* a = values + (head * config.head_dim + j) * width;
      float* b = a + half * width;
      for (int64_t i = 0; i < width; ++i) {
        const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
        a[i] = static_cast<float>(x * c - y * s);
        b[i] = static_cast<float>(y * c + x * s);
      }
    }
  };
  for (int64_t head = 0; head < heads; ++head) {
    turn(matrix->values.data(), matrix->cols, head);
    if (!matrix->bias.empty()) turn(matrix->bias.data(), 1, head);
  }
}

// Rows of each head, M^T W, and the bias.
void TransformValueRows(const ModelConfig& config, const std::vector<float>& value, WeightMatrix* v) {
  const int64_t d = config.head_dim;
  std::vector<double> column(static_cast<size_t>(d));
  const auto transform = [&](float* values, int64_t width, const float* m) {
    for (int64_t c = 0; c < width; ++c) {
      std::fill(column.begin(), column.end(), 0.0);
      for (int64_t i = 0; i < d; ++i) {
        const auto x = static_cast<double>(values[i * width + c]);
        for (int64_t j = 0; j < d; ++j) column[static_cast<size_t>(j)] += static_cast<double>(m[i * d + j]) * x;
      }
      for (int64_t j = 0; j < d; ++j) values[j * width + c] = static_cast<float>(column[static_cast<size_t>(j)]);
    }
  };
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    const float* m = value.data() + head * d * d;
    transform(v->values.data() + head * d * v->cols, v->cols, m);
    if (!v->bias.empty()) transform(v->bias.data() + head * d, 1, m);
  }
}

// Column blocks of o, one per query head, times the transpose of M^-1.
Status TransformOutputColumns(const ModelConfig& config, const std::vector<float>& value, WeightMatrix* o) {
  const int64_t d = config.head_dim;
  const int64_t group = config.heads / config.kv_heads;
  Square inverse;
  std::vector<double> out(static_cast<size_t>(d));
  for (int64_t head = 0; head < config.heads; ++head) {
    if (head % group == 0 && !Invert(value.data() + head / group * d * d, d, &inverse)) {
      return Error{ErrorCode::kNumeric,
                   "the value transform of head " + std::to_string(head / group) + " has no inverse"};
    }
    for (int64_t row = 0; row < o->rows; ++row) {
      float* block = o->values.data() + row * o->cols + head * d;
      for (int64_t j = 0; j < d; ++j) {
        double sum = 0.0;
        for (int64_t i = 0; i < d; ++i) {
          sum += static_cast<double>(block[i]) * inverse[static_cast<size_t>(j * d + i)];
        }
        out[static_cast<size_t>(j)] = sum;
      }
      for (int64_t j = 0; j < d; ++j) block[j] = static_cast<float>(out[static_cast<size_t>(j)]);
    }
  }
  return {};
}

// R^T W, and b R: rotates what a linear adds to the residual stream.
void RotateOutputs(const std::vector<float>& rotation, ThreadPool& pool, WeightMatrix* matrix) {
  const int64_t n = matrix->rows;
  std::vector<float> result(matrix->values.size());
  train::Gemm(pool, n, matrix->cols, n, 1.0f, {rotation.data(), n, train::Op::kTransposed},
              {matrix->values.data(), matrix->cols}, 0.0f, result.data(), matrix->cols);
  matrix->values = std::move(result);
  if (matrix->bias.empty()) return;
  std::vector<float> bias(matrix->bias.size());
  train::Gemm(1, n, n, 1.0f, {matrix->bias.data(), n}, {rotation.data(), n}, 0.0f, bias.data(), n);
  matrix->bias = std::move(bias);
}

bool SizeIs(const std::vector<float>& values, int64_t size) {
  return values.empty() || static_cast<int64_t>(values.size()) == size;
}

}  // namespace

Result<LayerWeights> ReadLayer(const Checkpoint& checkpoint, int64_t index) {
  const ModelConfig& config = checkpoint.config();
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const int64_t query = config.heads * config.head_dim;
  const int64_t kv = config.kv_heads * config.head_dim;
  PITH_ASSIGN(const std::vector<float> attention_gain,
              ReadVector(checkpoint, prefix + "input_layernorm", "weight", config.hidden));
  PITH_ASSIGN(const std::vector<float> mlp_gain,
              ReadVector(checkpoint, prefix + "post_attention_layernorm", "weight", config.hidden));
  const auto read = [&](const std::string& name, int64_t rows, int64_t cols, bool bias, std::span<const float> gain,
                        WeightMatrix* out) -> Status {
    PITH_ASSIGN(const MatrixReader reader, MatrixReader::Open(checkpoint, prefix + name, rows, cols));
    out->rows = rows;
    out->cols = cols;
    out->values.resize(static_cast<size_t>(rows * cols));
    for (int64_t row = 0; row < rows; ++row) {
      float* values = out->values.data() + row * cols;
      reader.ReadRow(row, values);
      for (size_t i = 0; i < gain.size(); ++i) values[i] *= gain[i];
    }
    if (bias) {
      PITH_ASSIGN(out->bias, ReadVector(checkpoint, prefix + name, "bias", rows));
    }
    return {};
  };
  LayerWeights layer;
  const std::span<const float> none;
  PITH_RETURN_IF_ERROR(read("self_attn.q_proj", query, config.hidden, config.attention_bias, attention_gain, &layer.q));
  PITH_RETURN_IF_ERROR(read("self_attn.k_proj", kv, config.hidden, config.attention_bias, attention_gain, &layer.k));
  PITH_RETURN_IF_ERROR(read("self_attn.v_proj", kv, config.hidden, config.attention_bias, attention_gain, &layer.v));
  PITH_RETURN_IF_ERROR(read("self_attn.o_proj", config.hidden, query, config.attention_out_bias, none, &layer.o));
  PITH_RETURN_IF_ERROR(
      read("mlp.gate_proj", config.intermediate, config.hidden, config.mlp_bias, mlp_gain, &layer.gate));
  PITH_RETURN_IF_ERROR(read("mlp.up_proj", config.intermediate, config.hidden, config.mlp_bias, mlp_gain, &layer.up));
  PITH_RETURN_IF_ERROR(read("mlp.down_proj", config.hidden, config.intermediate, config.mlp_bias, none, &layer.down));
  return layer;
}

Status CheckTransforms(const ModelConfig& config, const LayerTransforms& transforms) {
  const int64_t d = config.head_dim;
  const int64_t pairs = config.kv_heads * d / 2;
  if (config.qk_norm && !(transforms.key_angle.empty() && transforms.key_scale.empty())) {
    return Error{ErrorCode::kInvalidArgument,
                 "keys cannot be transformed in a model that normalizes queries and keys after the projection"};
  }
  if (!SizeIs(transforms.key_angle, pairs) || !SizeIs(transforms.key_scale, pairs) ||
      !SizeIs(transforms.value, config.kv_heads * d * d) || !SizeIs(transforms.up, config.intermediate)) {
    return Error{ErrorCode::kInvalidArgument, "transforms of another size than the model's"};
  }
  for (const auto* values : {&transforms.key_angle, &transforms.key_scale, &transforms.value, &transforms.up}) {
    for (const float value : *values) {
      if (!std::isfinite(value)) return Error{ErrorCode::kNumeric, "a transform holds a value that is not finite"};
    }
  }
  for (const float scale : transforms.key_scale) {
    if (!(scale > 0.0f)) return Error{ErrorCode::kNumeric, "a key scale is not positive"};
  }
  for (const float u : transforms.up) {
    if (u == 0.0f) return Error{ErrorCode::kNumeric, "an up scale is zero"};
  }
  return {};
}

Status MergeLayer(const ModelConfig& config, const LayerTransforms& transforms, LayerWeights* weights) {
  PITH_RETURN_IF_ERROR(CheckTransforms(config, transforms));
  if (!transforms.key_angle.empty() || !transforms.key_scale.empty()) {
    RotatePairs(config, transforms, config.kv_heads, false, &weights->k);
    RotatePairs(config, transforms, config.heads, true, &weights->q);
  }
  if (!transforms.value.empty()) {
    PITH_RETURN_IF_ERROR(TransformOutputColumns(config, transforms.value, &weights->o));
    TransformValueRows(config, transforms.value, &weights->v);
  }
  if (!transforms.up.empty()) {
    const auto size = static_cast<size_t>(config.intermediate);
    for (size_t i = 0; i < size; ++i) {
      float* row = weights->up.values.data() + i * static_cast<size_t>(weights->up.cols);
      for (int64_t c = 0; c < weights->up.cols; ++c) row[c] *= transforms.up[i];
      if (!weights->up.bias.empty()) weights->up.bias[i] *= transforms.up[i];
    }
    for (int64_t row = 0; row < weights->down.rows; ++row) {
      float* values = weights->down.values.data() + row * weights->down.cols;
      for (size_t i = 0; i < size; ++i) values[i] /= transforms.up[i];
    }
  }
  return {};
}

void RotateInputs(const std::vector<float>& rotation, ThreadPool& pool, WeightMatrix* matrix) {
  const int64_t n = matrix->cols;
  std::vector<float> result(matrix->values.size());
  train::Gemm(pool, matrix->rows, n, n, 1.0f, {matrix->values.data(), n}, {rotation.data(), n}, 0.0f, result.data(), n);
  matrix->values = std::move(result);
}

void RotateLayer(const std::vector<float>& rotation, ThreadPool& pool, LayerWeights* weights) {
  for (WeightMatrix* matrix : {&weights->q, &weights->k, &weights->v, &weights->gate, &weights->up}) {
    RotateInputs(rotation, pool, matrix);
  }
  RotateOutputs(rotation, pool, &weights->o);
  RotateOutputs(rotation, pool, &weights->down);
}

Result<LayerTransforms> Inverse(const ModelConfig& config, const LayerTransforms& transforms) {
  PITH_RETURN_IF_ERROR(CheckTransforms(config, transforms));
  LayerTransforms inverse = transforms;
  for (float& angle : inverse.key_angle) angle = -angle;
  for (float& scale : inverse.key_scale) scale = 1.0f / scale;
  for (float& u : inverse.up) u = 1.0f / u;
  const int64_t d = config.head_dim;
  Square matrix;
  for (int64_t head = 0; head < config.kv_heads && !transforms.value.empty(); ++head) {
    if (!Invert(transforms.value.data() + head * d * d, d, &matrix)) {
      return Error{ErrorCode::kNumeric, "the value transform of head " + std::to_string(head) + " has no inverse"};
    }
    std::transform(matrix.begin(), matrix.end(), inverse.value.begin() + head * d * d,
                   [](double value) { return static_cast<float>(value); });
  }
  return inverse;
}

LayerTransforms Compose(const ModelConfig& config, const LayerTransforms& first, const LayerTransforms& second) {
  const auto combine = [](const std::vector<float>& a, const std::vector<float>& b, auto operation) {
    if (a.empty()) return b;
    std::vector<float> result = a;
    for (size_t i = 0; i < b.size(); ++i) result[i] = operation(a[i], b[i]);
    return result;
  };
  const auto product = [](float a, float b) { return a * b; };
  LayerTransforms both;
  both.key_angle = combine(first.key_angle, second.key_angle, [](float a, float b) { return a + b; });
  both.key_scale = combine(first.key_scale, second.key_scale, product);
  both.up = combine(first.up, second.up, product);
  if (first.value.empty() || second.value.empty()) {
    both.value = first.value.empty() ? second.value : first.value;
    return both;
  }
  const int64_t d = config.head_dim;
  both.value.resize(first.value.size());
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    const auto at = static_cast<size_t>(head * d * d);
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = 0; j < d; ++j) {
        double sum = 0.0;
        for (int64_t k = 0; k < d; ++k) {
          sum += static_cast<double>(first.value[at + static_cast<size_t>(i * d + k)]) *
                 static_cast<double>(second.value[at + static_cast<size_t>(k * d + j)]);
        }
        both.value[at + static_cast<size_t>(i * d + j)] = static_cast<float>(sum);
      }
    }
  }
  return both;
}

std::vector<float> Transposed(const std::vector<float>& matrix, int64_t n) {
  std::vector<float> result(matrix.size());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) result[static_cast<size_t>(j * n + i)] = matrix[static_cast<size_t>(i * n + j)];
  }
  return result;
}

double ValueCondition(const ModelConfig& config, const LayerTransforms& transforms) {
  if (transforms.value.empty()) return 1.0;
  const auto d = static_cast<size_t>(config.head_dim);
  double worst = 1.0;
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    // One-sided Jacobi: rotates pairs of rows until all are orthogonal; their lengths are the singular values.
    const float* begin = transforms.value.data() + static_cast<size_t>(head) * d * d;
    Square rows(begin, begin + d * d);
    for (int sweep = 0; sweep < 30; ++sweep) {
      double off = 0.0;
      for (size_t p = 0; p + 1 < d; ++p) {
        for (size_t q = p + 1; q < d; ++q) {
          double a = 0.0, b = 0.0, g = 0.0;
          for (size_t k = 0; k < d; ++k) {
            const double x = rows[p * d + k], y = rows[q * d + k];
            a += x * x;
            b += y * y;
            g += x * y;
          }
          if (std::fabs(g) <= 1e-12 * std::sqrt(a * b)) continue;
          off = std::max(off, std::fabs(g) / std::sqrt(a * b));
          const double zeta = (b - a) / (2.0 * g);
          const double t = (zeta >= 0.0 ? 1.0 : -1.0) / (std::fabs(zeta) + std::sqrt(1.0 + zeta * zeta));
          const double c = 1.0 / std::sqrt(1.0 + t * t), s = c * t;
          for (size_t k = 0; k < d; ++k) {
            const double x = rows[p * d + k], y = rows[q * d + k];
            rows[p * d + k] = c * x - s * y;
            rows[q * d + k] = s * x + c * y;
          }
        }
      }
      if (off < 1e-10) break;
    }
    double least = INFINITY, greatest = 0.0;
    for (size_t p = 0; p < d; ++p) {
      double square = 0.0;
      for (size_t k = 0; k < d; ++k) square += rows[p * d + k] * rows[p * d + k];
      least = std::min(least, std::sqrt(square));
      greatest = std::max(greatest, std::sqrt(square));
    }
    worst = std::max(worst, greatest / least);
  }
  return worst;
}

}  // namespace pith::quant
