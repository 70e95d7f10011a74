// Static activation ranges: measuring them, the file beside the weights, and the engine that computes with them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/durable_file.h"
#include "base/json.h"
#include "engine/engine.h"
#include "engine/measure_ranges.h"
#include "model/activation_ranges.h"
#include "support/data.h"

namespace pith {
namespace {

namespace fs = std::filesystem;

std::vector<int32_t> Tokens(int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = 3 + i * 7 % 29;
  return tokens;
}

std::string CopyOf(const std::string& model) {
  const std::string dir = testing::TempDir() + "/" + model;
  fs::create_directories(dir);
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy_file(testing::GoldenPath("models/" + model + "/" + file), dir + "/" + file);
  }
  return dir;
}

std::shared_ptr<const Checkpoint> Open(const std::string& dir) {
  auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  return *checkpoint;
}

ActivationRanges Measure(const std::string& dir, int power = 0, int threads = 2) {
  MeasureRangesOptions options;
  options.power = power;
  options.threads = threads;
  auto ranges = MeasureActivationRanges(Open(dir), Tokens(40), options);
  EXPECT_TRUE(ranges.ok()) << ranges.error().message;
  return *ranges;
}

// A copy of a golden model with its ranges beside it.
std::string Calibrated(const std::string& model) {
  const std::string dir = CopyOf(model);
  EXPECT_TRUE(WriteActivationRanges(Measure(dir), dir).ok());
  return dir;
}

Result<std::unique_ptr<Engine>> Load(const std::string& dir, bool fixed, int threads = 2, KvType kv = KvType::kInt8) {
  EngineOptions options;
  options.weights = fixed ? WeightFormat::kStored : WeightFormat::kF32;
  options.static_activations = fixed;
  options.kv = kv;
  options.threads = threads;
  return Engine::Load(Open(dir), options);
}

std::vector<float> Logits(Engine& engine, std::span<const int32_t> tokens, size_t chunk) {
  Sequence sequence = engine.NewSequence();
  std::vector<float> logits;
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const StepItem item{&sequence, tokens.subspan(at, std::min(chunk, tokens.size() - at)), nullptr, Rows::kAll,
                        Rows::kNone};
    const auto output = engine.Step({&item, 1});
    EXPECT_TRUE(output.ok()) << output.error().message;
    logits.insert(logits.end(), output->logits.begin(), output->logits.end());
  }
  return logits;
}

TEST(StaticQuantizer, IntegersByTheDefinition) {
  for (const auto& [low, high] : {std::pair{-3.0F, 5.0F}, std::pair{0.5F, 2.0F}, std::pair{-7.0F, -1.0F}}) {
    for (const bool symmetric : {false, true}) {
      const int bits = symmetric ? 8 : 16;
      const StaticQuantizer q = StaticQuantizer::Of({low, high}, bits, symmetric);
      EXPECT_EQ(q.highest - q.lowest, (1 << bits) - 1);
      EXPECT_EQ(q.Round(0.0F), 0.0F);
      for (float x = -9; x < 9; x += 0.00713F) {
        const double ratio = static_cast<double>(x / q.scale);
        const double want = std::clamp(std::nearbyint(ratio), double(q.lowest), double(q.highest));
        ASSERT_EQ(static_cast<double>(q.Integer(x)), want) << x;
      }
      EXPECT_EQ(q.Integer(1e30F), static_cast<float>(q.highest));
      EXPECT_EQ(q.Integer(-INFINITY), static_cast<float>(q.lowest));
      EXPECT_TRUE(std::isnan(q.Round(NAN)));
    }
  }
  // Ties go to the even integer.
  const StaticQuantizer q = StaticQuantizer::Of({-128, 127}, 8, true);
  EXPECT_EQ(q.scale, 1.0F);
  EXPECT_EQ(q.Round(2.5F), 2.0F);
  EXPECT_EQ(q.Round(-3.5F), -4.0F);
}

TEST(MeasureRanges, DoNotDependOnThreads) {
  for (const char* model : {"qwen2_untied", "qwen3", "llama"}) {
    const std::string dir = CopyOf(model);
    for (const int power : {0, 2}) {
      EXPECT_EQ(DigestOf(Measure(dir, power, 1)), DigestOf(Measure(dir, power, 4))) << model;
    }
  }
}

// Every value is seen: logits as the float engine gives them, and a better fit of a range has no larger error.
TEST(MeasureRanges, HoldWhatTheFloatEngineComputes) {
  const std::string dir = CopyOf("qwen2_untied");
  const ActivationRanges whole = Measure(dir), fitted = Measure(dir, 2);
  auto engine = Load(dir, false, 2, KvType::kF32);
  ASSERT_TRUE(engine.ok());
  const std::vector<float> logits = Logits(**engine, Tokens(40), 40);
  const auto [low, high] = std::minmax_element(logits.begin(), logits.end());
  const float spread = *high - *low;
  EXPECT_NEAR(whole.values.at("logits").lowest, *low, 1e-4F * spread);
  EXPECT_NEAR(whole.values.at("logits").highest, *high, 1e-4F * spread);
  EXPECT_EQ(whole.values.at("layer1.masked").lowest,
            std::min(0.0F, whole.values.at("layer1.scores").lowest) + kStaticMaskFloor);
  for (const auto& [name, range] : fitted.values) {
    if (name.ends_with("masked")) continue;
    EXPECT_GE(range.lowest, std::min(0.0F, whole.values.at(name).lowest)) << name;
    EXPECT_LE(range.highest, std::max(0.0F, whole.values.at(name).highest)) << name;
  }
  EXPECT_EQ(fitted.method, "l2");
}

