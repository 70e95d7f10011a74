// Formulas and numbers in prose.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pith::grade {

struct FormulaSpan {
  size_t begin = 0;  // of the opening mark
  size_t end = 0;    // behind the closing mark
  std::string_view inside;
};

// $...$, $$...$$, \(...\), \[...\] and environments, in order. A dollar sign in front of an amount of money opens none.
std::vector<FormulaSpan> FindFormulas(std::string_view text);

// Whether a formula says more than a name: it holds a digit, a relation or a structure.
bool HoldsValue(std::string_view formula);

// Whether a text of one line is a formula without any prose, readable or not.
bool IsFormulaOnly(std::string_view text);

// The first and the last number in a text, with its sign, fraction and percent sign as written: "-3.5", "4 4/9",
// "1,000", "20%". Digits inside a word (AZ2A) are no number. Words around it are heeded (number_context.h).
std::optional<std::string> FirstNumber(std::string_view text);

// The last formula that holds a value and is an expression, or the last number, whichever stands later.
std::optional<std::string> LastFormulaOrNumber(std::string_view text);

}  // namespace pith::grade
