// The golden models with a tokenizer of their own, and running any model on their golden tokens.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "model/safetensors.h"
#include "support/data.h"

namespace pith::testing {

// A byte-level BPE tokenizer of 40 tokens, two of them special, in the shape of Qwen's (or, `smollm`, SmolLM's).
inline Json SmallTokenizer(bool smollm = false) {
  Json vocab = Json::object();
  int id = 5;
  for (const char* text :
       {"a", "b", "c",      "d", "e", "f", "g",  "h",   "i",        "l",         "n",  "o",       "r",
        "s", "t", "\u0120", ".", "1", "2", "th", "the", "\u0120th", "\u0120the", "in", "\u0120in"}) {
    vocab[text] = id++;
  }
  const std::string pattern =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
      "\\s+(?!\\S)|\\s+";
  const Json split =
      smollm ? Json{{"type", "Digits"}, {"individual_digits", true}}
             : Json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", smollm}};
  Json tokenizer;
  tokenizer["version"] = "1.0";
  tokenizer["added_tokens"] = {{{"id", 2}, {"content", "<|im_end|>"}, {"special", true}},
                               {{"id", 3}, {"content", "<think>"}, {"special", false}}};
  tokenizer["normalizer"] = smollm ? Json(nullptr) : Json{{"type", "NFC"}};
  tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}};
  tokenizer["decoder"] = {{"type", "ByteLevel"}};
  tokenizer["model"] = {
      {"type", "BPE"}, {"vocab", vocab}, {"merges", {"t h", "th e", "\u0120 th", "\u0120 the", "i n", "\u0120 in"}}};
  return tokenizer;
}

inline void WriteText(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// A copy of a golden model with that tokenizer and a chat template; returns its directory.
inline std::string ModelWithTokenizer(const std::string& name, const Json& tokenizer = SmallTokenizer()) {
  const std::string dir = TempDir() + "/" + name;
  std::filesystem::create_directories(dir);
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(GoldenPath("models/" + name + "/" + file), dir + "/" + file);
  }
  WriteText(dir + "/tokenizer.json", tokenizer.dump());
  WriteText(dir + "/tokenizer_config.json",
            Json{{"eos_token", "<|im_end|>"}, {"chat_template", "{{ messages }}"}}.dump());
  return dir;
}

inline std::shared_ptr<const Checkpoint> Open(const std::string& path) {
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  return checkpoint.ok() ? *checkpoint : nullptr;
}

inline std::vector<float> GoldenFloats(const std::string& file, const std::string& tensor) {
  const auto golden = SafetensorsFile::Open(GoldenPath("models/" + file));
  EXPECT_TRUE(golden.ok());
  const Tensor* found = (*golden)->Find(tensor);
  EXPECT_NE(found, nullptr) << tensor;
  return *ToFloats(*found);
}

inline std::vector<int32_t> GoldenIds(const std::string& model) {
  const auto golden = SafetensorsFile::Open(GoldenPath("models/" + model + "/golden.safetensors"));
  EXPECT_TRUE(golden.ok());
  const Tensor* found = (*golden)->Find("input_ids");
  std::vector<int32_t> ids(static_cast<size_t>(found->elements()));
  std::memcpy(ids.data(), found->data.data(), found->data.size());
  return ids;
}

// Logits of all positions in float32 with a float32 cache.
inline std::vector<float> RunLogits(const std::string& path, const std::vector<int32_t>& ids) {
  const auto checkpoint = Open(path);
  if (checkpoint == nullptr) return {};
  EngineOptions options;
  options.weights = WeightFormat::kF32;
  options.kv = KvType::kF32;
  options.threads = 1;
  auto engine = Engine::Load(checkpoint, options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  Sequence sequence = (*engine)->NewSequence();
  const StepItem item{&sequence, ids, nullptr, Rows::kAll, Rows::kNone};
  const auto output = (*engine)->Step({&item, 1});
  EXPECT_TRUE(output.ok()) << output.error().message;
  return {output->logits.begin(), output->logits.end()};
}

// L2 distance relative to the L2 norm of `want`.
inline double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double difference = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    error += difference * difference;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(error / norm);
}

}  // namespace pith::testing
