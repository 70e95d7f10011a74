#include "model/bpe_tokenizer.h"

#include <algorithm>

#include "model/normalizer.h"
#include "model/utf8.h"

namespace pith {

namespace {

// Valid UTF-8 made of any bytes, and where the special ranges lie in it.
struct CleanText {
  std::string replaced;  // the text with U+FFFD for invalid bytes; unused when it was valid
  bool valid = true;
  std::vector<TextRange> ranges;
};

Result<CleanText> Clean(std::string_view text, std::span<const TextRange> ranges) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].begin > ranges[i].end || ranges[i].end > text.size() ||
        (i > 0 && ranges[i].begin < ranges[i - 1].end)) {
      return Error{ErrorCode::kInvalidArgument, "special_ranges are not sorted, disjoint ranges of the text"};
    }
  }
  CleanText clean;
  clean.ranges.assign(ranges.begin(), ranges.end());
  if (IsValidUtf8(text)) return clean;
  clean.valid = false;
  // Range boundaries are met in order: 2i is the begin of range i, 2i + 1 its end.
  size_t boundary = 0;
  const auto map_boundaries = [&](size_t up_to) {
    for (; boundary < 2 * ranges.size(); ++boundary) {
      const TextRange& range = ranges[boundary / 2];
      const bool is_begin = boundary % 2 == 0;
      if ((is_begin ? range.begin : range.end) > up_to) return;
      TextRange& mapped = clean.ranges[boundary / 2];
      (is_begin ? mapped.begin : mapped.end) = clean.replaced.size();
    }
  };
  clean.replaced.reserve(text.size() + text.size() / 2);
  for (size_t i = 0; i < text.size();) {
    map_boundaries(i);
    const Utf8Character character = DecodeUtf8(text, i);
    if (character.state == Utf8State::kValid) {
      clean.replaced += text.substr(i, character.length);
    } else {
      clean.replaced += kReplacementUtf8;
    }
    i += character.length;
  }
  map_boundaries(text.size());
  return clean;
}

// Remembers the words of one text. Direct-mapped, so its size is bounded. An entry says where in the output the ids of
// a word stand; it does not hold the word, because the bytes of those ids are the word.
class WordCache {
 public:
  explicit WordCache(size_t text_size) : entries_(text_size < kMinText ? 0 : kEntries) {}

  struct Entry {
    uint32_t tag = 0;
    uint32_t count = 0;  // of ids; 0 = free
    size_t first = 0;    // index of the first id in the output
  };

  // The entry where a word belongs, with the tag it would have there; null for words that are not worth keeping.
  Entry* Find(std::string_view word, uint32_t* tag) {
    if (entries_.empty() || word.size() > kMaxWord) return nullptr;
    uint64_t hash = word.size();
    for (const char c : word) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
    hash *= 0x9E3779B97F4A7C15ULL;
    *tag = static_cast<uint32_t>(hash);
    return &entries_[static_cast<size_t>(hash >> 48) & (kEntries - 1)];
  }

 private:
  static constexpr size_t kMinText = 512;
  static constexpr size_t kEntries = 8192;
  static constexpr size_t kMaxWord = 64;
  std::vector<Entry> entries_;
};

}  // namespace

class BpeTokenizer::Encoding {
 public:
  Encoding(const BpeModel& model, const PreTokenizer& pre_tokenizer, size_t text_size, std::vector<int32_t>* out)
      : model_(model), pre_tokenizer_(pre_tokenizer), cache_(text_size), out_(out) {}

  // Normalized text without added tokens.
  Status EncodePlain(std::string_view text) {
    PITH_RETURN_IF_ERROR(pre_tokenizer_.Split(&text, &spaced_, &pieces_));
    for (const Piece& piece : pieces_) EncodeWord(text.substr(piece.begin, piece.end - piece.begin));
    return {};
  }

 private:
  void EncodeWord(std::string_view word) {
    uint32_t tag = 0;
    WordCache::Entry* entry = cache_.Find(word, &tag);
    if (entry != nullptr && entry->tag == tag && Holds(*entry, word)) {
      for (uint32_t i = 0; i < entry->count; ++i) out_->push_back((*out_)[entry->first + i]);
      return;
    }
    const size_t first = out_->size();
    model_.Encode(word, &scratch_, out_);
    if (entry != nullptr) *entry = {tag, static_cast<uint32_t>(out_->size() - first), first};
  }

  bool Holds(const WordCache::Entry& entry, std::string_view word) const {
    size_t at = 0;
    for (uint32_t i = 0; i < entry.count; ++i) {
      const std::string_view bytes = model_.TokenBytes((*out_)[entry.first + i]);
      if (word.substr(at, bytes.size()) != bytes) return false;
      at += bytes.size();
    }
    return entry.count > 0 && at == word.size();
  }

  const BpeModel& model_;
  const PreTokenizer& pre_tokenizer_;
  WordCache cache_;
  std::vector<int32_t>* out_;
  std::string spaced_;
  std::vector<Piece> pieces_;
  BpeScratch scratch_;
};

