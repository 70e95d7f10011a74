#include "model/adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "base/json.h"
#include "model/safetensors.h"
#include "support/data.h"

namespace pith {
namespace {

using testing::GoldenPath;
using testing::ReadFile;
using testing::TempDir;

ModelConfig GoldenConfig(const std::string& model) {
  auto config = ParseHfConfig(ReadFile(GoldenPath("models/" + model + "/config.json")), model);
  EXPECT_TRUE(config.ok());
  return *config;
}

std::vector<float> Floats(const Tensor& tensor) {
  auto values = ToFloats(tensor);
  EXPECT_TRUE(values.ok()) << tensor.name;
  return values.ok() ? *values : std::vector<float>();
}

// Frobenius norm of scaling * B A.
double DeltaNorm(const LoraModule& module) {
  const auto a = Floats(module.a);
  const auto b = Floats(module.b);
  const int64_t in = module.a.shape[1];
  const int64_t out = module.b.shape[0];
  double sum = 0;
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      double value = 0;
      for (int64_t r = 0; r < module.rank; ++r) value += double{b[o * module.rank + r]} * a[r * in + i];
      sum += value * value;
    }
  }
  return std::abs(double{module.scaling}) * std::sqrt(sum);
}

// ---- Adapters that PEFT saved

struct GoldenCase {
  const char* model;
  const char* adapter;
  size_t modules;
  int64_t max_rank;
  DType type;
};
class GoldenAdapter : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenAdapter, DeltaWeightsEqualPeft) {
  const GoldenCase& expected = GetParam();
  const std::string dir = GoldenPath(std::string("models/") + expected.model + "/adapters/" + expected.adapter);
  const auto adapter = AdapterFile::Open(dir, GoldenConfig(expected.model));
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  const AdapterFile& file = **adapter;
  EXPECT_EQ(file.modules.size(), expected.modules);
  EXPECT_EQ(file.max_rank, expected.max_rank);
  EXPECT_EQ(file.fingerprint.size(), 64u);
  EXPECT_EQ(file.file_bytes, std::filesystem::file_size(dir + "/adapter_config.json") +
                                 std::filesystem::file_size(dir + "/adapter_model.safetensors"));
  EXPECT_TRUE(file.warnings.empty()) << file.warnings.front();
  EXPECT_TRUE(file.invocation.empty());

