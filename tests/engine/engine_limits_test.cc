// What must end in a typed error instead of a number, and what low-bit weights, adapters and caches may not change.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "engine/engine.h"
#include "model/adapter_writer.h"
#include "model/pack.h"
#include "model/safetensors.h"
#include "support/data.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using testing::GoldenPath;

// A copy of a golden model whose tensors and configuration the test may change before it is written.
class ModelCopy {
 public:
  explicit ModelCopy(const std::string& model) {
    const auto file = SafetensorsFile::Open(GoldenPath("models/" + model + "/model.safetensors"));
    EXPECT_TRUE(file.ok());
    for (const Tensor& tensor : (*file)->tensors()) {
      tensors[tensor.name] = {tensor.type, tensor.shape, {tensor.data.begin(), tensor.data.end()}};
    }
    config = *ReadJsonFile(GoldenPath("models/" + model + "/config.json"));
  }

  struct Content {
    DType type = DType::kF32;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };

  void SetFloat(const std::string& name, size_t index, float value) {
    Content& tensor = tensors.at(name);
    ASSERT_EQ(tensor.type, DType::kF32);
    ASSERT_LE((index + 1) * sizeof(value), tensor.bytes.size());
    std::memcpy(tensor.bytes.data() + index * sizeof(value), &value, sizeof(value));
  }

  void AddFloats(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    Content& tensor = tensors[name];
    tensor = {DType::kF32, std::move(shape), std::vector<std::byte>(values.size() * sizeof(float))};
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  }

  std::string Write() const {
    const std::string dir = testing::TempDir();
    std::ofstream(dir + "/config.json") << config.dump();
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.type, tensor.shape});
    auto writer = SafetensorsWriter::Create(dir + "/model.safetensors", entries);
    EXPECT_TRUE(writer.ok());
    for (const auto& [name, tensor] : tensors) EXPECT_TRUE((*writer)->Write(name, tensor.bytes).ok());
    EXPECT_TRUE((*writer)->Finish().ok());
    return dir;
  }

  std::map<std::string, Content> tensors;
  Json config;
};

Result<std::unique_ptr<Engine>> TryLoad(const std::string& dir, const EngineOptions& options) {
  PITH_ASSIGN(const auto checkpoint, Checkpoint::Open(dir));
  return Engine::Load(checkpoint, options);
}

std::unique_ptr<Engine> LoadEngine(const std::string& dir, const EngineOptions& options = {.threads = 2}) {
  auto engine = TryLoad(dir, options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return engine.ok() ? std::move(*engine) : nullptr;
}

EngineOptions Floats() {
  return {.weights = WeightFormat::kF32, .kv = KvType::kF32, .adapters = LoraFormat::kF32, .threads = 2};
}

std::vector<int32_t> Tokens(int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(i * 7 % 60 + 3));
  return tokens;
}

Result<std::vector<float>> Logits(Engine& engine, Sequence& sequence, std::span<const int32_t> tokens,
                                  const Adapter* adapter = nullptr) {
  const StepItem item{&sequence, tokens, adapter, Rows::kAll, Rows::kNone};
  PITH_ASSIGN(const StepOutput output, engine.Step({&item, 1}));
  return std::vector<float>(output.logits.begin(), output.logits.end());
}

std::vector<float> ColdLogits(Engine& engine, std::span<const int32_t> tokens, const Adapter* adapter = nullptr) {
  Sequence sequence = engine.NewSequence();
  auto logits = Logits(engine, sequence, tokens, adapter);
  EXPECT_TRUE(logits.ok()) << logits.error().message;
  return logits.ok() ? *logits : std::vector<float>();
}

double RelativeError(std::span<const float> got, std::span<const float> want) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
    norm += static_cast<double>(want[i]) * want[i];
  }
  return std::sqrt(error / norm);
}

// ------------------------------------------------------------------------------------------- NaN (demand 62)

