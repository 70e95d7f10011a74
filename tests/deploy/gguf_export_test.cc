// GGUF files that pith writes, read back by its own reader (whose values are those of the gguf package) and engine.
#include "deploy/gguf_export.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "deploy/compare_models.h"
#include "deploy/gguf_writer.h"
#include "deploy/golden_model.h"
#include "deploy/matrix_reader.h"
#include "model/adapter_writer.h"
#include "model/chat_template.h"
#include "model/hf_names.h"
#include "model/pack.h"
#include "model/tokenizer_file.h"
#include "support/tiny_checkpoint.h"

namespace pith {
namespace {

using testing::GoldenIds;
using testing::GoldenPath;
using testing::ModelWithTokenizer;
using testing::Open;

std::string Export(const std::string& model, const char* type, GgufExportReport* report = nullptr) {
  const auto checkpoint = Open(model);
  const std::string path = testing::TempDir() + "/model.gguf";
  GgufExportOptions options;
  options.type = *ParseGgufType(type);
  options.threads = 2;
  const auto result = ExportGguf(*checkpoint, path, options);
  EXPECT_TRUE(result.ok()) << result.error().message;
  if (result.ok() && report != nullptr) *report = *result;
  return path;
}

std::string Pack(const std::string& model, const char* recipe) {
  const std::string out = testing::TempDir() + "/packed";
  const auto report = PackCheckpoint(*Open(model), *ParseRecipe(recipe), out);
  EXPECT_TRUE(report.ok()) << report.error().message;
  return out;
}

// Every matrix of both, row by row, as floats.
void ExpectSameMatrices(const Checkpoint& a, const Checkpoint& b) {
  for (const ModelModule& module : ModulesOf(a.config())) {
    if (module.kind == ModuleKind::kNorm) continue;
    const auto left = MatrixReader::Open(a, module.name, module.shape[0], module.shape[1]);
    const auto right = MatrixReader::Open(b, module.name, module.shape[0], module.shape[1]);
    ASSERT_TRUE(left.ok() && right.ok()) << module.name;
    std::vector<float> x(static_cast<size_t>(module.shape[1])), y(x.size());
    for (int64_t row = 0; row < module.shape[0]; ++row) {
      left->ReadRow(row, x.data());
      right->ReadRow(row, y.data());
      ASSERT_EQ(x, y) << module.name << " row " << row;
    }
  }
}

class GgufModel : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufModel, IsTheSameModel) {
  const std::string model = ModelWithTokenizer(GetParam());
  GgufExportReport report;
  const std::string path = Export(model, "auto", &report);
  EXPECT_TRUE(report.exact());
  ExpectSameMatrices(*Open(model), *Open(path));
  const auto logits = testing::RunLogits(path, GoldenIds(GetParam()));
  const auto golden = testing::GoldenFloats(std::string(GetParam()) + "/golden.safetensors", "logits");
  EXPECT_LT(testing::RelativeError(logits, golden), 1e-4);
  // Everything but the RoPE divisors of llama3 is bit for bit the same.
  if (std::string(GetParam()) != "llama_rope_llama3") {
    EXPECT_EQ(logits, testing::RunLogits(model, GoldenIds(GetParam())));
  }
}

TEST_P(GgufModel, HalfPrecisionIsClose) {
  const std::string path = Export(ModelWithTokenizer(GetParam()), "f16");
  const auto golden = testing::GoldenFloats(std::string(GetParam()) + "/golden.safetensors", "logits");
  const double error = testing::RelativeError(testing::RunLogits(path, GoldenIds(GetParam())), golden);
  EXPECT_LT(error, 5e-3);
}

INSTANTIATE_TEST_SUITE_P(Models, GgufModel,
                         ::testing::Values("qwen2_tied", "qwen2_untied", "qwen2_yarn", "llama", "llama_rope_llama3",
                                           "llama_rope_linear", "qwen3"));

struct PackedCase {
  const char* recipe;
  DType linear, head;
  bool exact;
};

class GgufPacked : public ::testing::TestWithParam<PackedCase> {};

TEST_P(GgufPacked, IntegersTravelUnchanged) {
  const auto [recipe, linear, head, exact] = GetParam();
  for (const char* source : {"qwen2_tied", "llama"}) {
    const std::string packed = Pack(ModelWithTokenizer(source), recipe);
    GgufExportReport report;
    const std::string path = Export(packed, "auto", &report);
    EXPECT_EQ(report.exact(), exact);
    for (const GgufTensorReport& tensor : report.matrices) {
      if (tensor.name == "blk.1.attn_q.weight") {
        EXPECT_EQ(tensor.type, linear);
      }
      if (tensor.name == "output.weight") {
        EXPECT_EQ(tensor.type, head);
      }
    }
    if (exact) ExpectSameMatrices(*Open(packed), *Open(path));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, GgufPacked,
    ::testing::Values(PackedCase{"w4g32,head=w8g32,embed=w8,method=minmax", DType::kQ4_0, DType::kQ8_0, true},
                      PackedCase{"w4,head=w4,embed=w8,method=best,p=2,weigh=none", DType::kQ4_0, DType::kQ4_0, true},
                      PackedCase{"w4g32m,head=w8,embed=bf16,method=minmax", DType::kQ4_1, DType::kQ8_0, true},
                      PackedCase{"w8g32,head=bf16,embed=f32,method=minmax", DType::kQ8_0, DType::kBF16, true},
                      // Integer zero points and float32 scales have no exact form there.
                      PackedCase{"w4g32z,head=w8g32,embed=w8,method=minmax", DType::kF16, DType::kQ8_0, false},
                      PackedCase{"w4g32,head=w8,embed=w8,method=minmax,scales=f32", DType::kF16, DType::kF16, false}));

TEST(GgufExport, BlocksSurviveTheWayThroughAPackedDirectory) {
  const std::string first = Export(ModelWithTokenizer("qwen2_tied"), "q4_1");
  const std::string second = Export(Pack(first, "keep"), "auto");
  const auto a = GgufFile::Open(first), b = GgufFile::Open(second);
  ASSERT_TRUE(a.ok() && b.ok());
  int64_t compared = 0;
  for (const Tensor& tensor : (*a)->tensors()) {
    const Tensor* other = (*b)->FindTensor(tensor.name);
    ASSERT_NE(other, nullptr);
    ASSERT_EQ(tensor.type, other->type) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(tensor.data, other->data)) << tensor.name;
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

TEST(GgufExport, QuantizesFloatsWhenAsked) {
  const std::string model = ModelWithTokenizer("qwen2_tied");
  for (const char* type : {"q8_0", "q4_0", "q4_1"}) {
    GgufExportReport report;
    const std::string path = Export(model, type, &report);
    EXPECT_FALSE(report.exact());
    for (const GgufTensorReport& tensor : report.matrices) {
      EXPECT_GT(tensor.sqnr_db.value_or(0), tensor.type == DType::kQ8_0 ? 38 : 16) << tensor.name;
      if (tensor.name == "token_embd.weight") {
        EXPECT_EQ(tensor.type, DType::kQ8_0);
      }
    }
    const auto comparison = CompareModels(model, "", path, 32, 1);
    ASSERT_TRUE(comparison.ok()) << comparison.error().message;
    EXPECT_GT(comparison->relative, 0);
    EXPECT_LT(comparison->relative, AllowedDifference(false, true));
  }
}

TEST(GgufExport, CarriesTokenizerAndTemplate) {
  for (const bool smollm : {false, true}) {
    const std::string model = ModelWithTokenizer("qwen2_tied", testing::SmallTokenizer(smollm));
    const std::string path = Export(model, "auto");
    const auto before = OpenTokenizer(model), after = OpenTokenizer(path);
    ASSERT_TRUE(before.ok() && after.ok());
    const EncodeOptions options{.parse_special = true};
    const std::string text = "the thing in the int 12 <think> a <|im_end|>.";
    EXPECT_EQ((*before)->Encode(text, options).value(), (*after)->Encode(text, options).value());
    const auto gguf = GgufFile::Open(path);
    EXPECT_EQ((*gguf)->GetString("tokenizer.ggml.pre").value(), smollm ? "smollm" : "qwen2");
    EXPECT_EQ((*gguf)->GetInt("tokenizer.ggml.eos_token_id").value(), 2);
    EXPECT_EQ((*gguf)->GetStrings("tokenizer.ggml.tokens").value().size(), 120U);
    EXPECT_EQ(CheckpointTemplateText(*Open(path)).value(), "{{ messages }}");
    // And once more from the GGUF file.
    const std::string again = Export(path, "auto");
    ExpectSameMatrices(*Open(path), *Open(again));
    EXPECT_EQ((*OpenTokenizer(again))->Encode(text, options).value(), (*before)->Encode(text, options).value());
  }
}

TEST(GgufExport, RefusesWhatItCannotSay) {
  Json other = testing::SmallTokenizer();
  other["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\p{L}+|.";
  const std::string path = testing::TempDir() + "/x.gguf";
  const auto bad_pattern = ExportGguf(*Open(ModelWithTokenizer("qwen2_tied", other)), path, {});
  ASSERT_FALSE(bad_pattern.ok());
  EXPECT_EQ(bad_pattern.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(bad_pattern.error().message.find("\\p{L}+|."), std::string::npos);

  Json outside = testing::SmallTokenizer();
  outside["added_tokens"][0]["id"] = 5000;
  const auto bad_id = ExportGguf(*Open(ModelWithTokenizer("qwen2_tied", outside)), path, {});
  ASSERT_FALSE(bad_id.ok());
  EXPECT_EQ(bad_id.error().code, ErrorCode::kMismatch);

  const auto no_tokenizer = ExportGguf(*Open(GoldenPath("models/llama")), path, {});
  ASSERT_FALSE(no_tokenizer.ok());
  EXPECT_EQ(no_tokenizer.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(path));

  EXPECT_EQ(ParseGgufType("q3_k").error().code, ErrorCode::kInvalidArgument);
}

TEST(GgufExport, RefusesWeightsThatDoNotFit) {
  testing::TinyCheckpoint tiny("llama");
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  const auto run = [&](float value, DType type) {
    std::memcpy(tiny.tensors[name].bytes.data() + 64 * 4 * 3, &value, sizeof(value));
    const std::string dir = tiny.Write();
    Json tokenizer = testing::SmallTokenizer();
    tokenizer["model"]["vocab"] = {{"a", 0}, {"b", 1}};
    tokenizer["model"]["merges"] = Json::array();
    testing::WriteText(dir + "/tokenizer.json", tokenizer.dump());
    GgufExportOptions options;
    options.type = type;
    return ExportGguf(*Open(dir), dir + "/x.gguf", options);
  };
  EXPECT_TRUE(run(1.0F, DType::kF16).ok());
  for (const auto& [value, type] : {std::pair{1e6F, DType::kF16}, std::pair{1e9F, DType::kQ4_0},
                                    std::pair{std::numeric_limits<float>::quiet_NaN(), DType::kF32},
                                    std::pair{std::numeric_limits<float>::infinity(), DType::kQ8_0}}) {
    const auto result = run(value, type);
    ASSERT_FALSE(result.ok()) << value;
    EXPECT_EQ(result.error().code, ErrorCode::kNumeric);
    EXPECT_NE(result.error().message.find("up_proj.weight' row 3"), std::string::npos) << result.error().message;
  }
}

// --- adapters ---

struct AdapterCase {
  const char *model, *adapter;
  bool folds;
};

class GgufAdapter : public ::testing::TestWithParam<AdapterCase> {};

// What llama.cpp adds to a weight: alpha / rank * B A; its norm is PEFT's.
TEST_P(GgufAdapter, ChangesAreThoseOfPeft) {
  const auto [model, adapter, folds] = GetParam();
  const auto checkpoint = Open(GoldenPath("models/" + std::string(model)));
  const std::string dir = std::string(model) + "/adapters/" + adapter;
  const auto file = AdapterFile::Open(GoldenPath("models/" + dir), checkpoint->config());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const std::string path = testing::TempDir() + "/adapter.gguf";
  const auto report = ExportAdapterGguf(**file, checkpoint->config(), path, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->folded > 0, folds);

  const auto gguf = GgufFile::Open(path);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_EQ((*gguf)->GetString("general.type").value(), "adapter");
  EXPECT_EQ((*gguf)->GetString("general.architecture").value(), ArchitectureName(checkpoint->config().arch));
  const double alpha = (*gguf)->GetFloat("adapter.lora.alpha").value();
  EXPECT_EQ((*gguf)->tensors().size(), 2 * (*file)->modules.size());
  for (const LoraModule& module : (*file)->modules) {
    const std::string name = LinearName(module.layer, module.kind);
    const std::string base = *GgufNameOfHf(name + ".weight");
    const Tensor* a = (*gguf)->FindTensor(base + ".lora_a");
    const Tensor* b = (*gguf)->FindTensor(base + ".lora_b");
    ASSERT_TRUE(a != nullptr && b != nullptr) << base;
    EXPECT_EQ(a->shape[1], ShapeOf(checkpoint->config(), module.kind).in);
    EXPECT_EQ(b->shape[0], ShapeOf(checkpoint->config(), module.kind).out);
    const auto x = *ToFloats(*a), y = *ToFloats(*b);
    const auto rank = static_cast<size_t>(a->shape[0]), in = static_cast<size_t>(a->shape[1]);
    double norm = 0;
    for (size_t row = 0; row < y.size() / rank; ++row) {
      for (size_t col = 0; col < in; ++col) {
        double value = 0;
        for (size_t r = 0; r < rank; ++r) {
          value += static_cast<double>(y[row * rank + r]) * static_cast<double>(x[r * in + col]);
        }
        norm += value * value;
      }
    }
    const double scale = alpha == 0 ? 1.0 : alpha / static_cast<double>(rank);
    const float want = testing::GoldenFloats(dir + "/golden.safetensors", "delta_norm." + name)[0];
    EXPECT_NEAR(scale * std::sqrt(norm), static_cast<double>(want), 1e-5 * static_cast<double>(want)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Adapters, GgufAdapter,
                         ::testing::Values(AdapterCase{"qwen2_untied", "all", false},
                                           AdapterCase{"qwen2_untied", "all_bf16", false},
                                           AdapterCase{"qwen2_untied", "subset", false},
                                           AdapterCase{"qwen2_untied", "rslora", false},
                                           AdapterCase{"qwen2_untied", "patterns", true},
                                           AdapterCase{"qwen2_untied", "patterns_rslora", true},
                                           AdapterCase{"qwen2_untied", "lm_head", false},
                                           AdapterCase{"llama", "all", false}, AdapterCase{"qwen3", "all", false}));

// Rows of B for q and k lie in the order of the base's file: the product on a permuted base must permute alike.
TEST(GgufAdapter, LlamaRowsFollowTheBase) {
  const auto checkpoint = Open(GoldenPath("models/llama"));
  const ModelConfig& config = checkpoint->config();
  const auto file = AdapterFile::Open(GoldenPath("models/llama/adapters/all"), config);
  const std::string path = testing::TempDir() + "/adapter.gguf";
  ASSERT_TRUE(ExportAdapterGguf(**file, config, path, {}).ok());
  const auto gguf = GgufFile::Open(path);
  const auto& module = (*file)->modules.front();
  ASSERT_EQ(module.kind, LinearKind::kQ);
  const auto stored = *ToFloats(*(*gguf)->FindTensor("blk.0.attn_q.weight.lora_b"));
  const auto b = *ToFloats(module.b);
  const auto rank = static_cast<size_t>(module.rank);
  for (int64_t row = 0; row < config.heads * config.head_dim; ++row) {
    const auto at = static_cast<size_t>(InterleavedRow(row, config.head_dim));
    for (size_t r = 0; r < rank; ++r) EXPECT_EQ(stored[at * rank + r], b[static_cast<size_t>(row) * rank + r]);
  }
}

TEST(GgufAdapter, InvocationTokensAndTiedHeads) {
  const auto checkpoint = Open(GoldenPath("models/qwen2_tied"));
  const ModelConfig& config = checkpoint->config();
  const auto factors = [&](LinearKind kind) {
    const LinearShape shape = ShapeOf(config, kind);
    return std::pair(std::vector<float>(static_cast<size_t>(2 * shape.in), 0.5F),
                     std::vector<float>(static_cast<size_t>(2 * shape.out), 1e5F));
  };
  const auto write = [&](LinearKind kind) {
    const auto [a, b] = factors(kind);
    const std::string dir = testing::TempDir() + "/adapter";
    const LoraWeights weights{0, kind, 2, 4.0, a, b};
    AdapterWriteOptions options;
    options.invocation = {7, 8, 9};
    EXPECT_TRUE(WriteAdapter(dir, config, {&weights, 1}, options).ok());
    return *AdapterFile::Open(dir, config);
  };
  const std::string path = testing::TempDir() + "/adapter.gguf";
  ASSERT_TRUE(ExportAdapterGguf(*write(LinearKind::kV), config, path, {}).ok());
  const auto gguf = GgufFile::Open(path);
  EXPECT_EQ((*gguf)->GetInts("adapter.alora.invocation_tokens").value(), (std::vector<int64_t>{7, 8, 9}));
  EXPECT_EQ((*gguf)->FindValue("adapter.alora.invocation_tokens")->type, GgufType::kU32);

  const auto half = ExportAdapterGguf(*write(LinearKind::kV), config, path + "2", {DType::kF16});
  ASSERT_FALSE(half.ok());
  EXPECT_EQ(half.error().code, ErrorCode::kNumeric);
  EXPECT_FALSE(std::filesystem::exists(path + "2"));

  const auto tied = ExportAdapterGguf(*write(LinearKind::kLmHead), config, path, {});
  ASSERT_FALSE(tied.ok());
  EXPECT_EQ(tied.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(tied.error().message.find("lm_head"), std::string::npos);
}

// --- the writer ---

TEST(GgufWriter, RefusesWrongUse) {
  const std::string path = testing::TempDir() + "/w.gguf";
  const auto create = [&](std::vector<GgufEntry> entries) {
    return GgufWriter::Create(path, GgufMetadata(), std::move(entries));
  };
  EXPECT_EQ(create({{"a", DType::kF32, {2}}, {"a", DType::kF32, {2}}}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(create({{"", DType::kF32, {2}}}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(create({{"a", DType::kI64, {2}}}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(create({{"a", DType::kQ8_0, {2, 33}}}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(create({{"a", DType::kF32, {0}}}).error().code, ErrorCode::kInvalidArgument);
  GgufMetadata twice;
  twice.AddU32("key", 1);
  twice.AddU32("key", 2);
  EXPECT_EQ(GgufWriter::Create(path, twice, {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(GgufWriter::Create("/nowhere/at/all.gguf", GgufMetadata(), {}).error().code, ErrorCode::kIo);
  {
    auto writer = create({{"a", DType::kF32, {2}}, {"b", DType::kF16, {3}}});
    ASSERT_TRUE(writer.ok());
    const std::byte bytes[16] = {};
    EXPECT_FALSE((*writer)->Write("b", std::span(bytes, 6)).ok());
    EXPECT_FALSE((*writer)->Write("a", std::span(bytes, 9)).ok());
    EXPECT_TRUE((*writer)->Write("a", std::span(bytes, 8)).ok());
    EXPECT_FALSE((*writer)->Finish().ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(std::filesystem::path(path).parent_path()));
}

TEST(GgufWriter, AllKindsOfMetadataReadBack) {
  const std::string path = testing::TempDir() + "/w.gguf";
  GgufMetadata metadata;
  metadata.AddString("s", "x\n\"y");
  metadata.AddU32("u", 4000000000U);
  metadata.AddF32("f", -0.25F);
  metadata.AddBool("b", true);
  metadata.AddStrings("ss", std::vector<std::string>{"", "\xff", "abc"});
  metadata.AddI32s("is", std::vector<int32_t>{-1, 5});
  auto writer = GgufWriter::Create(path, metadata, {{"t", DType::kF32, {1, 3}}, {"v", DType::kF16, {1}}});
  ASSERT_TRUE(writer.ok());
  const float values[3] = {1, 2, 3};
  ASSERT_TRUE((*writer)->Write("t", std::as_bytes(std::span(values))).ok());
  ASSERT_TRUE((*writer)->Write("v", std::as_bytes(std::span(values)).first(2)).ok());
  const uint64_t bytes = (*writer)->file_bytes();
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ(std::filesystem::file_size(path), bytes);
  const auto gguf = GgufFile::Open(path);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  EXPECT_EQ((*gguf)->GetString("s").value(), "x\n\"y");
  EXPECT_EQ((*gguf)->GetInt("u").value(), 4000000000);
  EXPECT_EQ((*gguf)->GetFloat("f").value(), -0.25);
  EXPECT_TRUE((*gguf)->GetBool("b").value());
  EXPECT_EQ((*gguf)->GetStrings("ss").value(), (std::vector<std::string_view>{"", "\xff", "abc"}));
  EXPECT_EQ((*gguf)->GetInts("is").value(), (std::vector<int64_t>{-1, 5}));
  EXPECT_EQ((*gguf)->FindTensor("t")->shape, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(ToFloats(*(*gguf)->FindTensor("t")).value(), (std::vector<float>{1, 2, 3}));
}

}  // namespace
}  // namespace pith