  const auto golden = SafetensorsFile::Open(dir + "/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  for (const LoraModule& module : file.modules) {
    const std::string name = LinearName(module.layer, module.kind);
    EXPECT_EQ(module.a.type, expected.type);
    const Tensor* norm = (*golden)->Find("delta_norm." + name);
    ASSERT_NE(norm, nullptr) << name;
    const double peft = Floats(*norm).front();
    EXPECT_GT(peft, 0.01) << name;
    EXPECT_NEAR(DeltaNorm(module) / peft, 1.0, 1e-6) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Peft, GoldenAdapter,
                         ::testing::Values(GoldenCase{"qwen2_untied", "all", 14, 8, DType::kF32},
                                           GoldenCase{"qwen2_untied", "all_bf16", 14, 8, DType::kBF16},
                                           GoldenCase{"qwen2_untied", "subset", 3, 8, DType::kBF16},
                                           GoldenCase{"qwen2_untied", "rslora", 8, 8, DType::kBF16},
                                           GoldenCase{"qwen2_untied", "patterns", 14, 12, DType::kF32},
                                           GoldenCase{"qwen2_untied", "patterns_rslora", 4, 8, DType::kBF16},
                                           GoldenCase{"qwen2_untied", "lm_head", 3, 8, DType::kBF16},
                                           GoldenCase{"llama", "all", 14, 8, DType::kBF16},
                                           GoldenCase{"qwen3", "all", 14, 8, DType::kBF16}),
                         [](const auto& test) { return std::string(test.param.model) + "_" + test.param.adapter; });

TEST(AdapterFile, PatternsFollowPeft) {
  const auto adapter =
      AdapterFile::Open(GoldenPath("models/qwen2_untied/adapters/patterns"), GoldenConfig("qwen2_untied"));
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  std::map<std::string, std::pair<int64_t, float>> found;
  for (const LoraModule& module : (*adapter)->modules)
    found[LinearName(module.layer, module.kind)] = {module.rank, module.scaling};
  using Entry = std::pair<int64_t, float>;
  EXPECT_EQ(found["model.layers.0.self_attn.q_proj"], Entry(4, 16.0f / 4));
  EXPECT_EQ(found["model.layers.0.self_attn.v_proj"], Entry(8, 16.0f / 8));  // "_proj" must not match a part of a name
  EXPECT_EQ(found["model.layers.1.self_attn.v_proj"], Entry(8, 40.0f / 8));
  EXPECT_EQ(found["model.layers.0.self_attn.o_proj"], Entry(8, 5.0f / 8));
  EXPECT_EQ(found["model.layers.0.mlp.down_proj"], Entry(2, 6.0f / 2));
  EXPECT_EQ(found["model.layers.1.mlp.down_proj"], Entry(8, 6.0f / 8));
  EXPECT_EQ(found["model.layers.0.mlp.up_proj"], Entry(8, 16.0f / 8));
  EXPECT_EQ(found["model.layers.1.mlp.up_proj"], Entry(12, 16.0f / 12));
}

TEST(AdapterFile, HeadComesLast) {
  const auto adapter =
      AdapterFile::Open(GoldenPath("models/qwen2_untied/adapters/lm_head"), GoldenConfig("qwen2_untied"));
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  const auto& modules = (*adapter)->modules;
  ASSERT_EQ(modules.size(), 3u);
  EXPECT_EQ(modules[0].layer, 0);
  EXPECT_EQ(modules[1].layer, 1);
  EXPECT_EQ(modules[2].layer, -1);
  EXPECT_EQ(modules[2].kind, LinearKind::kLmHead);
}

TEST(AdapterFile, FingerprintsDiffer) {
  const ModelConfig config = GoldenConfig("qwen2_untied");
  const auto open = [&](const std::string& name) {
    const auto adapter = AdapterFile::Open(GoldenPath("models/qwen2_untied/adapters/" + name), config);
    EXPECT_TRUE(adapter.ok());
    return (*adapter)->fingerprint;
  };
  EXPECT_EQ(open("all"), open("all"));
  EXPECT_NE(open("all"), open("all_bf16"));
  EXPECT_NE(open("all"), open("subset"));
}

TEST(AdapterFile, OtherModelIsRefused) {
  // The tied model is twice as wide.
  const auto adapter = AdapterFile::Open(GoldenPath("models/qwen2_untied/adapters/all"), GoldenConfig("qwen2_tied"));
  ASSERT_FALSE(adapter.ok());
  EXPECT_EQ(adapter.error().code, ErrorCode::kMismatch);
  EXPECT_NE(adapter.error().message.find("lora_A.weight' has shape [8, 32]"), std::string::npos)
      << adapter.error().message;
}

// ---- Adapters made here, so that they can be broken

struct Entry {
  DType type = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

Entry F32Entry(std::vector<int64_t> shape, float fill) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  const std::vector<float> values(count, fill);
  const auto bytes = std::as_bytes(std::span(values));
  return {DType::kF32, std::move(shape), {bytes.begin(), bytes.end()}};
}

Entry I8Entry(std::vector<int64_t> shape) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return {DType::kI8, std::move(shape), std::vector<std::byte>(count, std::byte{3})};
}

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

const std::string kBase = "base_model.model.";

// Name of a factor of q in layer 0.
std::string Tensor0(const std::string& factor) { return kBase + "model.layers.0.self_attn.q_proj." + factor; }

