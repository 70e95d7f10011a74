// What the words around a number in prose make of it: "negative 5" is -5, "half of 5" is 5/2, "not 5" is no answer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pith::grade {

enum class NumberUse {
  kValue,       // the number, its sign or a multiple of it, as `text` says
  kComparison,  // "at least 5": `text` is the phrase
  kRange,       // "between 5 and 6", "either 5 or 6": `text` is the phrase, or the list
  kPart,        // a part of something else: "5 times 3", "a factor of 5"
  kDenied,      // "not 5"
};

struct NumberContext {
  NumberUse use = NumberUse::kValue;
  std::string text;
  size_t end = 0;  // of what is read, a second number included
};

// The number is text[begin, end), and `number` how it reads. Looks at a few words on either side, within its clause.
NumberContext ReadNumberContext(std::string_view text, size_t begin, size_t end, const std::string& number);

}  // namespace pith::grade