// One token of the vocabulary has a broken embedding: a step with it is an error and leaves no trace, for every cache.
TEST(NonFinite, IsAnErrorAndLeavesTheSequenceAsItWas) {
  for (const float broken : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ModelCopy model("qwen2_untied");
    constexpr int32_t kBroken = 2;
    model.SetFloat("model.embed_tokens.weight", kBroken * model.config["hidden_size"].get<size_t>() + 11, broken);
    const std::string dir = model.Write();
    for (const KvType kv : {KvType::kInt8, KvType::kBF16, KvType::kF32}) {
      const auto engine = LoadEngine(dir, {.kv = kv, .threads = 2});
      ASSERT_NE(engine, nullptr);
      const auto tokens = Tokens(20);
      ASSERT_EQ(std::count(tokens.begin(), tokens.end(), kBroken), 0);
      const auto want = ColdLogits(*engine, tokens);

      Sequence sequence = engine->NewSequence();
      ASSERT_TRUE(Logits(*engine, sequence, std::span(tokens).first(10)).ok());
      const std::vector<int32_t> bad(40, kBroken);
      const auto failed = Logits(*engine, sequence, bad);
      ASSERT_FALSE(failed.ok());
      EXPECT_EQ(failed.error().code, ErrorCode::kNumeric);
      EXPECT_EQ(sequence.length(), 10);
      // The sequence goes on, and new ones reuse the blocks that held NaN.
      const auto rest = Logits(*engine, sequence, std::span(tokens).subspan(10));
      ASSERT_TRUE(rest.ok()) << rest.error().message;
      EXPECT_EQ(*rest, std::vector<float>(want.end() - static_cast<int64_t>(rest->size()), want.end()));
      sequence = engine->NewSequence();
      EXPECT_EQ(ColdLogits(*engine, tokens), want);

      // In a batch, before anything else is drawn from it.
      Sequence good = engine->NewSequence();
      Sequence other = engine->NewSequence();
      const StepItem items[] = {{&good, tokens, nullptr, Rows::kLast, Rows::kNone},
                                {&other, bad, nullptr, Rows::kLast, Rows::kNone}};
      const auto batch = engine->Step(items);
      ASSERT_FALSE(batch.ok());
      EXPECT_EQ(batch.error().code, ErrorCode::kNumeric);
      EXPECT_EQ(good.length(), 0);
      EXPECT_EQ(other.length(), 0);
    }
  }
}

// --------------------------------------------------------------------------------------- adapters (demands 09, 27)

TEST(Adapters, OfAnotherModelAreRefusedByAStep) {
  const auto engine = LoadEngine(GoldenPath("models/qwen3"));
  const auto other = LoadEngine(GoldenPath("models/qwen2_untied"));
  const auto adapter = other->LoadAdapter(GoldenPath("models/qwen2_untied/adapters/all"));
  ASSERT_TRUE(adapter.ok());
  EXPECT_TRUE((*adapter)->Fits(other->config()));
  Sequence sequence = engine->NewSequence();
  const auto result = Logits(*engine, sequence, Tokens(4), adapter->get());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kMismatch);
  EXPECT_NE(result.error().message.find("adapters/all"), std::string::npos);
  EXPECT_EQ(sequence.length(), 0);
}

TEST(Adapters, MemoryGrowsLinearlyWithTheirNumber) {
  const auto engine = LoadEngine(GoldenPath("models/qwen2_untied"));
  std::vector<std::shared_ptr<const Adapter>> adapters;
  for (int i = 0; i < 12; ++i) {
    const auto adapter = engine->LoadAdapter(GoldenPath("models/qwen2_untied/adapters/all"));
    ASSERT_TRUE(adapter.ok());
    adapters.push_back(*adapter);
    EXPECT_EQ(adapters.back()->bytes(), adapters.front()->bytes());
    EXPECT_EQ(ColdLogits(*engine, Tokens(3), adapters.back().get()),
              ColdLogits(*engine, Tokens(3), adapters.front().get()));
  }
}

