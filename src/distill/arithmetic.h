// The sums that a derivation writes out: "48 / 2 = 24".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pith {

// Equations of plain numbers in a text, in their order, that are true: one or more of + - * / on the left, one number
// on the right. LaTeX's \times, \cdot, \div and \frac of two numbers, the signs of Unicode, dollar signs, thousands
// commas and units in \text{...} are read; the result is spelled plainly ("12 * 3 + 4 = 40"). False ones, and what has
// words in between, are left out. Linear in the text; at most 64 equations.
std::vector<std::string> TrueEquations(std::string_view text);

// The numbers of a text in their order, one after another the same number once, as "48 2 24": two derivations with the
// same ones take the same path. Thousands commas and zeros at the end of decimals make no difference.
std::string NumberPath(std::string_view text);

}  // namespace pith
