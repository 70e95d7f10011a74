// A model of two layers that speaks bytes in ChatML, written to a folder: for the tests of what needs engine, tokenizer
// and trainer together.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "base/json.h"
#include "byte_tokenizer.h"
#include "engine/text_model.h"
#include "support/data.h"
#include "train/train_model.h"

namespace pith::train {

inline ModelConfig TinyConfig() {
  const Json json = {{"model_type", "qwen2"},  {"hidden_size", 32},           {"intermediate_size", 64},
                     {"num_hidden_layers", 2}, {"num_attention_heads", 4},    {"num_key_value_heads", 2},
                     {"vocab_size", 259},      {"rms_norm_eps", 1e-6},        {"max_position_embeddings", 512},
                     {"rope_theta", 10000.0},  {"tie_word_embeddings", true}, {"eos_token_id", 256}};
  auto config = ParseHfConfig(json.dump(), "test");
  EXPECT_TRUE(config.ok()) << config.error().message;
  return *config;
}

inline void WriteTokenizer(const std::string& dir) { std::ofstream(dir + "/tokenizer.json") << ByteTokenizerJson(); }

// Random weights, in `dir`.
inline void WriteTinyModel(const std::string& dir, uint64_t seed = 3) {
  TrainModelOptions options;
  options.seed = seed;
  options.threads = 1;
  const auto model = TrainModel::Random(TinyConfig(), options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  ASSERT_TRUE((*model)->SaveModel(dir, DType::kF32).ok());
  WriteTokenizer(dir);
}

// The engine's side: float weights as they are, or packed ones.
inline std::unique_ptr<TextModel> LoadTiny(const std::string& dir, KvType kv = KvType::kF32) {
  const auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  TextModelOptions options;
  options.weights = (*checkpoint)->quantization() ? "stored" : "f32";
  options.chat_template = "chatml";
  options.engine.threads = 2;
  options.engine.kv = kv;
  auto model = TextModel::Load(dir, options);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(*model);
}

}  // namespace pith::train
