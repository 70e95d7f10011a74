// End-to-end training: the loss against torch, gradients of students against finite differences, transforms that stay
// what they are, resume bit for bit, and the engine's perplexity of the result against the one that was trained.
#include "quant/end_to_end.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/random.h"
#include "engine/engine.h"
#include "engine/perplexity.h"
#include "model/pack.h"
#include "model/safetensors.h"
#include "quant/distill_loss.h"
#include "quant/hadamard.h"
#include "quant/merged_model.h"
#include "quant/quantize_model.h"
#include "quant/transform_student.h"
#include "support/data.h"

namespace pith::quant {
namespace {

namespace fs = std::filesystem;
using testing::GoldenPath;

std::vector<float> Floats(const SafetensorsFile& file, const std::string& name) {
  const Tensor* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  auto values = ToFloats(*tensor);
  EXPECT_TRUE(values.ok());
  return *values;
}

TEST(DistillLoss, DivergenceAndGradientOfTorch) {
  const auto file = SafetensorsFile::Open(GoldenPath("quant/distill.safetensors"));
  ASSERT_TRUE(file.ok());
  std::vector<float> teacher = Floats(**file, "teacher"), student = Floats(**file, "student");
  const std::vector<float> divergence = Floats(**file, "divergence"), gradient = Floats(**file, "gradient");
  constexpr int64_t kVocab = 37;
  for (size_t r = 0; r < divergence.size(); ++r) {
    const double got = JensenShannon(teacher.data() + r * kVocab, student.data() + r * kVocab, kVocab, 2.0F);
    EXPECT_NEAR(got, divergence[r], 1e-6) << r;
    for (size_t i = r * kVocab; i < (r + 1) * kVocab; ++i) EXPECT_NEAR(student[i], 2.0F * gradient[i], 2e-6) << i;
  }
  EXPECT_GT(divergence[2], 0.6F);  // near ln 2
  std::vector<float> bad = {0.0F, NAN};
  EXPECT_TRUE(std::isnan(JensenShannon(bad.data(), bad.data(), 2, 1.0F)));
}

std::string ModelDir(const std::string& name) { return GoldenPath("models/" + name); }

// A model with gains folded, and it packed.
struct Pair {
  std::shared_ptr<const Checkpoint> merged, packed;
};

Pair MergedAndPacked(const std::string& model, const std::string& recipe_text, const std::string& dir) {
  const auto source = Checkpoint::Open(ModelDir(model));
  EXPECT_TRUE(source.ok()) << source.error().message;
  ThreadPool pool(1);
  EXPECT_TRUE(
      WriteMergedModel(**source, MakeRotation((*source)->config().hidden, 1).matrix, pool, dir + "/merged", {}).ok());
  const auto merged = Checkpoint::Open(dir + "/merged");
  EXPECT_TRUE(merged.ok());
  const auto recipe = ParseRecipe(recipe_text);
  EXPECT_TRUE(recipe.ok()) << recipe.error().message;
  const auto report = PackCheckpoint(**merged, *recipe, dir + "/packed", {});
  EXPECT_TRUE(report.ok()) << report.error().message;
  const auto packed = Checkpoint::Open(dir + "/packed");
  EXPECT_TRUE(packed.ok()) << packed.error().message;
  return {*merged, *packed};
}

std::unique_ptr<train::TrainModel> StudentModel(const std::shared_ptr<const Checkpoint>& checkpoint) {
  train::TrainModelOptions options;
  options.threads = 1;
  auto model = train::TrainModel::Load(checkpoint, options);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(*model);
}

double Random(uint64_t stream, uint64_t i) { return 2.0 * RandomUniform(17, stream, i) - 1.0; }

// Sum of weights times fixed random numbers: a loss whose gradient with respect to the weights is known.
double Projection(train::TrainModel& model, bool set_gradients) {
  double sum = 0;
  uint64_t position = 0;
  for (train::Parameter& parameter : model.parameters()) {
    for (size_t i = 0; i < parameter.value.size(); ++i) {
      const auto factor = static_cast<float>(Random(3, position++));
      sum += static_cast<double>(parameter.value[i]) * static_cast<double>(factor);
      if (set_gradients) parameter.gradient[i] = factor;
    }
  }
  return sum;
}

// Directional derivatives of every parameter of the student against central differences.
void ExpectGradients(Student& student, train::TrainModel& model, double step, double tolerance) {
  ThreadPool pool(2);
  uint64_t position = 0;
  for (train::Parameter& parameter : student.parameters()) {
    for (float& value : parameter.value) value += static_cast<float>(0.05 * Random(4, position++));
  }
  ASSERT_TRUE(student.Write(pool).ok());
  Projection(model, true);
  for (const train::Parameter& parameter : student.parameters()) {
    std::fill(parameter.gradient.begin(), parameter.gradient.end(), 0.0F);
  }
  const Status collected = student.Collect(pool);
  ASSERT_TRUE(collected.ok()) << collected.error().message;
  for (train::Parameter& parameter : student.parameters()) {
    const std::vector<float> before(parameter.value.begin(), parameter.value.end());
    double predicted = 0;
    std::vector<float> direction(before.size());
    for (size_t i = 0; i < before.size(); ++i) {
      // Along the gradient, so that it is not lost in rounding.
      direction[i] = parameter.gradient[i] * static_cast<float>(1.0 + 0.5 * Random(5, i));
    }
    double length = 0;
    for (const float d : direction) length += static_cast<double>(d) * static_cast<double>(d);
    length = std::sqrt(length);
    ASSERT_GT(length, 0.0) << parameter.name;
    double sums[2];
    for (const int side : {0, 1}) {
      for (size_t i = 0; i < before.size(); ++i) {
        const double move = (side == 0 ? -step : step) * static_cast<double>(direction[i]) / length;
        parameter.value[i] = static_cast<float>(static_cast<double>(before[i]) + move);
      }
      ASSERT_TRUE(student.Write(pool).ok());
      sums[side] = Projection(model, false);
    }
    for (size_t i = 0; i < before.size(); ++i) {
      predicted += static_cast<double>(parameter.gradient[i]) * static_cast<double>(direction[i]) / length;
      parameter.value[i] = before[i];
    }
    const double measured = (sums[1] - sums[0]) / (2.0 * step);
    EXPECT_NEAR(measured / predicted, 1.0, tolerance) << parameter.name << " " << predicted;
  }
}

// Without rounding the weights are smooth functions of the transforms.
TEST(TransformStudentTest, GradientsAreThoseOfTheMerge) {
  for (const std::string model_name : {"qwen2_untied", "llama_rope_linear", "qwen3"}) {
    const std::string dir = testing::TempDir();
    const Pair pair = MergedAndPacked(model_name, "f32,head=f32,embed=f32", dir);
    const auto model = StudentModel(pair.packed);
    const auto student = TransformStudent::Make(*pair.merged, *pair.packed, *model, {});
    ASSERT_TRUE(student.ok()) << student.error().message;
    EXPECT_EQ((*student)->TrainedScales().size(), 0U);
    ExpectGradients(**student, *model, 0.02, 0.02);
  }
}

// At the beginning the student is the packed model; with transforms that are far from the identity the merged float
// model still computes the same, R is orthogonal and T_v has an inverse.
TEST(TransformStudentTest, BeginsAsThePackedModelAndKeepsTheFunction) {
  const std::string dir = testing::TempDir();
  const Pair pair = MergedAndPacked("qwen2_untied", "w4,head=w4,embed=w8,method=minmax", dir);
  const auto model = StudentModel(pair.packed);
  std::vector<std::vector<float>> before;
  for (const auto& parameter : model->parameters()) before.emplace_back(parameter.value.begin(), parameter.value.end());
  const auto made = TransformStudent::Make(*pair.merged, *pair.packed, *model, {});
  ASSERT_TRUE(made.ok()) << made.error().message;
  TransformStudent& student = **made;
  ThreadPool pool(1);
  ASSERT_TRUE(student.Write(pool).ok());
  for (size_t p = 0; p < before.size(); ++p) {
    const train::Parameter& parameter = model->parameters()[p];
    for (size_t i = 0; i < before[p].size(); ++i) ASSERT_EQ(parameter.value[i], before[p][i]) << parameter.name;
  }
  uint64_t position = 0;
  for (train::Parameter& parameter : student.parameters()) {
    if (parameter.name.ends_with(".scale")) continue;
    for (float& value : parameter.value) value += static_cast<float>(0.1 * Random(6, position++));
  }
  const ModelConfig& config = pair.merged->config();
  const Transforms transforms = student.TrainedTransforms();
  EXPECT_LT(OrthogonalityError(transforms.rotation, config.hidden), 1e-5);
  double farthest = 0;
  for (int64_t i = 0; i < config.hidden; ++i) {
    farthest = std::max(farthest,
                        1.0 - static_cast<double>(transforms.rotation[static_cast<size_t>(i * (config.hidden + 1))]));
  }
  EXPECT_GT(farthest, 0.005);  // not the identity
  MergeOptions merge;
  merge.layer_transforms = [&](int64_t layer, const LayerWeights&) -> Result<LayerTransforms> {
    EXPECT_GT(ValueCondition(config, transforms.layers[static_cast<size_t>(layer)]), 1.05);
    return transforms.layers[static_cast<size_t>(layer)];
  };
  ASSERT_TRUE(WriteMergedModel(*pair.merged, transforms.rotation, pool, dir + "/moved", merge).ok());
  const auto moved = Checkpoint::Open(dir + "/moved");
  ASSERT_TRUE(moved.ok());
  train::TrainBatch batch;
  train::Segment segment;
  for (int32_t i = 0; i < 30; ++i) segment.tokens.push_back(i * 7 % static_cast<int32_t>(config.vocab));
  segment.labels.assign(segment.tokens.size(), train::kNoLabel);
  batch.segments.push_back(segment);
  const auto a = StudentModel(pair.merged)->Run(batch), b = StudentModel(*moved)->Run(batch);
  ASSERT_TRUE(a.ok() && b.ok());
  double change = 0, largest = 0;
  for (size_t i = 0; i < a->logits.size(); ++i) {
    change = std::max(change, std::fabs(static_cast<double>(a->logits[i] - b->logits[i])));
    largest = std::max(largest, std::fabs(static_cast<double>(a->logits[i])));
  }
  EXPECT_LT(change, 1e-4 * largest);
}

TEST(TransformStudentTest, WhatDoesNotFitIsRefused) {
  const std::string dir = testing::TempDir();
  const Pair pair = MergedAndPacked("llama", "w4g32m,head=w4g32m,weigh=none", dir);
  const auto model = StudentModel(pair.packed);
  const auto minimums = TransformStudent::Make(*pair.merged, *pair.packed, *model, {});
  ASSERT_FALSE(minimums.ok());
  EXPECT_EQ(minimums.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(minimums.error().message.find("proj"), std::string::npos);
  EXPECT_EQ(IntegerStudent::Make(*pair.packed, *model, {}, "").error().code, ErrorCode::kUnsupported);
  const auto gains = Checkpoint::Open(ModelDir("llama"));
  ASSERT_TRUE(gains.ok());
  const Pair symmetric = MergedAndPacked("llama", "w4g32,head=w4,weigh=none", testing::TempDir());
  EXPECT_EQ(TransformStudent::Make(**gains, *symmetric.packed, *StudentModel(symmetric.packed), {}).error().code,
            ErrorCode::kInvalidArgument);
}

// Scales, norms and biases; the integers stay, so that the weights are smooth.
TEST(IntegerStudentTest, GradientsOfScalesAndNorms) {
  const Pair pair = MergedAndPacked("llama_rope_linear", "w4g32,head=w4,scales=f32,weigh=none", testing::TempDir());
  const auto model = StudentModel(pair.packed);
  const auto student = IntegerStudent::Make(*pair.packed, *model, {true, true, false}, "");
  ASSERT_TRUE(student.ok()) << student.error().message;
  ExpectGradients(**student, *model, 0.02, 0.01);
  const TrainedWeights trained = (*student)->Trained();
  EXPECT_EQ(trained.matrices.count("lm_head"), 1U);
  EXPECT_EQ(trained.vectors.count("model.norm.weight"), 1U);
  EXPECT_EQ(trained.vectors.count("model.layers.0.mlp.down_proj.bias"), 1U);
}

// A value that leaves the place of its integer takes the next one; nothing leaves the range.
TEST(IntegerStudentTest, IntegersFollowTheirValues) {
  const Pair pair = MergedAndPacked("llama", "w4,head=w4,weigh=none", testing::TempDir());
  const auto model = StudentModel(pair.packed);
  const auto student = IntegerStudent::Make(*pair.packed, *model, {false, false, true}, "");
  ASSERT_TRUE(student.ok()) << student.error().message;
  const TrainedWeights before = (*student)->Trained();
  ThreadPool pool(1);
  ASSERT_TRUE((*student)->Write(pool).ok());
  Projection(*model, true);
  ASSERT_TRUE((*student)->Collect(pool).ok());
  for (train::Parameter& parameter : (*student)->parameters()) {
    ASSERT_TRUE(parameter.name.ends_with(".latent"));
    EXPECT_NE(parameter.gradient[0], 0.0F);
    for (float& value : parameter.value) value += 1.2F;
  }
  const TrainedWeights after = (*student)->Trained();
  for (const auto& [name, matrix] : before.matrices) {
    const QuantizedMatrix& moved = after.matrices.at(name);
    EXPECT_EQ(moved.scales, matrix.scales);
    for (size_t i = 0; i < matrix.codes.size(); ++i) {
      ASSERT_EQ(moved.codes[i], std::min<int>(matrix.codes[i] + 1, 15)) << name;
    }
  }
}

// --- the whole way ---

std::vector<int32_t> Text(int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(RandomBits(23, 1, static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

QuantizeOptions Options(const std::string& method, int64_t steps, int64_t tune_steps, int64_t vocab) {
  QuantizeOptions options;
  options.method = *ParseMethod(method);
  options.recipe = *ParseRecipe("w4,head=w4,weigh=none");
  options.local.iterations = 5;
  options.threads = 2;
  options.tokens = Text(600, vocab);
  options.training.steps = steps;
  options.training.tune_steps = tune_steps;
  options.training.tokens = Text(32 * 24, vocab);
  options.training.window = 32;
  options.training.windows_per_step = 4;
  options.training.held_out = 4;
  options.training.save_steps = 3;
  options.training.learning_rate = 1e-3;
  options.training.tune_learning_rate = 2e-3;
  return options;
}

double EnginePerplexity(const std::string& dir, std::span<const int32_t> tokens, int64_t window) {
  auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EngineOptions options;
  options.threads = 1;
  auto engine = Engine::Load(*checkpoint, options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  PerplexityOptions perplexity;
  perplexity.window = window;
  const auto result = Perplexity(**engine, tokens, perplexity);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result->perplexity;
}

// The model `name`, function unchanged, with weights that low bits suit badly: channels of very different sizes.
void WriteUnbalanced(const std::string& name, const std::string& dir) {
  const auto source = Checkpoint::Open(ModelDir(name));
  ASSERT_TRUE(source.ok()) << source.error().message;
  const ModelConfig& config = (*source)->config();
  MergeOptions merge;
  merge.layer_transforms = [&](int64_t layer, const LayerWeights&) -> Result<LayerTransforms> {
    LayerTransforms transforms;
    const auto stream = static_cast<uint64_t>(100 + layer);
    const auto pairs = static_cast<uint64_t>(config.kv_heads * config.head_dim / 2);
    for (uint64_t i = 0; i < pairs && !config.qk_norm; ++i) {
      transforms.key_angle.push_back(static_cast<float>(Random(stream, i)));
      transforms.key_scale.push_back(static_cast<float>(std::exp(1.5 * Random(stream, 1000 + i))));
    }
    for (uint64_t i = 0; i < static_cast<uint64_t>(config.intermediate); ++i) {
      transforms.up.push_back(static_cast<float>(std::exp(2.0 * Random(stream, 2000 + i))));
    }
    const int64_t d = config.head_dim;
    for (int64_t i = 0; i < config.kv_heads * d * d; ++i) {
      const bool diagonal = i % (d * d) / d == i % d;
      const auto at = static_cast<uint64_t>(3000 + i);
      transforms.value.push_back(static_cast<float>(diagonal ? std::exp(1.5 * Random(stream, at)) : 0.0));
    }
    return transforms;
  };
  ThreadPool pool(1);
  ASSERT_TRUE(WriteMergedModel(**source, {}, pool, dir, merge).ok());
}

class EndToEnd : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(EndToEnd, TrainsAndTheEngineAgrees) {
  const auto& [model, method] = GetParam();
  const std::string dir = testing::TempDir();
  WriteUnbalanced(model, dir + "/source");
  const auto source = Checkpoint::Open(dir + "/source");
  ASSERT_TRUE(source.ok());
  QuantizeOptions options = Options(method, 30, 12, (*source)->config().vocab);
  options.training.learning_rate = 2e-2;
  options.training.transforms = {method != "best", true, true, true, true};
  const auto report = QuantizeModel(dir + "/source", dir + "/out", options);
  ASSERT_TRUE(report.ok()) << report.error().message;
  ASSERT_TRUE(report->training && report->tuning);
  EXPECT_LT(report->training->after.divergence, 0.9 * report->training->before.divergence);
  EXPECT_LT(report->tuning->after.divergence, report->tuning->before.divergence);
  EXPECT_LT(report->trained.orthogonality_error, 1e-5);
  EXPECT_GE(report->trained.value_condition, 1.0);
  EXPECT_LT(report->trained.value_condition, 20.0);
  EXPECT_GT(report->trained.up_spread, 1.5);
  const auto& tokens = options.training.tokens;
  const double engine = EnginePerplexity(dir + "/out", std::span(tokens).last(4 * 32), 32);
  EXPECT_NEAR(engine / report->tuning->after.perplexity, 1.0, 0.002);
  EXPECT_FALSE(fs::exists(dir + "/out.work"));
}

INSTANTIATE_TEST_SUITE_P(Cases, EndToEnd,
                         ::testing::Values(std::tuple("qwen2_tied", "best"), std::tuple("llama", "hadamard+gptq"),
                                           std::tuple("qwen3", "hadamard"), std::tuple("qwen2_untied", "fptquant")));

std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(EndToEndResume, InterruptedRunsGiveTheSameBits) {
  const std::string dir = testing::TempDir();
  const std::string model = ModelDir("qwen2_tied");
  const auto source = Checkpoint::Open(model);
  ASSERT_TRUE(source.ok());
  QuantizeOptions options = Options("fptquant+gptq", 8, 8, (*source)->config().vocab);
  ASSERT_TRUE(QuantizeModel(model, dir + "/whole", options).ok());
  // Stopped in the middle of each training, between two checkpoints that are due.
  std::atomic<bool> cancel{false};
  options.cancel = &cancel;
  int stops = 0;
  for (int call = 0; call < 10; ++call) {
    cancel = false;
    options.on_progress = [&](const std::string& stage, uint64_t done, uint64_t) {
      if ((stage == "training" && done == 5) || (stage == "tuning" && done == 2)) cancel = true;
    };
    const auto report = QuantizeModel(model, dir + "/cut", options);
    if (report.ok()) {
      EXPECT_TRUE(report->resumed);
      break;
    }
    ASSERT_EQ(report.error().code, ErrorCode::kCancelled) << report.error().message;
    ++stops;
    // Other options do not go on with it.
    QuantizeOptions other = options;
    other.training.tune_learning_rate = 1e-2;
    EXPECT_EQ(QuantizeModel(model, dir + "/cut", other).error().code, ErrorCode::kMismatch);
  }
  EXPECT_EQ(stops, 2);
  EXPECT_EQ(FileText(dir + "/cut/model.safetensors"), FileText(dir + "/whole/model.safetensors"));
  EXPECT_GT(FileText(dir + "/whole/model.safetensors").size(), 1000U);
}

// With torch's operators, which do not round activations, the same training to a few parts in a hundred.
TEST(EndToEndDevice, TorchAgrees) {
  const std::string dir = testing::TempDir();
  const auto source = Checkpoint::Open(ModelDir("llama"));
  ASSERT_TRUE(source.ok());
  QuantizeOptions options = Options("hadamard+gptq", 0, 12, (*source)->config().vocab);
  const auto own = QuantizeModel(ModelDir("llama"), dir + "/own", options);
  ASSERT_TRUE(own.ok()) << own.error().message;
  options.training.device = "torch";
  const auto torch = QuantizeModel(ModelDir("llama"), dir + "/torch", options);
  ASSERT_TRUE(torch.ok()) << torch.error().message;
  const double before = own->tuning->before.divergence - torch->tuning->before.divergence;
  EXPECT_LT(std::fabs(before), 0.05 * own->tuning->before.divergence);
  EXPECT_LT(torch->tuning->after.divergence, torch->tuning->before.divergence);
  EXPECT_NEAR(torch->tuning->after.divergence / own->tuning->after.divergence, 1.0, 0.1);
  options.training.device = "abacus";
  EXPECT_EQ(QuantizeModel(ModelDir("llama"), dir + "/none", options).error().code, ErrorCode::kInvalidArgument);
}

TEST(EndToEndErrors, SayWhatIsMissing) {
  const std::string dir = testing::TempDir();
  QuantizeOptions options = Options("fptquant", 2, 0, 64);
  options.training.tokens.resize(20);
  const auto tiny = QuantizeModel(ModelDir("llama"), dir + "/a", options);
  ASSERT_FALSE(tiny.ok());
  EXPECT_EQ(tiny.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(tiny.error().message.find("32 tokens"), std::string::npos) << tiny.error().message;
  options.training.tokens = Text(32 * 4, 64);
  const auto all_held_out = QuantizeModel(ModelDir("llama"), dir + "/b", options);
  ASSERT_FALSE(all_held_out.ok());
  EXPECT_EQ(all_held_out.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace pith::quant
