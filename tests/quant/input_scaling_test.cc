// Scales of inputs: what they are by their definitions, that they leave the function alone and lower the error of
// outputs.
#include "quant/input_scaling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "quant/gptq.h"
#include "quant/merged_model.h"
#include "quant_test.h"
#include "support/data.h"

namespace pith::quant {
namespace {

double Uniform(uint64_t stream, uint64_t i) { return 2.0 * RandomUniform(31, stream, i) - 1.0; }

WeightMatrix RandomMatrix(int64_t rows, int64_t cols, uint64_t stream) {
  WeightMatrix matrix{rows, cols, {}, {}};
  for (int64_t i = 0; i < rows * cols; ++i) {
    matrix.values.push_back(static_cast<float>(Uniform(stream, static_cast<uint64_t>(i))));
  }
  return matrix;
}

// Inputs of which every eighth is twenty times as large.
std::vector<float> GramWithOutliers(int64_t n) {
  std::vector<float> gram(static_cast<size_t>(n * n), 0.0f);
  for (int64_t t = 0; t < 200; ++t) {
    std::vector<double> x;
    for (int64_t j = 0; j < n; ++j) x.push_back(Uniform(7, static_cast<uint64_t>(t * n + j)) * (j % 8 == 0 ? 20 : 1));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        gram[static_cast<size_t>(i * n + j)] +=
            static_cast<float>(x[static_cast<size_t>(i)] * x[static_cast<size_t>(j)]);
      }
    }
  }
  return gram;
}

double ErrorOf(const WeightMatrix& matrix, const std::vector<float>& scales, const Quantizer& quantizer,
               const std::vector<float>& gram) {
  double total = 0;
  std::vector<float> scaled(static_cast<size_t>(matrix.cols)), values(scaled.size()), step(1);
  std::vector<uint8_t> codes(scaled.size());
  for (int64_t r = 0; r < matrix.rows; ++r) {
    const float* row = matrix.values.data() + r * matrix.cols;
    for (size_t j = 0; j < scaled.size(); ++j) scaled[j] = row[j] * scales[j];
    const QuantizedRow out{codes.data(), step.data(), nullptr, nullptr};
    QuantizeRow(quantizer, scaled.data(), matrix.cols, nullptr, out);
    DequantizeRow(quantizer.format, matrix.cols, out, values.data());
    for (size_t j = 0; j < scaled.size(); ++j) values[j] /= scales[j];
    total += QuadraticError(gram, matrix.cols, row, values.data());
  }
  return total;
}

TEST(InputScaling, FollowsTheDefinitionsAndLowersTheError) {
  constexpr int64_t kCols = 64;
  const WeightMatrix a = RandomMatrix(24, kCols, 1), b = RandomMatrix(8, kCols, 2);
  const std::vector<float> gram = GramWithOutliers(kCols);
  Quantizer quantizer;
  quantizer.format = {4, 0, ZeroForm::kSymmetric, DType::kF16};
  ThreadPool pool(2);
  const std::vector<float> smooth = InputScales({&a, &b}, ScalingKind::kSmooth, quantizer, gram, pool);
  const auto raw = [&](size_t j) {
    float most = 0;
    for (const WeightMatrix* m : {&a, &b}) {
      for (int64_t r = 0; r < m->rows; ++r) {
        most = std::max(most, std::fabs(m->values[static_cast<size_t>(r * kCols) + j]));
      }
    }
    return std::sqrt(std::sqrt(gram[j * kCols + j]) / most);
  };
  for (size_t j = 1; j < kCols; ++j) EXPECT_NEAR(smooth[j] / smooth[0], raw(j) / raw(0), 1e-4);
  const std::vector<float> awq = InputScales({&a, &b}, ScalingKind::kAwq, quantizer, gram, pool);
  const std::vector<float> ones(kCols, 1.0f);
  const auto error = [&](const std::vector<float>& s) {
    return ErrorOf(a, s, quantizer, gram) + ErrorOf(b, s, quantizer, gram);
  };
  EXPECT_LT(error(awq), 0.8 * error(ones));
  EXPECT_GT(awq[0], awq[1]);  // large inputs get finer weights
}

TEST(InputScaling, LeavesTheFunctionAlone) {
  for (const std::string name : {"qwen2_tied", "qwen3", "llama_rope_linear"}) {
    const std::string source = testing::GoldenPath("models/" + name), dir = testing::TempDir();
    const auto checkpoint = Checkpoint::Open(source);
    ASSERT_TRUE(checkpoint.ok());
    const ModelConfig& config = (*checkpoint)->config();
    ThreadPool pool(1);
    std::vector<float> gram;
    Quantizer quantizer;
    quantizer.format = {4, 0, ZeroForm::kSymmetric, DType::kF16};
    NormScales norms;
    MergeOptions merge;
    double widest = 1;
    merge.layer_transforms = [&](int64_t, const LayerWeights& weights) -> Result<LayerTransforms> {
      const GramOf of = [&](const std::string& linear) -> Result<const std::vector<float>*> {
        const int64_t n = linear == "self_attn.o_proj" ? weights.o.cols
                          : linear == "mlp.down_proj"  ? config.intermediate
                                                       : config.hidden;
        gram = GramWithOutliers(n);
        return &gram;
      };
      PITH_ASSIGN(LayerScaling scaling, ScaleLayer(config, weights, ScalingKind::kSmooth, quantizer, of, pool));
      for (const float s : scaling.attention) widest = std::max(widest, static_cast<double>(s));
      norms = {scaling.attention, scaling.mlp};
      return scaling.transforms;
    };
    merge.norm_scales = [&](int64_t) { return norms; };
    const Status written = WriteMergedModel(**checkpoint, {}, pool, dir + "/scaled", merge);
    ASSERT_TRUE(written.ok()) << written.error().message;
    EXPECT_GT(widest, 1.5) << name;
    const std::vector<float> before = Logits(source), after = Logits(dir + "/scaled");
    double change = 0, largest = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      change = std::max(change, std::fabs(static_cast<double>(before[i] - after[i])));
      largest = std::max(largest, std::fabs(static_cast<double>(before[i])));
    }
    EXPECT_LT(change, 1e-4 * largest) << name;
  }
}

}  // namespace
}  // namespace pith::quant
