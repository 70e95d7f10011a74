// A box that is only a part of its formula: -\boxed{5} is -5, \sqrt{\boxed{5}} is a root.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace pith::grade {

// The box is text[begin, end), `inside` what it holds. Where something that counts stands before or behind it in its
// own formula, between relations and commas: that part of the formula, with the box as brackets. Nothing where the box
// stands for itself, with at most units, signs of punctuation, and words around it.
std::optional<std::string> AroundBox(std::string_view text, size_t begin, size_t end, std::string_view inside);

}  // namespace pith::grade
