#include "quant/student.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "deploy/matrix_reader.h"
#include "model/hf_names.h"
#include "model/safetensors.h"
#include "quant/stored_scale.h"

namespace pith::quant {

namespace {

constexpr int64_t kRowsPerTask = 64;
constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23, see model/quantize.cc
constexpr float kInside = 0.49F;       // how far a latent value may lie from its integer at the start

template <class Body>
void ForRows(ThreadPool& pool, int64_t rows, const Body& body) {
  pool.Run((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    for (int64_t r = task * kRowsPerTask; r < std::min(rows, (task + 1) * kRowsPerTask); ++r) body(r);
  });
}

train::Parameter ParameterOf(const std::string& name, std::vector<float>* value, std::vector<float>* gradient) {
  return {name, {static_cast<int64_t>(value->size())}, *value, *gradient, false};
}

}  // namespace

Result<std::map<std::string, QuantizedMatrix>> ReadQuantizedMatrices(const Checkpoint& packed) {
  std::map<std::string, QuantizedMatrix> matrices;
  for (const ModelModule& module : ModulesOf(packed.config())) {
    if (module.kind != ModuleKind::kLinear) continue;
    QuantizedMatrix matrix;
    matrix.rows = module.shape[0];
    matrix.cols = module.shape[1];
    PITH_ASSIGN(const MatrixReader reader, MatrixReader::Open(packed, module.name, matrix.rows, matrix.cols));
    if (!reader.format()) continue;  // floats are not quantized
    matrix.format = *reader.format();
    if (matrix.format.zero != ZeroForm::kSymmetric) {
      return Error{ErrorCode::kUnsupported,
                   "'" + module.name + "' has zero points or minimums; end-to-end training is for symmetric formats"};
    }
    const int64_t groups = matrix.groups();
    matrix.codes.resize(static_cast<size_t>(matrix.rows * matrix.cols));
    matrix.scales.resize(static_cast<size_t>(matrix.rows * groups));
    CodeRow row;
    for (int64_t r = 0; r < matrix.rows; ++r) {
      reader.ReadCodes(r, &row);
      std::copy(row.codes.begin(), row.codes.end(), matrix.codes.begin() + r * matrix.cols);
      std::copy(row.scales.begin(), row.scales.end(), matrix.scales.begin() + r * groups);
    }
    matrices.emplace(module.name, std::move(matrix));
  }
  return matrices;
}

Result<std::unique_ptr<IntegerStudent>> IntegerStudent::Make(const Checkpoint& packed, train::TrainModel& model,
                                                             const IntegerTrainables& trainables,
                                                             const std::string& latents) {
  auto student = std::make_unique<IntegerStudent>();
  student->trainables_ = trainables;
  std::map<std::string, train::Parameter*> weights;
  for (train::Parameter& parameter : model.parameters()) weights[parameter.name] = &parameter;
  std::shared_ptr<const SafetensorsFile> latent_file;
  if (trainables.integers && !latents.empty()) {
    PITH_ASSIGN(latent_file, SafetensorsFile::Open(latents));
  }
  PITH_ASSIGN(auto matrices, ReadQuantizedMatrices(packed));
  for (auto& [name, quantized] : matrices) {
    auto matrix = std::make_unique<Matrix>();
    matrix->module = name;
    matrix->quantized = std::move(quantized);
    matrix->weight = weights[name + ".weight"];
    if (matrix->weight == nullptr) return Error{ErrorCode::kInternal, "'" + name + "' is not trained"};
    matrix->scale.assign(matrix->quantized.scales.size(), 0.0F);
    matrix->scale_gradient = matrix->scale;
    if (trainables.scales) {
      student->parameters_.push_back(ParameterOf(name + ".scale", &matrix->scale, &matrix->scale_gradient));
    }
    if (trainables.integers) {
      const std::vector<uint8_t>& codes = matrix->quantized.codes;
      matrix->latent.assign(codes.begin(), codes.end());
      if (const Tensor* tensor = latent_file == nullptr ? nullptr : latent_file->Find(name); tensor != nullptr) {
        PITH_ASSIGN(const std::vector<float> values, ToFloats(*tensor));
        if (values.size() != codes.size()) {
          return Error{ErrorCode::kMismatch, "'" + latents + "': '" + name + "' has another size"};
        }
        for (size_t i = 0; i < codes.size(); ++i) {
          const auto code = static_cast<float>(codes[i]);
          matrix->latent[i] = std::clamp(values[i], code - kInside, code + kInside);
        }
      }
      matrix->latent_gradient.assign(codes.size(), 0.0F);
      student->parameters_.push_back(ParameterOf(name + ".latent", &matrix->latent, &matrix->latent_gradient));
    }
    student->matrices_.push_back(std::move(matrix));
  }
  for (const ModelModule& module : ModulesOf(packed.config())) {
    if (!trainables.norms) break;
    for (const char* part : {".weight", ".bias"}) {
      const bool bias = part[1] == 'b';
      if (bias ? !module.bias : module.kind != ModuleKind::kNorm) continue;
      auto vector = std::make_unique<Vector>();
      vector->name = module.name + part;
      vector->additive = bias;
      vector->target = weights[vector->name];
      if (vector->target == nullptr) return Error{ErrorCode::kInternal, "'" + vector->name + "' is not trained"};
      vector->start.assign(vector->target->value.begin(), vector->target->value.end());
      vector->value.assign(vector->start.size(), 0.0F);
      vector->gradient = vector->value;
      student->parameters_.push_back(ParameterOf(vector->name, &vector->value, &vector->gradient));
      student->vectors_.push_back(std::move(vector));
    }
  }
  return student;
}

float IntegerStudent::ScaleOf(const Matrix& matrix, int64_t tile) const {
  const auto at = static_cast<size_t>(tile);
  const float start = matrix.quantized.scales[at];
  return trainables_.scales ? StoredScale(start * std::exp(matrix.scale[at]), matrix.quantized.format.scale_type)
                            : start;
}

namespace {

// The integer (as a float, unsigned) of a latent value.
struct Rounded {
  float code;
  bool inside;
};
Rounded RoundLatent(float latent, float levels) {
  const float integer = (latent + kMagic) - kMagic;
  const float code = std::min(std::max(integer, 0.0F), levels);
  return {code, code == integer};
}

}  // namespace

void IntegerStudent::WriteMatrix(Matrix* matrix, ThreadPool& pool) const {
  const QuantizedMatrix& quantized = matrix->quantized;
  const int64_t groups = quantized.groups(), cols = quantized.cols, size = cols / groups;
  const auto half = static_cast<float>(1 << (quantized.format.bits - 1));
  const auto levels = static_cast<float>((1 << quantized.format.bits) - 1);
  float* weights = matrix->weight->value.data();
  ForRows(pool, quantized.rows, [&](int64_t r) {
    for (int64_t g = 0; g < groups; ++g) {
      const float scale = ScaleOf(*matrix, r * groups + g);
      const int64_t begin = r * cols + g * size;
      for (int64_t i = begin; i < begin + size; ++i) {
        const auto at = static_cast<size_t>(i);
        const float code = trainables_.integers ? RoundLatent(matrix->latent[at], levels).code
                                                : static_cast<float>(quantized.codes[at]);
        weights[i] = scale * (code - half);
      }
    }
  });
}

void IntegerStudent::CollectMatrix(Matrix* matrix, ThreadPool& pool) const {
  const QuantizedMatrix& quantized = matrix->quantized;
  const int64_t groups = quantized.groups(), cols = quantized.cols, size = cols / groups;
  const auto half = static_cast<float>(1 << (quantized.format.bits - 1));
  const auto levels = static_cast<float>((1 << quantized.format.bits) - 1);
  const float* gradients = matrix->weight->gradient.data();
  ForRows(pool, quantized.rows, [&](int64_t r) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t tile = r * groups + g;
      const float scale = ScaleOf(*matrix, tile);
      const int64_t begin = r * cols + g * size;
      double sum = 0;
      for (int64_t i = begin; i < begin + size; ++i) {
        const auto at = static_cast<size_t>(i);
        auto code = static_cast<float>(quantized.codes[at]);
        if (trainables_.integers) {
          const Rounded rounded = RoundLatent(matrix->latent[at], levels);
          code = rounded.code;
          if (rounded.inside) matrix->latent_gradient[at] += gradients[i] * scale;
        }
        sum += static_cast<double>(gradients[i] * (code - half));
      }
      matrix->scale_gradient[static_cast<size_t>(tile)] += static_cast<float>(sum * static_cast<double>(scale));
    }
  });
}

