// Hugging Face directories and PEFT adapters that pith writes.
#include "deploy/hf_directory.h"

#include <gtest/gtest.h>

#include "deploy/golden_model.h"
#include "deploy/lora_factors.h"
#include "deploy/peft_export.h"
#include "model/adapter_writer.h"
#include "model/pack.h"

namespace pith {
namespace {

using testing::GoldenIds;
using testing::GoldenPath;
using testing::Open;

Result<HfExportReport> Export(const std::string& model, const std::string& out, DType type,
                              const AdapterFile* adapter = nullptr) {
  HfExportOptions options;
  options.type = type;
  options.adapter = adapter;
  options.threads = 2;
  return ExportHfDirectory(*Open(model), out, options);
}

struct MergeCase {
  const char *model, *adapter;
};

class Merged : public ::testing::TestWithParam<MergeCase> {};

TEST_P(Merged, IsTheModelWithTheAdapterOn) {
  const std::string model = GetParam().model;
  const std::string adapter = model + "/adapters/" + GetParam().adapter;
  const auto file = AdapterFile::Open(GoldenPath("models/" + adapter), Open(GoldenPath("models/" + model))->config());
  ASSERT_TRUE(file.ok());
  const std::string out = testing::TempDir() + "/merged";
  const auto report = Export(GoldenPath("models/" + model), out, DType::kF32, file->get());
  ASSERT_TRUE(report.ok()) << report.error().message;
  const auto golden = testing::GoldenFloats(adapter + "/golden.safetensors", "logits");
  EXPECT_LT(testing::RelativeError(testing::RunLogits(out, GoldenIds(model)), golden), 1e-4);
  ASSERT_TRUE(report->adapter_loss.has_value());
  EXPECT_LT(*report->adapter_loss, 1e-5);  // float32 keeps nearly everything

  const std::string rounded = testing::TempDir() + "/rounded";
  const auto bf16 = Export(GoldenPath("models/" + model), rounded, DType::kBF16, file->get());
  ASSERT_TRUE(bf16.ok());
  EXPECT_GT(*bf16->adapter_loss, 1e-4);
  EXPECT_LT(*bf16->adapter_loss, 0.5);
}

INSTANTIATE_TEST_SUITE_P(Adapters, Merged,
                         ::testing::Values(MergeCase{"qwen2_untied", "all"}, MergeCase{"qwen2_untied", "patterns"},
                                           MergeCase{"qwen2_untied", "patterns_rslora"},
                                           MergeCase{"qwen2_untied", "lm_head"}, MergeCase{"llama", "all"},
                                           MergeCase{"qwen3", "all"}));

TEST(HfDirectory, DequantizesPackedModels) {
  const std::string source = testing::ModelWithTokenizer("qwen2_tied");
  const std::string packed = testing::TempDir() + "/packed";
  ASSERT_TRUE(PackCheckpoint(*Open(source), *ParseRecipe("w4g32m,head=w8,embed=w8,method=minmax"), packed).ok());
  const std::string out = testing::TempDir() + "/floats";
  ASSERT_TRUE(Export(packed, out, DType::kF32).ok());
  EXPECT_FALSE(Open(out)->quantization().has_value());
  EXPECT_EQ(testing::RunLogits(out, GoldenIds("qwen2_tied")), testing::RunLogits(packed, GoldenIds("qwen2_tied")));
  EXPECT_EQ(testing::ReadFile(out + "/tokenizer.json"), testing::ReadFile(source + "/tokenizer.json"));
}

TEST(HfDirectory, KeepsBf16AsItIs) {
  const std::string source = testing::ModelWithTokenizer("qwen3");
  const std::string out = testing::TempDir() + "/copy";
  const auto report = Export(source, out, DType::kBF16);
  ASSERT_TRUE(report.ok());
  for (const HfTensorReport& tensor : report->matrices) EXPECT_TRUE(tensor.exact) << tensor.module;
  EXPECT_EQ(testing::RunLogits(out, GoldenIds("qwen3")), testing::RunLogits(source, GoldenIds("qwen3")));
}

TEST(HfDirectory, UntiesAnAdaptedHead) {
  const auto base = Open(GoldenPath("models/qwen2_tied"));
  const LinearShape shape = ShapeOf(base->config(), LinearKind::kLmHead);
  const std::vector<float> a(static_cast<size_t>(shape.in), 0.01F), b(static_cast<size_t>(shape.out), 0.5F);
  const LoraWeights weights{0, LinearKind::kLmHead, 1, 1.0, a, b};
  const std::string dir = testing::TempDir() + "/adapter";
  ASSERT_TRUE(WriteAdapter(dir, base->config(), {&weights, 1}, {}).ok());
  const auto file = AdapterFile::Open(dir, base->config());
  const std::string out = testing::TempDir() + "/merged";
  ASSERT_TRUE(Export(GoldenPath("models/qwen2_tied"), out, DType::kF32, file->get()).ok());
  const auto merged = Open(out);
  EXPECT_FALSE(merged->config().tied_embeddings);
  const auto head = *ToFloats(*merged->Find("lm_head.weight"));
  const auto embedding = *ToFloats(*merged->Find("model.embed_tokens.weight"));
  EXPECT_EQ(embedding, *ToFloats(*base->Find("model.embed_tokens.weight")));
  EXPECT_NEAR(head[5], embedding[5] + 0.005F, 1e-4);  // the adapter is stored as bf16
}

TEST(HfDirectory, RefusesWhatIsThereAndInvocations) {
  const std::string taken = testing::TempDir();
  testing::WriteText(taken + "/file", "x");
  const auto there = Export(GoldenPath("models/llama"), taken, DType::kF32);
  ASSERT_FALSE(there.ok());
  EXPECT_EQ(there.error().code, ErrorCode::kInvalidArgument);

  AdapterFile alora =
      **AdapterFile::Open(GoldenPath("models/llama/adapters/all"), Open(GoldenPath("models/llama"))->config());
  alora.invocation = {4, 5};
  const std::string out = testing::TempDir() + "/merged";
  const auto result = Export(GoldenPath("models/llama"), out, DType::kF32, &alora);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kUnsupported);
  EXPECT_FALSE(std::filesystem::exists(out));
}

// Scalings by any rule come back as the same float, and the factors as the same numbers.
TEST(PeftExport, KeepsScalingsAndFactors) {
  const auto base = Open(GoldenPath("models/qwen2_untied"));
  for (const char* name : {"all", "subset", "rslora", "patterns", "patterns_rslora", "lm_head"}) {
    const auto file =
        AdapterFile::Open(GoldenPath(std::string("models/qwen2_untied/adapters/") + name), base->config());
    ASSERT_TRUE(file.ok());
    const std::string out = testing::TempDir() + "/peft";
    const auto report = ExportPeft(**file, base->config(), out, AdapterStorage::kF32, "base/name");
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_TRUE(report->exact);
    const auto copy = AdapterFile::Open(out, base->config());
    ASSERT_TRUE(copy.ok()) << copy.error().message;
    ASSERT_EQ((*copy)->modules.size(), (*file)->modules.size());
    for (size_t i = 0; i < (*file)->modules.size(); ++i) {
      EXPECT_EQ((*copy)->modules[i].scaling, (*file)->modules[i].scaling);
      EXPECT_EQ(ReadFactors((*copy)->modules[i])->a, ReadFactors((*file)->modules[i])->a);
      EXPECT_EQ(ReadFactors((*copy)->modules[i])->b, ReadFactors((*file)->modules[i])->b);
    }
    const auto again = ExportPeft(**file, base->config(), out, AdapterStorage::kF32, "");
    ASSERT_FALSE(again.ok());
    EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(PeftExport, ToInt8AndBack) {
  const auto base = Open(GoldenPath("models/llama"));
  const auto file = *AdapterFile::Open(GoldenPath("models/llama/adapters/all"), base->config());
  const std::string out = testing::TempDir();
  const auto report = ExportPeft(*file, base->config(), out + "/int8", AdapterStorage::kInt8, "");
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_FALSE(report->exact);
  EXPECT_GT(report->relative_error, 0.0);
  EXPECT_LT(report->relative_error, 0.01);  // a step is 1/127 of the largest of a row
  const auto int8 = *AdapterFile::Open(out + "/int8", base->config());
  EXPECT_EQ(int8->modules[0].a.type, DType::kI8);
  // Once rounded, nothing more is lost.
  const auto again = ExportPeft(*int8, base->config(), out + "/again", AdapterStorage::kInt8, "");
  ASSERT_TRUE(again.ok());
  EXPECT_LT(again->relative_error, 1e-6);
}

TEST(PeftExport, Int8BecomesWhatPeftReads) {
  const auto base = Open(GoldenPath("models/llama"));
  const auto file = *AdapterFile::Open(GoldenPath("models/llama/adapters/all"), base->config());
  std::vector<LoraFloats> factors;
  std::vector<LoraWeights> weights;
  for (const LoraModule& module : file->modules) factors.push_back(*ReadFactors(module));
  for (size_t i = 0; i < factors.size(); ++i) {
    const LoraModule& module = file->modules[i];
    weights.push_back({module.layer, module.kind, module.rank, 16.0, factors[i].a, factors[i].b});
  }
  const std::string small = testing::TempDir() + "/int8", out = testing::TempDir() + "/peft";
  AdapterWriteOptions options;
  options.storage = AdapterStorage::kInt8;
  options.invocation = {3};
  ASSERT_TRUE(WriteAdapter(small, base->config(), weights, options).ok());
  const auto int8 = *AdapterFile::Open(small, base->config());
  ASSERT_EQ(int8->modules[0].a.type, DType::kI8);
  ASSERT_TRUE(ExportPeft(*int8, base->config(), out, AdapterStorage::kF32, "").ok());
  const auto floats = *AdapterFile::Open(out, base->config());
  EXPECT_EQ(floats->modules[0].a.type, DType::kF32);
  EXPECT_EQ(floats->invocation, (std::vector<int32_t>{3}));
  EXPECT_EQ(ReadFactors(floats->modules[3])->b, ReadFactors(int8->modules[3])->b);
  EXPECT_NE(testing::ReadFile(out + "/adapter_config.json").find("\"LORA\""), std::string::npos);
}

}  // namespace
}  // namespace pith