// A valid rank-2 adapter on q and v of both layers, to be changed.
struct TestAdapter {
  std::map<std::string, Entry> tensors;
  Json config = {{"peft_type", "LORA"},
                 {"task_type", "CAUSAL_LM"},
                 {"r", 2},
                 {"lora_alpha", 4},
                 {"target_modules", {"q_proj", "v_proj"}}};

  TestAdapter() {
    for (const std::string layer : {"0", "1"}) {
      const std::string prefix = "base_model.model.model.layers." + layer + ".self_attn.";
      tensors[prefix + "q_proj.lora_A.weight"] = F32Entry({2, 8}, 0.5f);
      tensors[prefix + "q_proj.lora_B.weight"] = F32Entry({8, 2}, 0.25f);
      tensors[prefix + "v_proj.lora_A.weight"] = F32Entry({2, 8}, 0.5f);
      tensors[prefix + "v_proj.lora_B.weight"] = F32Entry({4, 2}, 0.25f);
    }
  }

  void Rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    ASSERT_FALSE(node.empty()) << from;
    node.key() = to;
    tensors.insert(std::move(node));
  }

  std::string Write() const {
    const std::string dir = TempDir();
    std::ofstream(dir + "/adapter_config.json") << config.dump();
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, entry] : tensors) entries.push_back({name, entry.type, entry.shape});
    auto writer = SafetensorsWriter::Create(dir + "/adapter_model.safetensors", entries);
    EXPECT_TRUE(writer.ok());
    for (const auto& [name, entry] : tensors) EXPECT_TRUE((*writer)->Write(name, entry.bytes).ok());
    EXPECT_TRUE((*writer)->Finish().ok());
    return dir;
  }

  Result<std::shared_ptr<const AdapterFile>> Open() const { return AdapterFile::Open(Write(), Tiny()); }
};

TEST(AdapterFile, ReadsPlainAdapter) {
  const auto adapter = TestAdapter().Open();
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  ASSERT_EQ((*adapter)->modules.size(), 4u);
  EXPECT_EQ((*adapter)->modules[0].kind, LinearKind::kQ);
  EXPECT_EQ((*adapter)->modules[1].kind, LinearKind::kV);
  EXPECT_EQ((*adapter)->modules[3].layer, 1);
  EXPECT_EQ((*adapter)->modules[0].scaling, 2.0f);
  EXPECT_EQ(Floats((*adapter)->modules[0].a)[0], 0.5f);
}

TEST(AdapterFile, AdapterNameInTensorNames) {
  TestAdapter adapter;
  std::map<std::string, Entry> renamed;
  for (auto& [name, entry] : adapter.tensors) {
    std::string longer = name;
    renamed[longer.insert(longer.rfind(".weight"), ".default")] = entry;
  }
  adapter.tensors = renamed;
  const auto file = adapter.Open();
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->modules.size(), 4u);

  adapter.Rename(Tensor0("lora_A.default.weight"), Tensor0("lora_A.other.weight"));
  const auto mixed = adapter.Open();
  ASSERT_FALSE(mixed.ok());
  EXPECT_EQ(mixed.error().code, ErrorCode::kUnsupported);
}

struct BrokenCase {
  const char* name;
  ErrorCode code;
  const char* message;  // a part of it
  std::function<void(TestAdapter&)> change;
};
void PrintTo(const BrokenCase& broken, std::ostream* out) { *out << broken.name; }
class BrokenAdapter : public ::testing::TestWithParam<BrokenCase> {};

TEST_P(BrokenAdapter, IsATypedError) {
  TestAdapter adapter;
  GetParam().change(adapter);
  const auto file = adapter.Open();
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, GetParam().code) << file.error().message;
  EXPECT_NE(file.error().message.find(GetParam().message), std::string::npos) << file.error().message;
}

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInfinity = std::numeric_limits<float>::infinity();

