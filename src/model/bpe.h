// The model part of a byte-level BPE tokenizer: vocabulary, merges, and the splitting of one word into tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/string_table.h"

namespace pith {

// Memory that one encoding reuses from word to word.
struct BpeScratch {
  std::vector<int32_t> ids;
  std::vector<uint32_t> ranks;
  std::vector<int32_t> merged;
  std::vector<uint32_t> next, previous;
  std::vector<uint64_t> heap;
};

// Immutable and thread-safe.
class BpeModel {
 public:
  BpeModel(BpeModel&&) = default;
  BpeModel& operator=(BpeModel&&) = default;
  BpeModel(const BpeModel&) = delete;  // large
  BpeModel& operator=(const BpeModel&) = delete;

  // Appends the tokens of one word, given as raw bytes (shorter than 2^31). Merges are applied in order of rank,
  // leftmost first, in O(n log n). Bytes without a token of their own are dropped, as the tokenizers library does.
  void Encode(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* out) const;

  int32_t size() const { return static_cast<int32_t>(byte_ranges_.size()); }  // highest id + 1
  // Raw bytes of a token. Forms with characters outside the byte alphabet stand for their own text. Empty for no token.
  std::string_view TokenBytes(int32_t id) const;
  // Id of a token by its vocabulary form ("Ġthe"), or -1.
  int32_t FindForm(std::string_view form) const { return by_form_.Find(form, forms()); }
  // Whether each of the 256 bytes is a token, so that no text loses bytes.
  bool CoversAllBytes() const;

 private:
  friend class BpeBuilder;
  BpeModel() = default;

  struct MergeSlot {
    uint64_t pair = kNoPair;  // left id in the upper half
    uint32_t rank = 0;
    int32_t id = 0;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static constexpr uint32_t kNoRank = ~uint32_t{0};

  const MergeSlot* FindMerge(int32_t left, int32_t right) const;  // null if the pair does not merge
  void MergeShort(BpeScratch* scratch, std::vector<int32_t>* out) const;
  void MergeLong(BpeScratch* scratch, std::vector<int32_t>* out) const;

  StringTable::Strings forms() const { return {form_arena_.data(), &form_ranges_}; }
  StringTable::Strings bytes() const { return {byte_arena_.data(), &byte_ranges_}; }

  std::vector<char> form_arena_;                 // vocabulary forms
  std::vector<char> byte_arena_;                 // raw bytes
  std::vector<StringTable::Range> form_ranges_;  // by id
  std::vector<StringTable::Range> byte_ranges_;  // by id
  StringTable by_form_;
  StringTable by_bytes_;  // only with ignore_merges
  std::vector<MergeSlot> merges_;
  int merge_shift_ = 63;
  int32_t byte_ids_[256];
  bool ignore_merges_ = false;
};

// Collects a vocabulary and its merges, then checks and indexes them.
class BpeBuilder {
 public:
  // `what` names the source in errors.
  explicit BpeBuilder(std::string what) : what_(std::move(what)) {}

  void Reserve(size_t tokens, size_t merges, size_t bytes);
  // A token in vocabulary form. Ids may come in any order, below kMaxTokens.
  Status AddToken(std::string_view form, int64_t id);
  // Merges in order of rank.
  Status AddMerge(std::string_view left, std::string_view right);
  // "left right", as in merges.txt.
  Status AddMergeLine(std::string_view line);

  // `ignore_merges`: a word that is a token as a whole is not split (Llama 3). kMalformed for an empty vocabulary,
  // duplicates, and merges whose parts or result are no tokens.
  Result<BpeModel> Build(bool ignore_merges) &&;

  static constexpr int64_t kMaxTokens = int64_t{1} << 22;

 private:
  Error Malformed(const std::string& message) const { return {ErrorCode::kMalformed, what_ + ": " + message}; }

  Status IndexTokens(BpeModel* model);
  Status IndexMerges(BpeModel* model);
  // Adds bytes to the arena; false when it would grow beyond 4 GiB.
  bool Store(std::string_view text);

  struct Token {
    StringTable::Range form;
    int32_t id;
  };
  struct Merge {
    uint32_t begin;
    uint32_t left_size, right_size;
  };
  std::string what_;
  std::vector<char> arena_;
  std::vector<Token> tokens_;
  std::vector<Merge> merges_;
};

}  // namespace pith