Status IntegerStudent::Write(ThreadPool& pool) {
  for (const auto& matrix : matrices_) WriteMatrix(matrix.get(), pool);
  for (const auto& vector : vectors_) {
    for (size_t i = 0; i < vector->start.size(); ++i) {
      vector->target->value[i] =
          vector->additive ? vector->start[i] + vector->value[i] : vector->start[i] * std::exp(vector->value[i]);
    }
  }
  return {};
}

Status IntegerStudent::Collect(ThreadPool& pool) {
  for (const auto& matrix : matrices_) CollectMatrix(matrix.get(), pool);
  for (const auto& vector : vectors_) {
    for (size_t i = 0; i < vector->start.size(); ++i) {
      const float slope = vector->additive ? 1.0F : vector->target->value[i];
      vector->gradient[i] += vector->target->gradient[i] * slope;
    }
  }
  return {};
}

TrainedWeights IntegerStudent::Trained() const {
  TrainedWeights trained;
  for (const auto& matrix : matrices_) {
    QuantizedMatrix result = matrix->quantized;
    const auto levels = static_cast<float>((1 << result.format.bits) - 1);
    for (size_t i = 0; i < result.scales.size(); ++i) result.scales[i] = ScaleOf(*matrix, static_cast<int64_t>(i));
    for (size_t i = 0; i < matrix->latent.size(); ++i) {
      result.codes[i] = static_cast<uint8_t>(RoundLatent(matrix->latent[i], levels).code);
    }
    trained.matrices.emplace(matrix->module, std::move(result));
  }
  for (const auto& vector : vectors_) {
    trained.vectors.emplace(vector->name,
                            std::vector<float>(vector->target->value.begin(), vector->target->value.end()));
  }
  return trained;
}

}  // namespace pith::quant
