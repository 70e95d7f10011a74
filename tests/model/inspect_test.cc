#include "model/inspect.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/data.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using ::pith::testing::GoldenPath;
using ::pith::testing::TempDir;

TEST(InspectTest, ParametersByConfigAreTheElementsOfTheTensors) {
  // Every architecture, with and without biases, tied and untied: the golden models are stored unpacked.
  int models = 0;
  for (const auto& entry : fs::directory_iterator(GoldenPath("models"))) {
    if (!entry.is_directory()) continue;
    const auto inspection = InspectPath(entry.path().string());
    ASSERT_TRUE(inspection.ok()) << inspection.error().message;
    ++models;
    int64_t elements = 0;
    uint64_t bytes = 0;
    for (const Tensor& tensor : inspection->tensors) {
      elements += tensor.elements();
      bytes += tensor.data.size();
    }
    EXPECT_EQ(inspection->parameters, elements) << entry.path();
    EXPECT_EQ(inspection->tensor_bytes, bytes);
    EXPECT_DOUBLE_EQ(inspection->bits_per_weight, 8.0 * static_cast<double>(bytes) / static_cast<double>(elements));
    EXPECT_EQ(inspection->kind, ArtefactKind::kHuggingFace);
    EXPECT_FALSE(inspection->tokenizer_size);  // these have none, which is no error
    EXPECT_FALSE(inspection->template_family);
  }
  EXPECT_GE(models, 7);
}

TEST(InspectTest, PackedModelCountsWeightsNotWords) {
  for (const auto& entry : fs::directory_iterator(GoldenPath("compressed_tensors"))) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    const auto inspection = InspectPath(entry.path().string());
    ASSERT_TRUE(inspection.ok()) << inspection.error().message;
    ASSERT_TRUE(inspection->checkpoint->quantization());
    int64_t elements = 0;
    for (const Tensor& tensor : inspection->tensors) elements += tensor.elements();
    EXPECT_NE(inspection->parameters, elements) << entry.path();
    EXPECT_EQ(inspection->parameters, CountParameters(inspection->checkpoint->config()));
  }
}

TEST(InspectTest, SafetensorsFile) {
  const auto inspection = InspectPath(GoldenPath("models/llama/model.safetensors"));
  ASSERT_TRUE(inspection.ok()) << inspection.error().message;
  EXPECT_EQ(inspection->kind, ArtefactKind::kSafetensors);
  EXPECT_EQ(inspection->checkpoint, nullptr);
  EXPECT_GT(inspection->tensors.size(), 10u);
  EXPECT_EQ(inspection->bits_per_weight, 32.0);
  EXPECT_TRUE(std::is_sorted(inspection->tensors.begin(), inspection->tensors.end(),
                             [](const Tensor& a, const Tensor& b) { return a.name < b.name; }));
}

TEST(InspectTest, Adapters) {
  int adapters = 0;
  for (const char* model : {"llama", "qwen3", "qwen2_untied"}) {
    for (const auto& entry : fs::directory_iterator(GoldenPath(std::string("models/") + model + "/adapters"))) {
      if (!fs::exists(entry.path() / "adapter_config.json")) continue;
      const auto inspection = InspectPath(entry.path().string());
      ASSERT_TRUE(inspection.ok()) << inspection.error().message;
      ++adapters;
      EXPECT_EQ(inspection->kind, ArtefactKind::kAdapter);
      int64_t modules = 0;
      for (const auto& [rank, count] : inspection->adapter_modules_by_rank) {
        EXPECT_GT(rank, 0);
        modules += count;
      }
      EXPECT_EQ(static_cast<size_t>(2 * modules), inspection->tensors.size()) << entry.path();  // A and B of each
    }
  }
  EXPECT_GE(adapters, 3);
}

TEST(InspectTest, AdapterWhoseRankIsNotTheDeclaredOne) {
  const fs::path golden = [] {
    for (const auto& entry : fs::directory_iterator(GoldenPath("models/llama/adapters"))) return entry.path();
    return fs::path();
  }();
  const std::string folder = TempDir();
  fs::copy_file(golden / "adapter_model.safetensors", folder + "/adapter_model.safetensors");
  std::ofstream(folder + "/adapter_config.json")
      << R"({"peft_type":"LORA","r":3,"lora_alpha":6,"target_modules":["q_proj","k_proj","v_proj","o_proj"]})";
  const auto inspection = InspectPath(folder);
  ASSERT_FALSE(inspection.ok());
  EXPECT_EQ(inspection.error().code, ErrorCode::kMismatch) << inspection.error().message;
  EXPECT_NE(inspection.error().message.find("lora_A"), std::string::npos);
}

TEST(InspectTest, WhatIsNotAModel) {
  const std::string folder = TempDir();
  EXPECT_EQ(InspectPath(folder).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(InspectPath(folder + "/none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(InspectPath(folder + "/none.json").error().code, ErrorCode::kNotFound);
  std::ofstream(folder + "/text") << "hello";
  EXPECT_EQ(InspectPath(folder + "/text").error().code, ErrorCode::kMalformed);
  std::ofstream(folder + "/config.json") << "{";
  EXPECT_EQ(InspectPath(folder).error().code, ErrorCode::kMalformed);
}

TEST(InspectTest, BrokenTokenizerBesideAGoodModelIsAnError) {
  const std::string folder = TempDir();
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(GoldenPath(std::string("models/llama/") + name), folder + "/" + name);
  }
  ASSERT_TRUE(InspectPath(folder).ok());
  std::ofstream(folder + "/tokenizer.json") << "{\"model\":";
  const auto inspection = InspectPath(folder);
  ASSERT_FALSE(inspection.ok());
  EXPECT_EQ(inspection.error().code, ErrorCode::kMalformed);
  EXPECT_NE(inspection.error().message.find("tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace pith
