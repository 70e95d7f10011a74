// The tokenizer that all sources (tokenizer.json, GGUF) are built into. Private to the model room.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/pretokenizer.h"
#include "model/tokenizer.h"

namespace pith {

// Everything but the vocabulary.
struct TokenizerParts {
  std::vector<AddedToken> added;  // in the order of their ids' declaration
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  int32_t bos_id = -1;  // what add_bos puts in front
};

class BpeTokenizer final : public Tokenizer {
 public:
  // Checks the added tokens against the vocabulary. `what` names the source in errors.
  static Result<std::shared_ptr<const Tokenizer>> Make(BpeModel model, TokenizerParts parts, const std::string& what);

  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const override;
  std::string_view TokenBytes(int32_t id) const override;
  bool IsSpecial(int32_t id) const override;
  int32_t FindToken(std::string_view text) const override;
  int32_t size() const override { return size_; }
  int32_t bos_id() const override { return parts_.bos_id; }

 private:
  BpeTokenizer(BpeModel model, TokenizerParts parts) : model_(std::move(model)), parts_(std::move(parts)) {}

  class Encoding;  // one call of Encode

  BpeModel model_;
  TokenizerParts parts_;
  AddedTokenFinder raw_finder_;         // tokens looked for in the text as given
  AddedTokenFinder normalized_finder_;  // and those looked for after normalization
  std::unordered_map<int32_t, size_t> added_by_id_;
  std::unordered_map<std::string_view, size_t> added_by_content_;
  int32_t size_ = 0;
};

}  // namespace pith