TEST(StaticActivations, AreTheSameInAnyChunksBatchesAndThreads) {
  for (const char* model : {"qwen2_untied", "qwen3", "llama"}) {
    const std::string dir = Calibrated(model);
    auto one = Load(dir, true, 1), many = Load(dir, true, 3), floats = Load(dir, true, 2, KvType::kF32);
    ASSERT_TRUE(one.ok()) << one.error().message;
    ASSERT_TRUE(many.ok() && floats.ok());
    const std::vector<int32_t> tokens = Tokens(30);
    const std::vector<float> want = Logits(**one, tokens, 30);
    EXPECT_EQ(Logits(**many, tokens, 1), want) << model;
    EXPECT_EQ(Logits(**many, tokens, 7), want) << model;
    // A float32 cache holds the numbers that the integers stand for.
    EXPECT_EQ(Logits(**floats, tokens, 11), want) << model;
    // Beside another sequence.
    Sequence a = (*many)->NewSequence(), b = (*many)->NewSequence();
    const std::vector<int32_t> other = {5, 4, 9};
    const StepItem items[] = {{&a, other, nullptr, Rows::kNone, Rows::kNone},
                              {&b, tokens, nullptr, Rows::kAll, Rows::kNone}};
    const auto output = (*many)->Step(items);
    ASSERT_TRUE(output.ok());
    EXPECT_EQ(std::vector<float>(output->logits.begin(), output->logits.end()), want) << model;
  }
}

// 16 bits and a cache of 8: near the float engine, but not it; and every logit lies on its grid.
TEST(StaticActivations, RoundTheFloatEngine) {
  for (const char* model : {"qwen2_untied", "qwen2_yarn", "qwen3", "llama"}) {
    const std::string dir = Calibrated(model);
    auto fixed = Load(dir, true), floats = Load(dir, false, 2, KvType::kF32);
    ASSERT_TRUE(fixed.ok() && floats.ok());
    const std::vector<int32_t> tokens = Tokens(40);
    const std::vector<float> got = Logits(**fixed, tokens, 40), want = Logits(**floats, tokens, 40);
    double error = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
      norm += std::pow(static_cast<double>(want[i]), 2);
    }
    EXPECT_GT(error, 0) << model;
    EXPECT_LT(std::sqrt(error / norm), 0.02) << model;
    const StaticQuantizer grid = StaticQuantizer::Activation(Measure(dir).values.at("logits"));
    for (const float x : got) ASSERT_EQ(grid.Round(x), x) << model;
  }
}

TEST(StaticActivations, WithoutRangesTheCommandIsNamed) {
  const auto engine = Load(CopyOf("llama"), true);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code, ErrorCode::kNotFound);
  EXPECT_NE(engine.error().message.find("pith calibrate"), std::string::npos);
  EXPECT_EQ(Load(Calibrated("llama"), true, 1, KvType::kBF16).error().code, ErrorCode::kInvalidArgument);
}

TEST(StaticActivations, BrokenFilesNameTheValue) {
  const std::string dir = Calibrated("llama"), path = dir + "/" + kActivationRangesFile;
  const Json good = *ReadJsonFile(path);
  const auto error_of = [&](const Json& json) {
    EXPECT_TRUE(WriteFileDurably(path, json.dump()).ok());
    const auto engine = Load(dir, true);
    EXPECT_FALSE(engine.ok());
    return engine.ok() ? Error{} : engine.error();
  };
  const auto expect = [&](const Json& json, ErrorCode code, const char* text) {
    const Error error = error_of(json);
    EXPECT_EQ(error.code, code) << error.message;
    EXPECT_NE(error.message.find(text), std::string::npos) << error.message;
  };
  Json broken = good;
  broken["ranges"].erase("layer1.gated");
  expect(broken, ErrorCode::kNotFound, "layer1.gated");
  broken = good;
  broken["ranges"]["layer0.q.rope"] = {0.0, 0.0};
  expect(broken, ErrorCode::kMalformed, "layer0.q.rope");
  broken["ranges"]["layer0.q.rope"] = {nullptr, 1.0};
  expect(broken, ErrorCode::kNumeric, "layer0.q.rope");
  broken["ranges"]["layer0.q.rope"] = {2.0, 1.0};
  expect(broken, ErrorCode::kNumeric, "layer0.q.rope");
  broken["ranges"]["layer0.q.rope"] = {-1.0, 1e300};
  expect(broken, ErrorCode::kNumeric, "layer0.q.rope");
  broken["ranges"]["layer0.q.rope"] = "wide";
  expect(broken, ErrorCode::kMalformed, "layer0.q.rope");
  broken = good;
  broken["model"] = "another";
  expect(broken, ErrorCode::kMismatch, "other weights");
  broken = good;
  broken["pith_activation_ranges"] = 2;
  expect(broken, ErrorCode::kUnsupported, "version 2");
  broken.erase("pith_activation_ranges");
  expect(broken, ErrorCode::kMalformed, "pith_activation_ranges");
  EXPECT_TRUE(WriteFileDurably(path, "{").ok());
  EXPECT_EQ(Load(dir, true).error().code, ErrorCode::kMalformed);
}

TEST(StaticActivations, AnAdapterIsRefused) {
  auto engine = Load(Calibrated("llama"), true);
  ASSERT_TRUE(engine.ok());
  const auto adapter = (*engine)->LoadAdapter(testing::GoldenPath("models/llama/adapters/all"));
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  Sequence sequence = (*engine)->NewSequence();
  const std::vector<int32_t> tokens = {3};
  const StepItem item{&sequence, tokens, adapter->get(), Rows::kLast, Rows::kNone};
  const auto output = (*engine)->Step({&item, 1});
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(sequence.length(), 0);
}

}  // namespace
}  // namespace pith
