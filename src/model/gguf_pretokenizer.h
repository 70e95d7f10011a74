// What the pre-tokenizer names of GGUF files stand for.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace pith {

// GGUF files name the pre-tokenizer (tokenizer.ggml.pre) instead of describing it.
struct GgufPreTokenizer {
  std::string_view pattern;    // words are its matches; empty = those of GPT-2
  bool single_digits = false;  // each digit is a word, before the other rule
  bool nfc = false;            // text is normalized to NFC first
  bool ignore_merges = false;  // a word that is a token needs no merges
};

// kUnsupported for names that pith does not know.
Result<GgufPreTokenizer> GgufPreTokenizerByName(std::string_view name, const std::string& what);

// Token types of tokenizer.ggml.token_type.
inline constexpr int64_t kGgufControlToken = 3;
inline constexpr int64_t kGgufUserDefinedToken = 4;
inline constexpr int64_t kGgufUnusedToken = 5;

}  // namespace pith