// Adapters of every rank on 4-bit weights: the same bits on each run and for any chunking, and the same change of the
// logits as on the float weights that the 4-bit ones stand for.
TEST(Adapters, RankSweepOnPackedWeights) {
  const auto source = Checkpoint::Open(GoldenPath("models/qwen2_untied"));
  ASSERT_TRUE(source.ok());
  const std::string packed_dir = testing::TempDir() + "/packed";
  const auto recipe = ParseRecipe("w4g32,head=w8g32,weigh=none");
  ASSERT_TRUE(recipe.ok());
  ASSERT_TRUE(PackCheckpoint(**source, *recipe, packed_dir).ok());
  const auto packed = LoadEngine(packed_dir);
  const auto floats = LoadEngine(packed_dir, Floats());
  ASSERT_EQ(packed->weights().layers[0].q.packed != nullptr, true);
  ASSERT_EQ(floats->weights().layers[0].q.packed, nullptr);
  const auto tokens = Tokens(24);
  const auto base = ColdLogits(*packed, tokens);
  for (const int64_t rank : {1, 2, 3, 8, 31, 32, 33, 64, 127, 128}) {
    for (const LoraFormat format : {LoraFormat::kBF16, LoraFormat::kInt8}) {
      const auto adapter = Adapter::Random(packed->config(), rank, format);
      const auto on = ColdLogits(*packed, tokens, adapter.get());
      EXPECT_GT(RelativeError(on, base), 1e-4) << "rank " << rank << " has no effect";
      EXPECT_EQ(ColdLogits(*packed, tokens, adapter.get()), on) << rank;
      Sequence sequence = packed->NewSequence();
      std::vector<float> stepwise;
      for (const int32_t token : tokens) {
        const auto row = Logits(*packed, sequence, {&token, 1}, adapter.get());
        ASSERT_TRUE(row.ok());
        stepwise.insert(stepwise.end(), row->begin(), row->end());
      }
      EXPECT_EQ(stepwise, on) << rank;
      EXPECT_EQ(ColdLogits(*packed, tokens), base) << "off again, rank " << rank;
      // 16-bit activations and an int8 cache against floats: small, at any rank.
      const auto exact = Adapter::Random(packed->config(), rank, LoraFormat::kF32);
      EXPECT_LT(RelativeError(on, ColdLogits(*floats, tokens, exact.get())), 3e-2) << rank;
    }
  }
}

// ------------------------------------------------------------------- pack, adapt, write, load, compare (demand 129)

TEST(PackedModel, AdapterWrittenForItGivesTheSameLogitsAfterReloading) {
  const auto source = Checkpoint::Open(GoldenPath("models/qwen2_untied"));
  const std::string packed_dir = testing::TempDir() + "/packed";
  const auto recipe = ParseRecipe("w4g32,head=w8g32,weigh=none");
  ASSERT_TRUE(PackCheckpoint(**source, *recipe, packed_dir).ok());
  std::vector<float> first;
  for (int load = 0; load < 2; ++load) {
    const auto engine = LoadEngine(packed_dir);
    const auto adapter = engine->LoadAdapter(GoldenPath("models/qwen2_untied/adapters/all"));
    ASSERT_TRUE(adapter.ok());
    const auto logits = ColdLogits(*engine, Tokens(24), adapter->get());
    if (load == 0) first = logits;
    EXPECT_EQ(logits, first);
  }
  // Against the unpacked model with the same adapter: what 4 bits cost, not another model.
  const auto engine = LoadEngine(GoldenPath("models/qwen2_untied"), Floats());
  const auto adapter = engine->LoadAdapter(GoldenPath("models/qwen2_untied/adapters/all"));
  EXPECT_LT(RelativeError(first, ColdLogits(*engine, Tokens(24), adapter->get())), 0.3);
}

