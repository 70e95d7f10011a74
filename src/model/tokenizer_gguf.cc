// Tokenizers from GGUF metadata ("tokenizer.ggml.*").
#include "model/bpe_tokenizer.h"
#include "model/gguf.h"
#include "model/gguf_pretokenizer.h"

namespace pith {

namespace {

Status SetPreTokenizer(const GgufPreTokenizer& source, TokenizerParts* parts) {
  PreTokenizer& pre = parts->pre_tokenizer;
  parts->nfc = source.nfc;
  if (source.single_digits) PITH_RETURN_IF_ERROR(pre.AddDigits(true));
  if (source.pattern.empty()) return pre.AddByteLevel(false, true);
  PITH_ASSIGN(auto regex, SplitRegex::Compile(source.pattern));
  pre.AddSplit(std::move(regex), SplitBehavior::kIsolated, false);
  return pre.AddByteLevel(false, false);
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromGguf(const GgufFile& gguf) {
  const std::string& what = gguf.what();
  PITH_ASSIGN(const std::string_view model, gguf.GetString("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return Error{ErrorCode::kUnsupported,
                 what + ": the tokenizer model '" + std::string(model) +
                     "' (tokenizer.ggml.model) is not supported; only gpt2, byte-level BPE, is"};
  }
  PITH_ASSIGN(const std::string_view pre, gguf.GetString("tokenizer.ggml.pre", "default"));
  PITH_ASSIGN(const GgufPreTokenizer kind, GgufPreTokenizerByName(pre, what));
  const bool ignore_merges = kind.ignore_merges;
  TokenizerParts parts;
  PITH_RETURN_IF_ERROR(SetPreTokenizer(kind, &parts));

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
    if (type == kGgufUnusedToken) continue;  // padding of the embedding table
    PITH_RETURN_IF_ERROR(builder.AddToken(tokens[id], static_cast<int64_t>(id)));
    if (type == kGgufControlToken || type == kGgufUserDefinedToken) {
      AddedToken added;
      added.content = tokens[id];
      added.id = static_cast<int32_t>(id);
      added.special = type == kGgufControlToken;
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
      return Error{ErrorCode::kMalformed,
                   what + ": tokenizer.ggml.bos_token_id " + std::to_string(bos) + " is no token"};
    }
    parts.bos_id = static_cast<int32_t>(bos);
  }
  return BpeTokenizer::Make(std::move(bpe), std::move(parts), what);
}

}  // namespace pith
