// A tokenizer of single bytes with the special tokens of ChatML, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/json.h"
#include "model/byte_alphabet.h"
#include "model/tokenizer.h"

namespace pith::train {

inline constexpr int32_t kEndOfText = 256;
inline constexpr int32_t kImStart = 257;
inline constexpr int32_t kImEnd = 258;

inline std::string ByteTokenizerJson() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocab[AlphabetForm(std::string_view(&c, 1))] = byte;
  }
  Json added = Json::array();
  int id = kEndOfText;
  for (const char* text : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    added.push_back({{"id", id++},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return Json({{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", added},
               {"normalizer", nullptr},
               {"pre_tokenizer", byte_level},
               {"post_processor", nullptr},
               {"decoder", byte_level},
               {"model",
                {{"type", "BPE"},
                 {"dropout", nullptr},
                 {"unk_token", nullptr},
                 {"continuing_subword_prefix", nullptr},
                 {"end_of_word_suffix", nullptr},
                 {"fuse_unk", false},
                 {"byte_fallback", false},
                 {"vocab", vocab},
                 {"merges", Json::array()}}}})
      .dump();
}

inline std::shared_ptr<const Tokenizer> ByteTokenizer() {
  auto tokenizer = Tokenizer::FromJson(ByteTokenizerJson(), "test");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return *tokenizer;
}

// The config.json of a small model on these bytes.
inline std::string ByteModelConfigJson() {
  return Json({{"model_type", "qwen2"},
               {"hidden_size", 32},
               {"intermediate_size", 64},
               {"num_hidden_layers", 2},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"vocab_size", 259},
               {"rms_norm_eps", 1e-6},
               {"max_position_embeddings", 512},
               {"rope_theta", 10000.0},
               {"tie_word_embeddings", true},
               {"eos_token_id", kEndOfText}})
      .dump();
}

}  // namespace pith::train