std::vector<BrokenCase> BrokenCases() {
  return {
      {"WrapperPrefix", ErrorCode::kMismatch, "language_model.layers.0",
       [](TestAdapter& a) {
         a.Rename(Tensor0("lora_A.weight"), kBase + "model.language_model.layers.0.self_attn.q_proj.lora_A.weight");
       }},
      {"NoPrefix", ErrorCode::kMismatch, "'model.layers.0.self_attn.q_proj.lora_A.weight' names no linear",
       [](TestAdapter& a) { a.Rename(Tensor0("lora_A.weight"), "model.layers.0.self_attn.q_proj.lora_A.weight"); }},
      {"LayerBeyondModel", ErrorCode::kMismatch, "layers.2.self_attn.q_proj.lora_A.weight' names a layer",
       [](TestAdapter& a) {
         a.Rename(Tensor0("lora_A.weight"), kBase + "model.layers.2.self_attn.q_proj.lora_A.weight");
       }},
      {"LayerBeyondInt64", ErrorCode::kMismatch, "layers.99999999999999999999",
       [](TestAdapter& a) {
         a.Rename(Tensor0("lora_A.weight"), kBase + "model.layers.99999999999999999999.self_attn.q_proj.lora_A.weight");
       }},
      {"LayerNegative", ErrorCode::kMismatch, "layers.-1",
       [](TestAdapter& a) {
         a.Rename(Tensor0("lora_A.weight"), kBase + "model.layers.-1.self_attn.q_proj.lora_A.weight");
       }},
      {"LayerWithZeros", ErrorCode::kMismatch, "layers.00",
       [](TestAdapter& a) {
         a.tensors[kBase + "model.layers.00.self_attn.q_proj.lora_A.weight"] = F32Entry({2, 8}, 1);
       }},
      {"WrongParent", ErrorCode::kMismatch, "mlp.q_proj",
       [](TestAdapter& a) { a.Rename(Tensor0("lora_A.weight"), kBase + "model.layers.0.mlp.q_proj.lora_A.weight"); }},
      {"Embedding", ErrorCode::kUnsupported, "adapts the embedding",
       [](TestAdapter& a) {
         a.tensors[kBase + "model.embed_tokens.lora_embedding_A"] = F32Entry({2, 20}, 1);
       }},
      {"FullHead", ErrorCode::kUnsupported, "'base_model.model.lm_head.weight' is a full copy",
       [](TestAdapter& a) {
         a.tensors[kBase + "lm_head.weight"] = F32Entry({20, 8}, 1);
       }},
      {"FullHeadOfTargetedHead", ErrorCode::kUnsupported, "'base_model.model.lm_head.base_layer.weight' is a full copy",
       [](TestAdapter& a) {
         a.tensors[kBase + "lm_head.base_layer.weight"] = F32Entry({20, 8}, 1);
       }},
      {"ModulesToSaveTensor", ErrorCode::kUnsupported, "is a full copy",
       [](TestAdapter& a) { a.tensors[kBase + "model.norm.modules_to_save.default.weight"] = F32Entry({8}, 1); }},
      {"RopeFrequencies", ErrorCode::kUnsupported, "rope_freqs.weight",
       [](TestAdapter& a) { a.tensors["rope_freqs.weight"] = F32Entry({2}, 1); }},
      {"Magnitude", ErrorCode::kUnsupported, "belongs to DoRA",
       [](TestAdapter& a) { a.tensors[Tensor0("lora_magnitude_vector")] = F32Entry({8}, 1); }},
      {"FactorBias", ErrorCode::kUnsupported, "is a bias",
       [](TestAdapter& a) { a.tensors[Tensor0("lora_B.bias")] = F32Entry({8}, 1); }},
      {"BaseBias", ErrorCode::kUnsupported, "q_proj.bias' is not a LoRA factor",
       [](TestAdapter& a) { a.tensors[Tensor0("bias")] = F32Entry({8}, 1); }},
      {"UnknownFactor", ErrorCode::kUnsupported, "lora_C.weight",
       [](TestAdapter& a) { a.tensors[Tensor0("lora_C.weight")] = F32Entry({8}, 1); }},
      {"MissingA", ErrorCode::kMismatch, "'model.layers.0.self_attn.q_proj' has no tensor lora_A",
       [](TestAdapter& a) { a.tensors.erase(Tensor0("lora_A.weight")); }},
      {"MissingB", ErrorCode::kMismatch, "'model.layers.0.self_attn.q_proj' has no tensor lora_B",
       [](TestAdapter& a) { a.tensors.erase(Tensor0("lora_B.weight")); }},
      {"MissingModule", ErrorCode::kMismatch,
       "'model.layers.0.self_attn.q_proj' is declared by target_modules but has no tensors",
       [](TestAdapter& a) {
         a.tensors.erase(Tensor0("lora_A.weight"));
         a.tensors.erase(Tensor0("lora_B.weight"));
       }},
      {"NoTensors", ErrorCode::kMismatch, "has no tensors", [](TestAdapter& a) { a.tensors.clear(); }},
      {"UndeclaredModule", ErrorCode::kMismatch, "'model.layers.0.self_attn.v_proj' has tensors but is not declared",
       [](TestAdapter& a) { a.config["target_modules"] = {"q_proj"}; }},
      {"ExcludedModule", ErrorCode::kMismatch, "'model.layers.1.self_attn.v_proj' has tensors but is not declared",
       [](TestAdapter& a) { a.config["exclude_modules"] = {"1.self_attn.v_proj"}; }},
      {"LayersToTransform", ErrorCode::kMismatch, "'model.layers.1.self_attn.q_proj' has tensors but is not declared",
       [](TestAdapter& a) { a.config["layers_to_transform"] = {0}; }},
      {"UnknownTarget", ErrorCode::kMismatch, "'c_attn' is no linear",
       [](TestAdapter& a) {
         a.config["target_modules"] = {"q_proj", "v_proj", "c_attn"};
       }},
      {"PatternWithoutMatch", ErrorCode::kMismatch, "has tensors but is not declared",
       [](TestAdapter& a) { a.config["target_modules"] = "(q|v)_proj"; }},  // must match the whole name
      {"WrongIn", ErrorCode::kMismatch, "lora_A.weight' has shape [2, 9], not [2, 8]",
       [](TestAdapter& a) {
         a.tensors[Tensor0("lora_A.weight")] = F32Entry({2, 9}, 1);
       }},
      {"WrongOut", ErrorCode::kMismatch, "lora_B.weight' has shape [7, 2], not [8, 2]",
       [](TestAdapter& a) {
         a.tensors[Tensor0("lora_B.weight")] = F32Entry({7, 2}, 1);
       }},
      {"Transposed", ErrorCode::kMismatch, "has shape [8, 2], not [2, 8]",
       [](TestAdapter& a) {
         a.tensors[Tensor0("lora_A.weight")] = F32Entry({8, 2}, 1);
       }},
      {"ThreeDimensions", ErrorCode::kMismatch, "has shape [2, 8, 1]",
       [](TestAdapter& a) {
         a.tensors[Tensor0("lora_A.weight")] = F32Entry({2, 8, 1}, 1);
       }},
      {"RankDiffersFromConfig", ErrorCode::kMismatch, "has shape [2, 8], not [4, 8]",
       [](TestAdapter& a) { a.config["r"] = 4; }},
      {"RankPatternDiffers", ErrorCode::kMismatch,
       "layers.1.self_attn.v_proj.lora_A.weight' has shape [2, 8], not [3, 8]",
       [](TestAdapter& a) {
         a.config["rank_pattern"] = {{"1\\.self_attn\\.v_proj", 3}};
       }},
      {"NotANumber", ErrorCode::kNumeric, "lora_A.weight' holds NaN",
       [](TestAdapter& a) {
         a.tensors[Tensor0("lora_A.weight")] = F32Entry({2, 8}, kNan);
       }},
      {"Infinite", ErrorCode::kNumeric, "lora_B.weight' holds NaN or infinity",
       [](TestAdapter& a) {
         a.tensors[Tensor0("lora_B.weight")] = F32Entry({8, 2}, -kInfinity);
       }},
      {"WrongType", ErrorCode::kUnsupported, "has type I32",
       [](TestAdapter& a) { a.tensors[Tensor0("lora_A.weight")].type = DType::kI32; }},
      {"Int8WithoutScale", ErrorCode::kMismatch, "has no weight_scale",
       [](TestAdapter& a) {
         a.tensors[Tensor0("lora_A.weight")] = I8Entry({2, 8});
       }},
      {"ScaleWithoutInt8", ErrorCode::kMismatch, "is a scale of a tensor that is not I8",
       [](TestAdapter& a) { a.tensors[Tensor0("lora_A.weight_scale")] = F32Entry({2}, 1); }},
      {"Int8WrongScales", ErrorCode::kMismatch, "lora_A.weight_scale' is not F32 with one scale",
       [](TestAdapter& a) {
         a.tensors[Tensor0("lora_A.weight")] = I8Entry({2, 8});
         a.tensors[Tensor0("lora_A.weight_scale")] = F32Entry({8}, 1);
       }},
      {"Int8NanScale", ErrorCode::kNumeric, "lora_A.weight_scale' holds NaN",
       [](TestAdapter& a) {
         a.tensors[Tensor0("lora_A.weight")] = I8Entry({2, 8});
         a.tensors[Tensor0("lora_A.weight_scale")] = F32Entry({2}, kNan);
       }},
      {"HalfInt8", ErrorCode::kMismatch, "must both be I8",
       [](TestAdapter& a) {
         a.tensors[Tensor0("lora_A.weight")] = I8Entry({2, 8});
         a.tensors[Tensor0("lora_A.weight_scale")] = F32Entry({2}, 1);
       }},
      {"InvocationOutsideVocabulary", ErrorCode::kMismatch, "20 is outside the vocabulary",
       [](TestAdapter& a) {
         a.config["alora_invocation_tokens"] = {1, 20};
       }},
      {"ModulesToSaveField", ErrorCode::kUnsupported, "modules_to_save",
       [](TestAdapter& a) { a.config["modules_to_save"] = {"lm_head"}; }}};
}

