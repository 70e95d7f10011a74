// The decoder in torch's operators, run on the CPU ("torch"): against transformers, PEFT and torch by the same golden
// vectors as the own functions, and against those for everything that the vectors do not have.
#include <cmath>

#include "train/optimizer.h"
#include "train/train_model.h"
#include "train_test.h"

namespace pith::train {
namespace {

using testing::GoldenPath;

TrainBatch BatchOf(const Sample& sample, bool masked) {
  TrainBatch batch;
  AddSample(sample, masked, &batch);
  return batch;
}

TrainModelOptions OnTorch(TrainModelOptions options) {
  options.device = "torch";
  return options;
}

void ExpectGradients(TrainModel& model, const SafetensorsFile& golden, const std::string& prefix) {
  for (const Parameter& p : model.parameters()) {
    EXPECT_LT(RelativeError(p.gradient, Floats(golden, prefix + p.name)), 2e-5) << p.name;
  }
}

class DeviceGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(DeviceGolden, LogitsAndStatesEqualTransformers) {
  const auto golden = Golden("models/" + GetParam() + "/golden.safetensors");
  for (const bool whole : {false, true}) {
    TrainModelOptions options = OnTorch(WithLora());
    if (whole) options.lora.reset();
    const auto outputs = LoadModel(GetParam(), options)->Run(BatchOf(GoldenSample(GetParam()), false));
    ASSERT_TRUE(outputs.ok()) << outputs.error().message;
    EXPECT_LT(RelativeError(outputs->logits, Floats(*golden, "logits")), 1e-5);
    EXPECT_LT(RelativeError(outputs->states, Floats(*golden, "final_hidden")), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceGolden,
                         ::testing::Values("qwen2_tied", "qwen2_untied", "qwen2_yarn", "llama", "llama_rope_llama3",
                                           "llama_rope_linear", "qwen3"));

class DeviceAdapter : public ::testing::TestWithParam<std::string> {};

TEST_P(DeviceAdapter, MaskedLogitsAndGradientsEqualPeft) {
  const auto golden = Golden("train/lora_" + GetParam() + ".safetensors");
  const Sample sample = GoldenSample(GetParam());
  TrainBatch by_rows = BatchOf(sample, false);
  by_rows.segments[0].adapter_from = sample.response;
  by_rows.segments[0].labels[static_cast<size_t>(sample.response) - 1] = kNoLabel;
  for (const TrainBatch& batch : {BatchOf(sample, true), by_rows}) {
    for (const bool checkpointing : {false, true}) {
      TrainModelOptions options = OnTorch(WithLora());
      options.gradient_checkpointing = checkpointing;
      const auto model = LoadAdapted(GetParam(), options);
      EXPECT_NEAR(MeanLoss(*model, batch), static_cast<double>(Floats(*golden, "masked.loss")[0]), 1e-5);
      ExpectGradients(*model, *golden, "masked.grad.");
      // Gradients add up, as those of the own functions do.
      (void)MeanLoss(*model, batch);
      for (const Parameter& p : model->parameters()) {
        auto twice = Floats(*golden, "masked.grad." + p.name);
        for (float& value : twice) value *= 2;
        EXPECT_LT(RelativeError(p.gradient, twice), 2e-5) << p.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Adapters, DeviceAdapter, ::testing::Values("qwen2_untied", "llama", "qwen3"));

class DeviceWhole : public ::testing::TestWithParam<std::string> {};

TEST_P(DeviceWhole, GradientsOfAllParametersEqualTorch) {
  const auto golden = Golden("train/full_" + GetParam() + ".safetensors");
  const auto model = LoadModel(GetParam(), OnTorch({}));
  const TrainBatch batch = BatchOf(GoldenSample(GetParam(), 0), false);
  EXPECT_NEAR(MeanLoss(*model, batch), static_cast<double>(Floats(*golden, "loss")[0]), 1e-5);
  ExpectGradients(*model, *golden, "grad.");
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceWhole, ::testing::Values("qwen2_tied", "llama_rope_linear", "qwen3"));

// Three responses, two on one prompt, one with the adapter off at first.
TrainBatch SeveralSegments() {
  const Sample sample = GoldenSample("qwen2_untied");
  TrainBatch batch = BatchOf(sample, true);
  Segment second = batch.segments[0];
  second.tokens.resize(20);
  second.labels.resize(20);
  batch.segments.push_back(second);
  Segment third = BatchOf(sample, false).segments[0];
  third.adapter_from = 9;
  batch.segments.push_back(third);
  batch.temperature = 0.7F;
  return batch;
}

struct Results {
  TokenScores scores, base, by_score;
  std::vector<float> gradients, score_gradients, logits;
};

Results AllOf(const std::string& device, bool head, bool rounded = false) {
  TrainModelOptions options = WithLora(0.3);
  options.round_activations = options.round_cache = rounded;
  options.base = BaseFormat::kF32;
  options.device = device;
  options.seed = 3;
  if (head) options.lora->targets.push_back(LinearKind::kLmHead);
  const auto model = LoadModel("qwen2_untied", options);
  // B is zero in a fresh adapter: let it act.
  float value = 0;
  for (const Parameter& p : model->parameters()) {
    if (p.name.find("lora_B") == std::string::npos) continue;
    for (float& element : p.value) element = 0.05F * std::sin(value += 1.0F);
  }
  const TrainBatch batch = SeveralSegments();
  Results results;
  std::vector<float> weights;
  for (int64_t i = 0; i < batch.Labels(); ++i) weights.push_back(0.1F * static_cast<float>(i % 5) - 0.1F);
  results.scores = *model->Accumulate(batch, weights, 11);
  results.gradients = Gradients(*model);
  model->ZeroGradients();
  results.by_score = *model->AccumulateScores(
      batch,
      [](const TokenScores& scores) -> Result<std::vector<float>> {
        std::vector<float> gradient;
        for (const float log_prob : scores.log_probs) gradient.push_back(std::exp(log_prob));
        return gradient;
      },
      12);
  results.score_gradients = Gradients(*model);
  results.base = *model->Score(batch, false);
  results.logits = model->Run(batch)->logits;
  return results;
}

TEST(DeviceDecoder, EqualsTheOwnFunctions) {
  for (const bool head : {false, true}) {
    const Results own = AllOf("cpu", head);
    const Results torch = AllOf("torch", head);
    EXPECT_LT(RelativeError(torch.scores.log_probs, own.scores.log_probs), 1e-5);
    EXPECT_LT(RelativeError(torch.scores.entropies, own.scores.entropies), 1e-5);
    EXPECT_LT(RelativeError(torch.gradients, own.gradients), 2e-5);
    EXPECT_LT(RelativeError(torch.by_score.log_probs, own.by_score.log_probs), 1e-5);
    EXPECT_LT(RelativeError(torch.score_gradients, own.score_gradients), 2e-5);
    EXPECT_LT(RelativeError(torch.base.log_probs, own.base.log_probs), 1e-5);
    EXPECT_LT(RelativeError(torch.logits, own.logits), 1e-5);
    // Another dropout, other gradients: the comparison above is not of nothing.
    EXPECT_GT(RelativeError(own.gradients, own.score_gradients), 0.1);
  }
}

// A sum in another order may fall on the other side of a rounding: such a value is off by one step of 1/127 of the
// largest of its vector. Few are.
TEST(DeviceDecoder, RoundsAsTheOwnFunctions) {
  const Results own = AllOf("cpu", false, true);
  const Results torch = AllOf("torch", false, true);
  const Results floats = AllOf("cpu", false, false);
  const auto expect_close = [](const std::vector<float>& got, const std::vector<float>& want,
                               const std::vector<float>& unrounded) {
    EXPECT_LT(10 * RelativeError(got, want), RelativeError(unrounded, want));
  };
  expect_close(torch.scores.log_probs, own.scores.log_probs, floats.scores.log_probs);
  expect_close(torch.by_score.log_probs, own.by_score.log_probs, floats.by_score.log_probs);
  expect_close(torch.base.log_probs, own.base.log_probs, floats.base.log_probs);
  expect_close(torch.gradients, own.gradients, floats.gradients);
  expect_close(torch.score_gradients, own.score_gradients, floats.score_gradients);
  expect_close(torch.logits, own.logits, floats.logits);
}

TEST(DeviceDecoder, LossesOfLogitsEqualTheOwnFunctions) {
  double losses[2];
  std::vector<float> gradients[2];
  for (const std::string device : {"cpu", "torch"}) {
    TrainModelOptions options;
    options.device = device;
    const auto model = LoadModel("qwen2_tied", options);
    const int64_t vocab = model->config().vocab;
    const auto loss = model->AccumulateLogits(
        BatchOf(GoldenSample("qwen2_tied", 0), false), [vocab](int64_t first, int64_t count, float* logits) {
          double sum = 0;
          for (int64_t i = 0; i < count * vocab; ++i) {
            const double weight = std::cos(static_cast<double>(first * vocab + i));
            sum += weight * static_cast<double>(logits[i]);
            logits[i] = static_cast<float>(weight);
          }
          return sum;
        });
    ASSERT_TRUE(loss.ok()) << loss.error().message;
    losses[device == "torch" ? 1 : 0] = *loss;
    gradients[device == "torch" ? 1 : 0] = Gradients(*model);
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-4 * std::abs(losses[0]) + 1e-3);
  EXPECT_LT(RelativeError(gradients[1], gradients[0]), 2e-5);
}

TEST(DeviceDecoder, WhatCannotBeIsRefused) {
  const auto checkpoint = Checkpoint::Open(GoldenPath("models/qwen2_tied"));
  const auto code_of = [&](const TrainModelOptions& options) {
    const auto model = TrainModel::Load(*checkpoint, options);
    return model.ok() ? ErrorCode::kInternal : model.error().code;
  };
  for (const char* name : {"gpu", "", "cuda:", "cuda:x", "cuda:1234", "CPU"}) {
    TrainModelOptions options = WithLora();
    options.device = name;
    EXPECT_EQ(code_of(options), ErrorCode::kInvalidArgument) << name;
  }
  TrainModelOptions packed = OnTorch(WithLora());
  packed.base = BaseFormat::kPacked;
  EXPECT_EQ(code_of(packed), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace pith::train
