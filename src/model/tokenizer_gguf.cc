// Tokenizers from GGUF metadata ("tokenizer.ggml.*").
#include "model/bpe_tokenizer.h"
#include "model/gguf.h"

namespace pith {

namespace {

// Token types of tokenizer.ggml.token_type.
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;
constexpr int64_t kUnused = 5;

// What a name in tokenizer.ggml.pre stands for. GGUF files do not hold the pre-tokenizer itself.
struct PreKind {
  std::string_view name;
  enum { kGpt2, kDigitsAndGpt2, kQwen2, kLlama3 } kind;
};
constexpr PreKind kPreKinds[] = {
    {"gpt-2", PreKind::kGpt2},       {"smollm", PreKind::kDigitsAndGpt2}, {"qwen2", PreKind::kQwen2},
    {"llama-bpe", PreKind::kLlama3}, {"llama3", PreKind::kLlama3},        {"llama-v3", PreKind::kLlama3}};

// The patterns of the Qwen2 and Llama 3 tokenizers differ in how many digits stay together.
constexpr std::string_view kQwen2Pattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+";
constexpr std::string_view kLlama3Pattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

Status SetPreTokenizer(std::string_view name, const std::string& what, TokenizerParts* parts, bool* ignore_merges) {
  const PreKind* found = nullptr;
  for (const PreKind& kind : kPreKinds) {
    if (kind.name == name) found = &kind;
  }
  if (found == nullptr) {
    return Error{ErrorCode::kUnsupported, what + ": the pre-tokenizer '" + std::string(name) +
                                              "' (tokenizer.ggml.pre) is not supported; supported are gpt-2, smollm, "
                                              "qwen2, llama-bpe"};
  }
  PreTokenizer& pre = parts->pre_tokenizer;
  switch (found->kind) {
    case PreKind::kGpt2: return pre.AddByteLevel(false, true);
    case PreKind::kDigitsAndGpt2:
      PITH_RETURN_IF_ERROR(pre.AddDigits(true));
      return pre.AddByteLevel(false, true);
    case PreKind::kQwen2:
    case PreKind::kLlama3: {
      const bool llama = found->kind == PreKind::kLlama3;
      PITH_ASSIGN(auto regex, SplitRegex::Compile(llama ? kLlama3Pattern : kQwen2Pattern));
      pre.AddSplit(std::move(regex), SplitBehavior::kIsolated, false);
      parts->nfc = !llama;
      *ignore_merges = llama;
      return pre.AddByteLevel(false, false);
    }
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromGguf(const GgufFile& gguf) {
  const std::string& what = gguf.what();
  PITH_ASSIGN(const std::string_view model, gguf.GetString("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return Error{ErrorCode::kUnsupported, what + ": the tokenizer model '" + std::string(model) +
                                              "' (tokenizer.ggml.model) is not supported; only gpt2, byte-level BPE, is"};
  }
  PITH_ASSIGN(const std::string_view pre, gguf.GetString("tokenizer.ggml.pre", "default"));
  TokenizerParts parts;
  bool ignore_merges = false;
  PITH_RETURN_IF_ERROR(SetPreTokenizer(pre, what, &parts, &ignore_merges));

  PITH_ASSIGN(const auto tokens, gguf.GetStrings("tokenizer.ggml.tokens"));
  PITH_ASSIGN(const auto merges, gguf.GetStrings("tokenizer.ggml.merges"));
  std::vector<int64_t> types;
  if (gguf.Has("tokenizer.ggml.token_type")) {
    PITH_ASSIGN(types, gguf.GetInts("tokenizer.ggml.token_type"));
    if (types.size() != tokens.size()) {
      return Error{ErrorCode::kMalformed, what + ": tokenizer.ggml.token_type has " + std::to_string(types.size()) +
                                              " entries for " + std::to_string(tokens.size()) + " tokens"};
    }
  }
  size_t bytes = 0;
  for (const auto& token : tokens) bytes += token.size();
  for (const auto& merge : merges) bytes += merge.size();
  BpeBuilder builder(what);
  builder.Reserve(tokens.size(), merges.size(), bytes);
  for (size_t id = 0; id < tokens.size(); ++id) {
    const int64_t type = types.empty() ? 1 : types[id];
    if (type == kUnused) continue;  // padding of the embedding table
    PITH_RETURN_IF_ERROR(builder.AddToken(tokens[id], static_cast<int64_t>(id)));
    if (type == kControl || type == kUserDefined) {
      AddedToken added;
      added.content = tokens[id];
      added.id = static_cast<int32_t>(id);
      added.special = type == kControl;
      parts.added.push_back(std::move(added));
    }
  }
  for (const auto& merge : merges) PITH_RETURN_IF_ERROR(builder.AddMergeLine(merge));
  PITH_ASSIGN(BpeModel bpe, std::move(builder).Build(ignore_merges));

  // Llama 3 files may leave the flag out; its tokenizer always adds BOS.
  PITH_ASSIGN(const bool add_bos, gguf.GetBool("tokenizer.ggml.add_bos_token", ignore_merges));
  if (add_bos) {
    PITH_ASSIGN(const int64_t bos, gguf.GetInt("tokenizer.ggml.bos_token_id"));
    if (bos < 0 || bos >= static_cast<int64_t>(tokens.size())) {
      return Error{ErrorCode::kMalformed, what + ": tokenizer.ggml.bos_token_id " + std::to_string(bos) + " is no token"};
    }
    parts.bos_id = static_cast<int32_t>(bos);
  }
  return BpeTokenizer::Make(std::move(bpe), std::move(parts), what);
}

}  // namespace pith
