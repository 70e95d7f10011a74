#include "model/adapter_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/json.h"
#include "base/random.h"
#include "support/data.h"

namespace pith {
namespace {

ModelConfig Tiny() {
  ModelConfig config;
  config.layers = 2;
  config.hidden = 8;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 4;
  config.intermediate = 12;
  config.vocab = 20;
  return config;
}

// Owns the numbers of an adapter.
class Numbers {
 public:
  void Add(int64_t layer, LinearKind kind, int64_t rank, double alpha) {
    const LinearShape shape = ShapeOf(Tiny(), kind);
    values_.push_back(Random(rank * shape.in));
    values_.push_back(Random(shape.out * rank));
    modules_.push_back({layer, kind, rank, alpha, {}, {}});
    for (size_t i = 0; i < modules_.size(); ++i) {  // the vectors keep their storage when they move
      modules_[i].a = values_[2 * i];
      modules_[i].b = values_[2 * i + 1];
    }
  }
  std::vector<LoraWeights>& modules() { return modules_; }

 private:
  std::vector<float> Random(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(4 * RandomUniform(1, 2, position_++) - 2);
    return values;
  }
  uint64_t position_ = 0;
  std::vector<std::vector<float>> values_;
  std::vector<LoraWeights> modules_;
};

// Values of a factor whatever its storage.
std::vector<float> Values(const Tensor& tensor, const Tensor& scale) {
  if (tensor.type != DType::kI8) {
    auto floats = ToFloats(tensor);
    EXPECT_TRUE(floats.ok());
    return *floats;
  }
  std::vector<float> scales(scale.data.size() / sizeof(float));
  std::memcpy(scales.data(), scale.data.data(), scale.data.size());
  std::vector<float> values;
  for (size_t i = 0; i < tensor.data.size(); ++i) {
    values.push_back(static_cast<float>(static_cast<int8_t>(tensor.data[i])) *
                     scales[i / static_cast<size_t>(tensor.shape[1])]);
  }
  return values;
}

void ExpectRoundTrip(Numbers& numbers, const AdapterWriteOptions& options) {
  const std::string dir = testing::TempDir() + "/new/adapter";
  const Status written = WriteAdapter(dir, Tiny(), numbers.modules(), options);
  ASSERT_TRUE(written.ok()) << written.error().message;
  const auto file = AdapterFile::Open(dir, Tiny());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE((*file)->warnings.empty());
  EXPECT_EQ((*file)->invocation, options.invocation);
  ASSERT_EQ((*file)->modules.size(), numbers.modules().size());
  for (const LoraWeights& expected : numbers.modules()) {
    const LoraModule* found = nullptr;
    for (const LoraModule& module : (*file)->modules) {
      if (module.kind == expected.kind && (module.layer == expected.layer || module.kind == LinearKind::kLmHead))
        found = &module;
    }
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->rank, expected.rank);
    const double r = static_cast<double>(expected.rank);
    EXPECT_FLOAT_EQ(found->scaling, static_cast<float>(expected.alpha / (options.rslora ? std::sqrt(r) : r)));
    for (const bool is_b : {false, true}) {
      const auto& wanted = is_b ? expected.b : expected.a;
      const auto values = is_b ? Values(found->b, found->b_scale) : Values(found->a, found->a_scale);
      const size_t cols = static_cast<size_t>((is_b ? found->b : found->a).shape[1]);
      ASSERT_EQ(values.size(), wanted.size());
      for (size_t i = 0; i < values.size(); ++i) {
        if (options.storage == AdapterStorage::kF32) {
          EXPECT_EQ(values[i], wanted[i]);
        } else if (options.storage == AdapterStorage::kBF16) {
          EXPECT_EQ(values[i], BF16ToF32(F32ToBF16(wanted[i])));
        } else {
          float largest = 0;  // half a step of the row
          for (size_t c = 0; c < cols; ++c) largest = std::max(largest, std::abs(wanted[i / cols * cols + c]));
          EXPECT_LE(std::abs(values[i] - wanted[i]), largest / 127 * 0.5001f);
        }
      }
    }
  }
}

TEST(WriteAdapter, RoundTripsInEveryStorage) {
  for (const auto storage : {AdapterStorage::kF32, AdapterStorage::kBF16, AdapterStorage::kInt8}) {
    Numbers uniform;
    for (const int64_t layer : {0, 1}) {
      for (const auto kind : {LinearKind::kQ, LinearKind::kK, LinearKind::kV, LinearKind::kO, LinearKind::kGate,
                              LinearKind::kUp, LinearKind::kDown}) {
        uniform.Add(layer, kind, 4, 8);
      }
    }
    ExpectRoundTrip(uniform, {.storage = storage});

    Numbers mixed;  // a part of the layers, differing ranks and alphas, the head
    mixed.Add(1, LinearKind::kDown, 3, 1.5);
    mixed.Add(0, LinearKind::kQ, 256, 64);
    mixed.Add(1, LinearKind::kQ, 1, 1.5);
    mixed.Add(-1, LinearKind::kLmHead, 2, 7);
    ExpectRoundTrip(
        mixed,
        {.storage = storage, .rslora = true, .dropout = 0.05, .base_model = "some/model", .invocation = {3, 19}});
  }
}

TEST(WriteAdapter, ShortNamesWhenWholeLayersAreAdapted) {
  Numbers numbers;
  for (const int64_t layer : {0, 1}) numbers.Add(layer, LinearKind::kQ, 2, 4);
  numbers.Add(-1, LinearKind::kLmHead, 2, 4);
  const std::string dir = testing::TempDir();
  ASSERT_TRUE(WriteAdapter(dir, Tiny(), numbers.modules(), {}).ok());
  const auto json = ReadJsonFile(dir + "/adapter_config.json");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ((*json)["target_modules"], Json({"lm_head", "q_proj"}));
  EXPECT_TRUE((*json)["rank_pattern"].empty());
  EXPECT_EQ((*json)["r"], 2);
  EXPECT_EQ((*json)["lora_alpha"], 4);
}

TEST(WriteAdapter, Bf16BytesEqualPeft) {
  // The golden adapters `all` and `all_bf16` hold the same numbers; PEFT wrote both.
  const std::string root = testing::GoldenPath("models/qwen2_untied/");
  const auto config = ParseHfConfig(testing::ReadFile(root + "config.json"), "config.json");
  ASSERT_TRUE(config.ok());
  const auto source = AdapterFile::Open(root + "adapters/all", *config);
  const auto expected = AdapterFile::Open(root + "adapters/all_bf16", *config);
  ASSERT_TRUE(source.ok() && expected.ok());
  std::vector<std::vector<float>> values;
  std::vector<LoraWeights> modules;
  for (const LoraModule& module : (*source)->modules) {
    values.push_back(Values(module.a, {}));
    values.push_back(Values(module.b, {}));
    modules.push_back({module.layer, module.kind, module.rank, 16, {}, {}});
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    modules[i].a = values[2 * i];
    modules[i].b = values[2 * i + 1];
  }
  const std::string dir = testing::TempDir();
  ASSERT_TRUE(WriteAdapter(dir, *config, modules, {}).ok());
  const auto written = AdapterFile::Open(dir, *config);
  ASSERT_TRUE(written.ok()) << written.error().message;
  ASSERT_EQ((*written)->modules.size(), (*expected)->modules.size());
  for (size_t i = 0; i < modules.size(); ++i) {
    const LoraModule& ours = (*written)->modules[i];
    const LoraModule& theirs = (*expected)->modules[i];
    EXPECT_EQ(ours.scaling, theirs.scaling);
    EXPECT_TRUE(std::ranges::equal(ours.a.data, theirs.a.data)) << ours.a.name;
    EXPECT_TRUE(std::ranges::equal(ours.b.data, theirs.b.data)) << ours.b.name;
  }
}

TEST(WriteAdapter, OtherToolsRefuseInt8) {
  Numbers numbers;
  numbers.Add(0, LinearKind::kQ, 2, 4);
  for (const auto storage : {AdapterStorage::kF32, AdapterStorage::kBF16, AdapterStorage::kInt8}) {
    const std::string dir = testing::TempDir();
    ASSERT_TRUE(WriteAdapter(dir, Tiny(), numbers.modules(), {.storage = storage}).ok());
    const auto json = ReadJsonFile(dir + "/adapter_config.json");
    ASSERT_TRUE(json.ok());
    EXPECT_EQ((*json)["peft_type"] == "LORA", storage != AdapterStorage::kInt8);
  }
}

TEST(WriteAdapter, ZeroAndTinyRowsInInt8) {
  Numbers numbers;
  numbers.Add(0, LinearKind::kQ, 2, 4);
  const std::vector<float> a = {0, 0, 0, 0, 0, 0, 0, 0, 1e-42f, 0, 0, 0, 0, 0, 0, -1e-42f};
  numbers.modules()[0].a = a;
  const std::string dir = testing::TempDir();
  ASSERT_TRUE(WriteAdapter(dir, Tiny(), numbers.modules(), {.storage = AdapterStorage::kInt8}).ok());
  const auto file = AdapterFile::Open(dir, Tiny());
  ASSERT_TRUE(file.ok()) << file.error().message;
  for (const float value : Values((*file)->modules[0].a, (*file)->modules[0].a_scale)) EXPECT_EQ(value, 0.0f);
}

TEST(WriteAdapter, RefusesWhatCannotBeAnAdapter) {
  const auto refuse = [](std::vector<LoraWeights> modules, const AdapterWriteOptions& options,
                         const std::string& message) {
    const std::string dir = testing::TempDir() + "/adapter";
    const Status status = WriteAdapter(dir, Tiny(), modules, options);
    ASSERT_FALSE(status.ok()) << message;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message.find(message), std::string::npos) << status.error().message;
    EXPECT_FALSE(std::filesystem::exists(dir));
  };
  Numbers numbers;
  numbers.Add(1, LinearKind::kQ, 2, 4);
  const LoraWeights good = numbers.modules()[0];
  const auto changed = [&](auto change) {
    LoraWeights module = good;
    change(module);
    return std::vector<LoraWeights>{module};
  };
  refuse({}, {}, "at least one module");
  refuse({good, good}, {}, "'model.layers.1.self_attn.q_proj' comes twice");
  refuse(changed([](LoraWeights& m) { m.layer = 2; }), {}, "outside the model");
  refuse(changed([](LoraWeights& m) { m.layer = -1; }), {}, "outside the model");
  refuse(changed([](LoraWeights& m) { m.rank = 0; }), {}, "rank 0");
  refuse(changed([](LoraWeights& m) { m.rank = 257; }), {}, "rank 257");
  refuse(changed([](LoraWeights& m) { m.rank = 3; }), {}, "factor A of the wrong size");
  refuse(changed([](LoraWeights& m) { m.b = m.b.first(3); }), {}, "factor B of the wrong size");
  refuse(changed([](LoraWeights& m) { m.alpha = std::numeric_limits<double>::infinity(); }), {}, "alpha");
  std::vector<float> poisoned(good.a.begin(), good.a.end());
  poisoned[5] = std::numeric_limits<float>::quiet_NaN();
  refuse(changed([&](LoraWeights& m) { m.a = poisoned; }), {}, "NaN");
  refuse({good}, {.dropout = 1.0}, "dropout");
  refuse({good}, {.invocation = {20}}, "invocation token 20");
}

TEST(WriteAdapter, UnwritablePlaceIsAnIoError) {
  Numbers numbers;
  numbers.Add(1, LinearKind::kQ, 2, 4);
  const Status status = WriteAdapter("/proc/no/such/place", Tiny(), numbers.modules(), {});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace pith