INSTANTIATE_TEST_SUITE_P(Tensors, BrokenAdapter, ::testing::ValuesIn(BrokenCases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(AdapterFile, MissingFilesAreNamed) {
  const auto missing = AdapterFile::Open(TempDir() + "/none", Tiny());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("adapter_config.json"), std::string::npos);

  const std::string dir = TestAdapter().Write();
  std::filesystem::rename(dir + "/adapter_model.safetensors", dir + "/adapter_model.bin");
  const auto pickle = AdapterFile::Open(dir, Tiny());
  ASSERT_FALSE(pickle.ok());
  EXPECT_EQ(pickle.error().code, ErrorCode::kUnsupported);
  std::filesystem::remove(dir + "/adapter_model.bin");
  const auto no_weights = AdapterFile::Open(dir, Tiny());
  ASSERT_FALSE(no_weights.ok());
  EXPECT_EQ(no_weights.error().code, ErrorCode::kNotFound);
}

TEST(AdapterFile, TruncatedWeightsAreAnErrorAtEveryLength) {
  const std::string dir = TestAdapter().Write();
  const std::string path = dir + "/adapter_model.safetensors";
  const auto full = std::filesystem::file_size(path);
  for (auto size = full - 1; size > 0; size = size * 7 / 8) {
    std::filesystem::resize_file(path, size);
    EXPECT_FALSE(AdapterFile::Open(dir, Tiny()).ok()) << size;
  }
}

TEST(AdapterFile, WholeHeadAndAllLinears) {
  // "all-linear" leaves the LM head out, so a head with tensors has to be named.
  TestAdapter adapter;
  adapter.config["target_modules"] = {"q_proj", "v_proj", "lm_head"};
  adapter.tensors["base_model.model.lm_head.lora_A.weight"] = F32Entry({2, 8}, 1);
  adapter.tensors["base_model.model.lm_head.lora_B.weight"] = F32Entry({20, 2}, 1);
  EXPECT_TRUE(adapter.Open().ok());
  adapter.config["target_modules"] = "all-linear";
  EXPECT_FALSE(adapter.Open().ok());
}

TEST(AdapterFile, InvocationAndWarningsAreKept) {
  TestAdapter adapter;
  adapter.config["alora_invocation_tokens"] = {7, 19};
  adapter.config["some_new_field"] = 3;
  adapter.config["another_new_field"] = nullptr;
  const auto file = adapter.Open();
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->invocation, (std::vector<int32_t>{7, 19}));
  ASSERT_EQ((*file)->warnings.size(), 1u);
  EXPECT_NE((*file)->warnings[0].find("some_new_field = 3"), std::string::npos);
}

