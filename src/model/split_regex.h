// Regular expressions of pre-tokenizers, run by PCRE2 with the meaning they have in the tokenizers library (Oniguruma).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace pith {

// Rewrites a pattern so that PCRE2 gives each construct Oniguruma's meaning. Constructs whose meaning differs, or that
// pre-tokenizers have no use for (anchors, \w, \b, back references, verbs, ...), are kUnsupported and named.
//
// With `recent_letters`, \p{L} and \p{N} also cover the characters that Unicode 15 and 16 added, which Debian 12's
// PCRE2 (Unicode 14) does not know.
Result<std::string> TranslatePattern(std::string_view pattern, bool recent_letters);

// Whether valid UTF-8 holds a character that only `recent_letters` knows.
bool HasRecentLetters(std::string_view text);

// A compiled pattern. Immutable and thread-safe.
class SplitRegex {
 public:
  static Result<std::shared_ptr<const SplitRegex>> Compile(std::string_view pattern);
  // A pattern that matches `text` itself.
  static Result<std::shared_ptr<const SplitRegex>> CompileLiteral(std::string_view text);
  ~SplitRegex();
  SplitRegex(const SplitRegex&) = delete;
  SplitRegex& operator=(const SplitRegex&) = delete;

  // Searches one text after another; for one thread.
  class Searcher {
   public:
    Searcher(const SplitRegex& regex, std::string_view whole_text);
    ~Searcher();
    Searcher(const Searcher&) = delete;
    Searcher& operator=(const Searcher&) = delete;

    // Finds the first match in `piece` at or after `from`. The piece is valid UTF-8, part of the text given above, and
    // lookaround does not see beyond it. True with the range of the match; false when there is none. A pattern that
    // needs too many steps is kUnsupported.
    Result<bool> Find(std::string_view piece, size_t from, size_t* begin, size_t* end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  explicit SplitRegex(std::unique_ptr<Code> code);
  static Result<std::shared_ptr<const SplitRegex>> Make(std::string_view pattern, bool literal);
  std::unique_ptr<Code> code_;
};

}  // namespace pith
