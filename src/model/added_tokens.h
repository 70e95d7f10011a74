// Added tokens: strings of the text that become one token each, before the text is split into words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/tokenizer.h"

namespace pith {

// One entry of "added_tokens" in tokenizer.json.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;      // e.g. <|im_end|>: not recognised in text from a user, left out of decoded text
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it
  bool single_word = false;  // only where no word character touches it
  bool normalized = false;   // looked for in the normalized text, not in the text as given
};

// A part of a text: an added token, or text to be split further (id -1).
struct Segment {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = -1;
};

// Which special tokens count in a text.
struct SpecialRule {
  bool parse = false;
  std::span<const TextRange> ranges;  // with parse: only inside one of these; empty = everywhere. Sorted, disjoint.
};

// Finds a fixed set of added tokens, at each place the longest. Immutable after Add; thread-safe.
class AddedTokenFinder {
 public:
  // Looks for `content` (of at most kMaxLength bytes, not empty) to find `token`.
  void Add(std::string_view content, const AddedToken& token);

  // Appends the parts of the text, in order. Without any token in it the text is one part; an empty text has none.
  void Find(std::string_view text, const SpecialRule& rule, std::vector<Segment>* out) const;

  bool empty() const { return entries_.empty(); }

  static constexpr size_t kMaxLength = 1024;

 private:
  struct Entry {
    int32_t id;
    bool special, lstrip, rstrip, single_word;
  };
  int32_t Child(int32_t node, uint8_t byte) const;  // -1 = none

  std::vector<int32_t> entry_of_node_{-1};       // a trie; -1 = no token ends here
  std::unordered_map<uint64_t, int32_t> edges_;  // (node << 8 | byte) -> node
  bool starts_[256] = {};
  std::vector<Entry> entries_;
};

}  // namespace pith
