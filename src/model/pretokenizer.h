// Splitting of text into the words that byte-level BPE works on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/split_regex.h"

namespace pith {

// What happens to the matches of a split (the names are those of tokenizer.json).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A piece of a text: bytes [begin, end).
struct Piece {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// A chain of splitting steps, each applied to every piece of the one before. Immutable after its steps are added;
// thread-safe.
class PreTokenizer {
 public:
  // `invert`: the pattern describes what lies between the matches.
  void AddSplit(std::shared_ptr<const SplitRegex> regex, SplitBehavior behavior, bool invert);
  // Splits digits off, each alone or in runs.
  Status AddDigits(bool individual);
  // GPT-2's own pattern (`use_regex`), and a space in front of every piece that has none (`add_prefix_space`).
  Status AddByteLevel(bool add_prefix_space, bool use_regex);

  // Splits valid UTF-8 of at most kMaxText bytes. `pieces` are ranges of `*text`, which points to the given text, or to
  // `*storage` where spaces had to be added. No piece is empty.
  Status Split(std::string_view* text, std::string* storage, std::vector<Piece>* pieces) const;

  static constexpr size_t kMaxText = size_t{1} << 30;

 private:
  struct Step {
    std::shared_ptr<const SplitRegex> regex;  // null: no splitting
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    bool add_prefix_space = false;  // before the split
  };
  std::vector<Step> steps_;
};

}  // namespace pith