TEST(AdapterFile, ScalingZeroIsReported) {
  TestAdapter adapter;
  adapter.config["lora_alpha"] = 0;
  const auto file = adapter.Open();
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ((*file)->warnings.size(), 1u);
  EXPECT_NE((*file)->warnings[0].find("no effect"), std::string::npos);
}

TEST(AdapterFile, RanksUpTo256) {
  for (const int64_t rank : {1, 3, 127, 256}) {
    TestAdapter adapter;
    adapter.config["r"] = rank;
    for (auto& [name, entry] : adapter.tensors) {
      entry = name.find("lora_A") != name.npos ? F32Entry({rank, 8}, 1) : F32Entry({entry.shape[0], rank}, 1);
    }
    const auto file = adapter.Open();
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ((*file)->max_rank, rank);
  }
}

TEST(FindInvocation, LastOccurrence) {
  using Ids = std::vector<int32_t>;
  const auto find = [](const Ids& tokens, const Ids& pattern) { return FindInvocation(tokens, pattern); };
  EXPECT_EQ(find({5, 1, 2, 2}, {1, 2}), 1u);
  EXPECT_EQ(find({1, 2, 1, 2}, {1, 2}), 2u);
  EXPECT_EQ(find({1, 1, 2}, {1, 2}), 1u);  // a mismatch must not swallow a possible beginning
  EXPECT_EQ(find({1, 1, 1}, {1, 1}), 1u);  // overlapping occurrences
  EXPECT_EQ(find({1, 2, 1, 1, 2, 1, 2}, {1, 2, 1, 2}), 3u);
  EXPECT_EQ(find({1, 2}, {1, 2}), 0u);
  EXPECT_EQ(find({2, 1}, {1, 2}), std::nullopt);
  EXPECT_EQ(find({1}, {1, 2}), std::nullopt);
  EXPECT_EQ(find({}, {1}), std::nullopt);
  EXPECT_EQ(find({1, 2}, {}), std::nullopt);
}

TEST(ShapeOf, FollowsHeadsNotHidden) {
  ModelConfig config = Tiny();
  config.head_dim = 6;  // heads * head_dim differs from hidden, as in qwen3
  const auto shape = [&](LinearKind kind) { return std::pair(ShapeOf(config, kind).out, ShapeOf(config, kind).in); };
  EXPECT_EQ(shape(LinearKind::kQ), std::pair(int64_t{12}, int64_t{8}));
  EXPECT_EQ(shape(LinearKind::kK), std::pair(int64_t{6}, int64_t{8}));
  EXPECT_EQ(shape(LinearKind::kV), std::pair(int64_t{6}, int64_t{8}));
  EXPECT_EQ(shape(LinearKind::kO), std::pair(int64_t{8}, int64_t{12}));
  EXPECT_EQ(shape(LinearKind::kGate), std::pair(int64_t{12}, int64_t{8}));
  EXPECT_EQ(shape(LinearKind::kDown), std::pair(int64_t{8}, int64_t{12}));
  EXPECT_EQ(shape(LinearKind::kLmHead), std::pair(int64_t{20}, int64_t{8}));
}

}  // namespace
}  // namespace pith
