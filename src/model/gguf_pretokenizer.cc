#include "model/gguf_pretokenizer.h"

namespace pith {

namespace {

// The patterns of the Qwen2 and Llama 3 tokenizers differ in how many digits stay together.
constexpr std::string_view kQwen2Pattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+";
constexpr std::string_view kLlama3Pattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

}  // namespace

Result<GgufPreTokenizer> GgufPreTokenizerByName(std::string_view name, const std::string& what) {
  GgufPreTokenizer pre;
  if (name == "gpt-2") return pre;
  if (name == "smollm") {
    pre.single_digits = true;
    return pre;
  }
  if (name == "qwen2") {
    pre.pattern = kQwen2Pattern;
    pre.nfc = true;
    return pre;
  }
  if (name == "llama-bpe" || name == "llama3" || name == "llama-v3") {
    pre.pattern = kLlama3Pattern;
    pre.ignore_merges = true;
    return pre;
  }
  return Error{ErrorCode::kUnsupported, what + ": the pre-tokenizer '" + std::string(name.substr(0, 40)) +
                                            "' (tokenizer.ggml.pre) is not supported; supported are gpt-2, smollm, "
                                            "qwen2, llama-bpe"};
}

}  // namespace pith
