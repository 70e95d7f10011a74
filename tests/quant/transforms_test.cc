// Merged transforms leave the function of the tiny golden models as it is, by the engine in float32.
#include "quant/transforms.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "base/random.h"
#include "quant/hadamard.h"
#include "quant/local_optimizer.h"
#include "quant/merged_model.h"
#include "quant/quantize_model.h"
#include "quant_test.h"
#include "support/data.h"

namespace pith::quant {
namespace {

namespace fs = std::filesystem;
using testing::GoldenPath;

std::string ModelDir(const std::string& name) { return GoldenPath("models/" + name); }

class TemporaryDir {
 public:
  TemporaryDir() : path_(fs::temp_directory_path() / ("pith-quant-test-" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~TemporaryDir() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

double RelativeChange(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0, change = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, static_cast<double>(std::fabs(a[i])));
    change = std::max(change, static_cast<double>(std::fabs(a[i] - b[i])));
  }
  return change / largest;
}

LayerTransforms RandomTransforms(const ModelConfig& config, uint64_t seed) {
  LayerTransforms transforms;
  uint64_t position = 0;
  const auto next = [&] { return 2.0 * RandomUniform(seed, 5, position++) - 1.0; };
  const auto pairs = static_cast<size_t>(config.kv_heads * config.head_dim / 2);
  for (size_t i = 0; i < pairs && !config.qk_norm; ++i) {
    transforms.key_angle.push_back(static_cast<float>(3.0 * next()));
    transforms.key_scale.push_back(static_cast<float>(std::exp(next())));
  }
  const int64_t d = config.head_dim;
  for (int64_t i = 0; i < config.kv_heads * d * d; ++i) {
    transforms.value.push_back(static_cast<float>(0.1 * next() + (i % (d * d) / d == i % d ? 1.0 : 0.0)));
  }
  for (int64_t i = 0; i < config.intermediate; ++i) transforms.up.push_back(static_cast<float>(std::exp(next())));
  return transforms;
}

class EveryModel : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryModel, KeepsItsFunction) {
  const TemporaryDir dir;
  const auto checkpoint = Checkpoint::Open(ModelDir(GetParam()));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const ModelConfig& config = (*checkpoint)->config();
  ThreadPool pool(1);
  const Rotation rotation = MakeRotation(config.hidden, 3);
  MergeOptions options;
  options.layer_transforms = [&](int64_t layer, const LayerWeights&) -> Result<LayerTransforms> {
    return RandomTransforms(config, static_cast<uint64_t>(layer));
  };
  const Status written = WriteMergedModel(**checkpoint, rotation.matrix, pool, dir / "all", options);
  ASSERT_TRUE(written.ok()) << written.error().message;
  const std::vector<float> before = Logits(ModelDir(GetParam()));
  EXPECT_LT(RelativeChange(before, Logits(dir / "all")), 1e-4);

