#include "model/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "model/utf8.h"

namespace pith {

namespace {

bool IsWhiteSpace(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

// \w of Unicode regular expressions (UTS 18, annex C): alphabetic, marks, decimal digits, connectors, joiners.
bool IsWordCharacter(char32_t code) {
  if (code == 0x200C || code == 0x200D) return true;
  // The alphabetic symbols: circled and squared letters.
  if ((code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
      (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

// Start of the character that ends at `end` (> 0) of valid UTF-8.
size_t PreviousCharacter(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0U) == 0x80) --begin;
  return begin;
}

bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && IsWordCharacter(DecodeUtf8(text, PreviousCharacter(text, begin)).code)) return true;
  return end < text.size() && IsWordCharacter(DecodeUtf8(text, end).code);
}

bool InsideOneRange(std::span<const TextRange> ranges, size_t begin, size_t end) {
  // The first range that ends at or after `end` is the only one that can hold all of it.
  const auto range = std::lower_bound(ranges.begin(), ranges.end(), end,
                                      [](const TextRange& r, size_t value) { return r.end < value; });
  return range != ranges.end() && range->begin <= begin;
}

}  // namespace

void AddedTokenFinder::Add(std::string_view content, const AddedToken& token) {
  int32_t node = 0;
  for (const char c : content) {
    const auto [edge, added] = edges_.try_emplace((static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(c),
                                                  static_cast<int32_t>(entry_of_node_.size()));
    if (added) entry_of_node_.push_back(-1);
    node = edge->second;
  }
  starts_[static_cast<uint8_t>(content[0])] = true;
  entry_of_node_[static_cast<size_t>(node)] = static_cast<int32_t>(entries_.size());
  entries_.push_back({token.id, token.special, token.lstrip, token.rstrip, token.single_word});
}

int32_t AddedTokenFinder::Child(int32_t node, uint8_t byte) const {
  const auto edge = edges_.find((static_cast<uint64_t>(node) << 8) | byte);
  return edge == edges_.end() ? -1 : edge->second;
}

void AddedTokenFinder::Find(std::string_view text, const SpecialRule& rule, std::vector<Segment>* out) const {
  if (text.empty()) return;
  size_t done = 0;       // everything before is in `out`
  size_t white_end = 0;  // white space was seen to reach from some earlier place up to here
  size_t at = 0;
  while (at < text.size() && !entries_.empty()) {
    if (!starts_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    // With ranges, a special token outside of them is as good as unknown, so that text of a user can hide nothing that
    // the template wrote. Without, it is found and then passed over, as the tokenizers library does.
    size_t match_end = 0;
    int32_t match = -1;
    int32_t node = 0;
    for (size_t i = at; i < text.size(); ++i) {
      node = Child(node, static_cast<uint8_t>(text[i]));
      if (node < 0) break;
      const int32_t entry = entry_of_node_[static_cast<size_t>(node)];
      if (entry < 0) continue;
      if (entries_[static_cast<size_t>(entry)].special && rule.parse && !rule.ranges.empty() &&
          !InsideOneRange(rule.ranges, at, i + 1)) {
        continue;
      }
      match = entry;
      match_end = i + 1;
    }
    if (match < 0) {
      ++at;
      continue;
    }
    const Entry& entry = entries_[static_cast<size_t>(match)];
    size_t begin = at;
    size_t end = match_end;
    at = match_end;
    if (entry.special && !rule.parse) continue;
    if (entry.single_word && TouchesWord(text, begin, end)) continue;
    if (entry.lstrip) {
      while (begin > done) {
        const size_t previous = PreviousCharacter(text, begin);
        if (!IsWhiteSpace(DecodeUtf8(text, previous).code)) break;
        begin = previous;
      }
    }
    begin = std::max(begin, done);
    if (entry.rstrip) {
      if (end >= white_end) {
        white_end = end;
        while (white_end < text.size()) {
          const Utf8Character next = DecodeUtf8(text, white_end);
          if (!IsWhiteSpace(next.code)) break;
          white_end += next.length;
        }
      }
      end = std::max(end, white_end);
    }
    if (begin > done) out->push_back({done, begin, -1});
    out->push_back({std::min(begin, end), end, entry.id});
    done = end;  // may step back, into white space that a token before took along: the tokenizers library does so too
  }
  if (done < text.size()) out->push_back({done, text.size(), -1});
}

}  // namespace pith
