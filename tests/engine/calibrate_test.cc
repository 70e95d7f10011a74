#include "engine/calibrate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "model/hf_names.h"
#include "model/pack.h"
#include "support/data.h"

namespace pith {
namespace {

std::unique_ptr<Engine> LoadGolden(const std::string& name, std::shared_ptr<const Checkpoint>* checkpoint) {
  auto opened = Checkpoint::Open(testing::GoldenPath("models/" + name));
  EXPECT_TRUE(opened.ok());
  *checkpoint = *opened;
  EngineOptions options;
  options.weights = WeightFormat::kF32;
  options.kv = KvType::kF32;
  options.threads = 2;
  auto engine = Engine::Load(*checkpoint, options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return std::move(*engine);
}

std::vector<int32_t> Tokens(int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 3);
  return tokens;
}

// The input of q, k, v, gate and up is a normed row times the norm's weights, so the moments divided by the squares of
// those weights add up to the width.
TEST(Calibrate, MomentsOfNormedInputsAddUpToTheWidth) {
  for (const char* name : {"qwen2_untied", "llama", "qwen3"}) {
    std::shared_ptr<const Checkpoint> checkpoint;
    const auto engine = LoadGolden(name, &checkpoint);
    const auto moments = MeasureInputMoments(*engine, Tokens(50));
    ASSERT_TRUE(moments.ok()) << moments.error().message;
    for (const ModelModule& module : ModulesOf(checkpoint->config())) {
      if (module.kind != ModuleKind::kLinear) continue;
      ASSERT_EQ(moments->count(module.name), 1u) << module.name;
      ASSERT_EQ(static_cast<int64_t>(moments->at(module.name).size()), module.shape[1]) << module.name;
    }
    const std::pair<const char*, const char*> pairs[] = {
        {"model.layers.0.self_attn.q_proj", "model.layers.0.input_layernorm.weight"},
        {"model.layers.1.self_attn.v_proj", "model.layers.1.input_layernorm.weight"},
        {"model.layers.1.mlp.up_proj", "model.layers.1.post_attention_layernorm.weight"},
        {"lm_head", "model.norm.weight"},
    };
    for (const auto& [linear, norm] : pairs) {
      const auto weights = ToFloats(*checkpoint->Find(norm));
      ASSERT_TRUE(weights.ok());
      const std::vector<float>& values = moments->at(linear);
      double sum = 0;
      for (size_t i = 0; i < values.size(); ++i) sum += values[i] / ((*weights)[i] * (*weights)[i]);
      EXPECT_NEAR(sum, static_cast<double>(values.size()), 0.01 * static_cast<double>(values.size()))
          << name << " " << linear;
    }
    EXPECT_EQ(moments->at("model.layers.0.mlp.gate_proj"), moments->at("model.layers.0.mlp.up_proj"));
    EXPECT_NE(moments->at("model.layers.0.mlp.gate_proj"), moments->at("model.layers.1.mlp.gate_proj"));
  }
}

// Measuring leaves the engine as it was.
TEST(Calibrate, NothingIsSummedAfterwards) {
  std::shared_ptr<const Checkpoint> checkpoint;
  const auto engine = LoadGolden("llama", &checkpoint);
  const std::vector<int32_t> tokens = Tokens(20);
  const auto before = MeasureInputMoments(*engine, tokens);
  Sequence sequence = engine->NewSequence();
  ASSERT_TRUE(engine->Prefill(sequence, tokens, nullptr, {}).ok());
  const auto after = MeasureInputMoments(*engine, tokens);
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(*before, *after);
}

TEST(Calibrate, AModelWithoutTokenizerIsToldWhatToDo) {
  const auto checkpoint = Checkpoint::Open(testing::GoldenPath("models/llama"));
  ASSERT_TRUE(checkpoint.ok());
  const std::string scratch = testing::TempDir() + "/scratch";
  const auto moments = MeasureMomentsForPacking(**checkpoint, scratch, 1);
  ASSERT_FALSE(moments.ok());
  EXPECT_NE(moments.error().message.find("weigh=none"), std::string::npos) << moments.error().message;
  EXPECT_NE(moments.error().message.find("models/llama/tokenizer.json"), std::string::npos) << moments.error().message;
  EXPECT_FALSE(std::filesystem::exists(scratch));
}

TEST(Calibrate, TextIsUtf8AndLongEnough) {
  EXPECT_GT(CalibrationText().size(), 2000u);
  EXPECT_LT(CalibrationText().size(), 8000u);
}

// On a real model: weighing pays at the measure it reduces, and the scratch folder is gone.
TEST(Calibrate, RealModel) {
  PITH_REQUIRE_MODEL(path, "smollm2-135m");
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok());
  const std::string scratch = testing::TempDir() + "/scratch";
  const auto moments = MeasureMomentsForPacking(**checkpoint, scratch, 0);
  ASSERT_TRUE(moments.ok()) << moments.error().message;
  EXPECT_FALSE(std::filesystem::exists(scratch));
  EXPECT_EQ(moments->size(), 30u * 7u + 1u);
  // Its residual stream has a few channels that are far above the others.
  const std::vector<float>& values = moments->at("model.layers.5.self_attn.q_proj");
  const float mean = std::accumulate(values.begin(), values.end(), 0.0f) / static_cast<float>(values.size());
  EXPECT_GT(*std::max_element(values.begin(), values.end()), 50.0f * mean);
}

}  // namespace
}  // namespace pith