// --------------------------------------------------------------------------------------------------- LM head, KV
// scales

TEST(TiedModel, UsesTheEmbeddingWhateverElseIsInTheFile) {
  ModelCopy model("llama");
  ASSERT_TRUE(model.config["tie_word_embeddings"].get<bool>());
  const auto want = ColdLogits(*LoadEngine(model.Write(), Floats()), Tokens(8));
  const auto& embedding = model.tensors.at("model.embed_tokens.weight");
  model.tensors["lm_head.weight"] = {embedding.type, embedding.shape,
                                     std::vector<std::byte>(embedding.bytes.size(), std::byte{0})};
  EXPECT_EQ(ColdLogits(*LoadEngine(model.Write(), Floats()), Tokens(8)), want);
}

// A checkpoint may fix one scale per layer for keys and values.
class StaticKvScales : public ::testing::Test {
 protected:
  // Packs a model and adds the scales to its file.
  std::string Write(float k_scale, float v_scale, const std::vector<int64_t>& shape = {1}) {
    const auto source = Checkpoint::Open(GoldenPath("models/qwen3"));
    const std::string packed = testing::TempDir() + "/packed";
    const auto recipe = ParseRecipe("w8g32,head=w8g32,weigh=none");
    EXPECT_TRUE(PackCheckpoint(**source, *recipe, packed).ok());
    ModelCopy model("qwen3");
    model.tensors.clear();
    const auto file = SafetensorsFile::Open(packed + "/model.safetensors");
    for (const Tensor& tensor : (*file)->tensors()) {
      model.tensors[tensor.name] = {tensor.type, tensor.shape, {tensor.data.begin(), tensor.data.end()}};
    }
    model.config = *ReadJsonFile(packed + "/config.json");
    size_t count = 1;
    for (const int64_t size : shape) count *= static_cast<size_t>(size);
    for (int64_t layer = 0; layer < 2 && k_scale != 0; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
      model.AddFloats(prefix + "k_scale", shape, std::vector<float>(count, k_scale));
      model.AddFloats(prefix + "v_scale", shape, std::vector<float>(count, v_scale));
    }
    return model.Write();
  }
};

TEST_F(StaticKvScales, AreUsedByAnInt8CacheOnly) {
  const auto tokens = Tokens(24);
  const auto floats = ColdLogits(*LoadEngine(Write(0, 0), {.kv = KvType::kF32, .threads = 2}), tokens);
  // Keys of this model are norms times weights around one: below 8; a fine scale that covers them is close.
  const std::string fine = Write(8.0F / 127, 8.0F / 127);
  EXPECT_LT(RelativeError(ColdLogits(*LoadEngine(fine), tokens), floats), 0.1);
  // One that clips everything to nearly nothing changes the logits, so it is used; a float cache does not ask for it.
  const std::string coarse = Write(1e-6F, 1e-6F);
  EXPECT_GT(RelativeError(ColdLogits(*LoadEngine(coarse), tokens), floats), 0.1);
  EXPECT_LT(RelativeError(ColdLogits(*LoadEngine(coarse, {.kv = KvType::kF32, .threads = 2}), tokens), floats), 1e-5);
}

TEST_F(StaticKvScales, ThatAreNoneAreNamed) {
  const auto code = [&](const std::string& dir) {
    const auto engine = TryLoad(dir, {.threads = 1});
    EXPECT_FALSE(engine.ok());
    if (engine.ok()) return ErrorCode::kInternal;
    EXPECT_NE(engine.error().message.find("layers.0.self_attn.k_scale"), std::string::npos) << engine.error().message;
    return engine.error().code;
  };
  EXPECT_EQ(code(Write(-1, 1)), ErrorCode::kMalformed);
  EXPECT_EQ(code(Write(std::numeric_limits<float>::quiet_NaN(), 1)), ErrorCode::kMalformed);
  EXPECT_EQ(code(Write(1, 1, {2})), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace pith