  // A matrix that is not orthogonal is seen.
  const auto merged = Checkpoint::Open(dir / "all");
  ASSERT_TRUE(merged.ok());
  MergeOptions wrong;
  wrong.layer_transforms = [&](int64_t, const LayerWeights&) -> Result<LayerTransforms> { return LayerTransforms(); };
  std::vector<float> stretched = rotation.matrix;
  for (float& value : stretched) value *= 1.01f;
  ASSERT_TRUE(WriteMergedModel(**merged, stretched, pool, dir / "wrong", wrong).ok());
  EXPECT_GT(RelativeChange(before, Logits(dir / "wrong")), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Models, EveryModel,
                         ::testing::Values("qwen2_tied", "qwen2_untied", "qwen2_yarn", "llama", "llama_rope_llama3",
                                           "llama_rope_linear", "qwen3"));

double Difference(const WeightMatrix& a, const WeightMatrix& b) {
  double most = RelativeChange(a.values, b.values);
  if (!a.bias.empty()) most = std::max(most, RelativeChange(a.bias, b.bias));
  return most;
}

double Difference(const LayerWeights& a, const LayerWeights& b) {
  return std::max({Difference(a.q, b.q), Difference(a.k, b.k), Difference(a.v, b.v), Difference(a.o, b.o),
                   Difference(a.gate, b.gate), Difference(a.up, b.up), Difference(a.down, b.down)});
}

TEST(Transforms, InverseUndoesAndCompositionIsBothInOrder) {
  const auto checkpoint = Checkpoint::Open(ModelDir("qwen2_untied"));
  ASSERT_TRUE(checkpoint.ok());
  const ModelConfig& config = (*checkpoint)->config();
  const auto weights = ReadLayer(**checkpoint, 0);
  ASSERT_TRUE(weights.ok());
  const LayerTransforms first = RandomTransforms(config, 1), second = RandomTransforms(config, 2);
  LayerWeights steps = *weights;
  ASSERT_TRUE(MergeLayer(config, first, &steps).ok());
  EXPECT_GT(Difference(*weights, steps), 0.1);
  LayerWeights undone = steps;
  const auto inverse = Inverse(config, first);
  ASSERT_TRUE(inverse.ok());
  ASSERT_TRUE(MergeLayer(config, *inverse, &undone).ok());
  EXPECT_LT(Difference(*weights, undone), 1e-5);
  ASSERT_TRUE(MergeLayer(config, second, &steps).ok());
  LayerWeights once = *weights;
  ASSERT_TRUE(MergeLayer(config, Compose(config, first, second), &once).ok());
  EXPECT_LT(Difference(steps, once), 1e-5);
  EXPECT_GT(ValueCondition(config, first), 1.0);
}

TEST(Transforms, WhatDoesNotFitIsRefused) {
  const auto qwen3 = Checkpoint::Open(ModelDir("qwen3"));
  ASSERT_TRUE(qwen3.ok());
  const ModelConfig& config = (*qwen3)->config();
  LayerTransforms keys;
  keys.key_angle.assign(static_cast<size_t>(config.kv_heads * config.head_dim / 2), 0.5f);
  EXPECT_EQ(CheckTransforms(config, keys).error().code, ErrorCode::kInvalidArgument);
  LayerTransforms size;
  size.up = {1.0f};
  EXPECT_EQ(CheckTransforms(config, size).error().code, ErrorCode::kInvalidArgument);
  LayerTransforms singular;
  singular.value.assign(static_cast<size_t>(config.kv_heads * config.head_dim * config.head_dim), 1.0f);
  EXPECT_EQ(Inverse(config, singular).error().code, ErrorCode::kNumeric);
}

TEST(LocalOptimization, LowersTheNormAndKeepsTransformsValid) {
  const auto checkpoint = Checkpoint::Open(ModelDir("llama"));
  ASSERT_TRUE(checkpoint.ok());
  const ModelConfig& config = (*checkpoint)->config();
  auto weights = ReadLayer(**checkpoint, 0);
  ASSERT_TRUE(weights.ok());
  // Outliers: one channel of the MLP and one of the values much larger than the rest.
  for (int64_t i = 0; i < weights->up.cols; ++i) weights->up.values[static_cast<size_t>(i)] *= 30.0f;
  for (int64_t i = 0; i < weights->v.cols; ++i) weights->v.values[static_cast<size_t>(i)] *= 30.0f;
  LocalOptions options;
  options.iterations = 60;
  const auto result = OptimizeLayer(config, *weights, options);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_LT(result->loss_after, 0.95 * result->loss_before);
  EXPECT_TRUE(CheckTransforms(config, result->transforms).ok());
  const auto again = OptimizeLayer(config, *weights, options);
  EXPECT_EQ(again->transforms.value, result->transforms.value);
}

TEST(QuantizeModel, WritesAPackedModelThatRuns) {
  const TemporaryDir dir;
  // Eight bits: what they change in the untransformed model is the measure. A transform that is not undone changes all.
  double rounding = 0;
  for (const std::string name : {"minmax", "hadamard", "fptquant", "fptquant+gptq"}) {
    QuantizeOptions options;
    const auto method = ParseMethod(name);
    ASSERT_TRUE(method.ok());
    options.method = *method;
    const auto recipe = ParseRecipe("w8,head=w8,method=best,weigh=none");
    ASSERT_TRUE(recipe.ok());
    options.recipe = *recipe;
    options.local.iterations = 5;
    options.threads = 1;
    for (int32_t i = 0; i < 200; ++i) options.tokens.push_back(i * 7 % 90);
    const std::string out = dir / name;
    const auto report = QuantizeModel(ModelDir("qwen2_tied"), out, options);
    ASSERT_TRUE(report.ok()) << name << ": " << report.error().message;
    EXPECT_EQ(report->layers.empty(), !method->optimize);
    EXPECT_FALSE(fs::exists(out + ".work"));
    const double change = RelativeChange(Logits(ModelDir("qwen2_tied")), Logits(out));
    if (name == "minmax") rounding = change;
    EXPECT_GT(change, 0.0);
    EXPECT_LE(change, 2 * rounding) << name;
    EXPECT_EQ(QuantizeModel(ModelDir("qwen2_tied"), out, options).error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(ParseMethod("magic").error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace pith::quant