Result<std::shared_ptr<const Tokenizer>> BpeTokenizer::Make(BpeModel model, TokenizerParts parts,
                                                            const std::string& what) {
  std::shared_ptr<BpeTokenizer> tokenizer(new BpeTokenizer(std::move(model), std::move(parts)));
  const TokenizerParts& own = tokenizer->parts_;
  tokenizer->size_ = tokenizer->model_.size();
  for (size_t i = 0; i < own.added.size(); ++i) {
    const AddedToken& token = own.added[i];
    const std::string name = what + ": added token '" + token.content.substr(0, 64) + "'";
    if (token.content.empty() || token.content.size() > AddedTokenFinder::kMaxLength || !IsValidUtf8(token.content)) {
      return Error{ErrorCode::kUnsupported, name + " is empty, not UTF-8 or longer than 1024 bytes"};
    }
    if (token.id < 0 || token.id >= BpeBuilder::kMaxTokens) {
      return Error{ErrorCode::kMalformed, name + " has the id " + std::to_string(token.id) + ", which is out of range"};
    }
    const int32_t in_model = tokenizer->model_.FindForm(token.content);
    if (in_model >= 0 ? in_model != token.id : !tokenizer->model_.TokenBytes(token.id).empty()) {
      return Error{ErrorCode::kMalformed,
                   name + " has the id " + std::to_string(token.id) + ", but the vocabulary gives " +
                       (in_model >= 0 ? "it " + std::to_string(in_model) : "that id to another token")};
    }
    if (!tokenizer->added_by_content_.emplace(token.content, i).second ||
        !tokenizer->added_by_id_.emplace(token.id, i).second) {
      return Error{ErrorCode::kMalformed, name + " or its id occurs twice"};
    }
    tokenizer->size_ = std::max(tokenizer->size_, token.id + 1);
    if (token.normalized) {
      const std::string content = own.nfc ? NormalizeNfc(token.content) : token.content;
      tokenizer->normalized_finder_.Add(content, token);
    } else {
      tokenizer->raw_finder_.Add(token.content, token);
    }
  }
  if (own.bos_id >= 0 && tokenizer->TokenBytes(own.bos_id).empty()) {
    return Error{ErrorCode::kMalformed,
                 what + ": the id " + std::to_string(own.bos_id) + " for the begin of a text is no token"};
  }
  return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
}

Result<std::vector<int32_t>> BpeTokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > PreTokenizer::kMaxText / 4) {
    return Error{ErrorCode::kInvalidArgument,
                 "a text of " + std::to_string(text.size()) + " bytes is too long to tokenize"};
  }
  PITH_ASSIGN(const CleanText cleaned,
              Clean(text, options.parse_special ? options.special_ranges : std::span<const TextRange>()));
  const std::string_view clean = cleaned.valid ? text : cleaned.replaced;
  std::vector<int32_t> ids;
  ids.reserve(clean.size() / 3 + 8);
  if (options.add_bos && parts_.bos_id >= 0) ids.push_back(parts_.bos_id);

  Encoding encoding(model_, parts_.pre_tokenizer, clean.size(), &ids);
  std::vector<Segment> segments;
  raw_finder_.Find(clean, {options.parse_special, cleaned.ranges}, &segments);
  std::vector<Segment> inner;
  std::vector<TextRange> inner_ranges;
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    const std::string_view part = clean.substr(segment.begin, segment.end - segment.begin);
    std::string normalized;
    std::string_view normal = part;
    if (parts_.nfc && !IsTriviallyNfc(part)) {
      normalized = NormalizeNfc(part);
      normal = normalized;
    }
    if (normalized_finder_.empty()) {
      PITH_RETURN_IF_ERROR(encoding.EncodePlain(normal));
      continue;
    }
    // Where normalization moved the bytes, the ranges are known only as all or nothing.
    SpecialRule rule{options.parse_special, {}};
    if (options.parse_special && !cleaned.ranges.empty()) {
      inner_ranges.clear();
      for (const TextRange& range : cleaned.ranges) {
        const size_t begin = std::max(range.begin, segment.begin);
        const size_t end = std::min(range.end, segment.end);
        if (begin < end) inner_ranges.push_back({begin - segment.begin, end - segment.begin});
      }
      if (normal != part) {
        const bool all = inner_ranges.size() == 1 && inner_ranges[0].begin == 0 && inner_ranges[0].end == part.size();
        inner_ranges.clear();
        if (all) inner_ranges.push_back({0, normal.size()});
      }
      rule.ranges = inner_ranges;
      if (inner_ranges.empty()) rule.parse = false;
    }
    inner.clear();
    normalized_finder_.Find(normal, rule, &inner);
    for (const Segment& piece : inner) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
      } else {
        PITH_RETURN_IF_ERROR(encoding.EncodePlain(normal.substr(piece.begin, piece.end - piece.begin)));
      }
    }
  }
  return ids;
}

std::string_view BpeTokenizer::TokenBytes(int32_t id) const {
  const auto added = added_by_id_.find(id);
  return added == added_by_id_.end() ? model_.TokenBytes(id) : parts_.added[added->second].content;
}

bool BpeTokenizer::IsSpecial(int32_t id) const {
  const auto added = added_by_id_.find(id);
  return added != added_by_id_.end() && parts_.added[added->second].special;
}

int32_t BpeTokenizer::FindToken(std::string_view text) const {
  const auto added = added_by_content_.find(text);
  return added == added_by_content_.end() ? model_.FindForm(text) : parts_.added[added->second].id;
}

}  // namespace pith
