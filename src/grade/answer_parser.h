// From tokens to the tree of an answer.
#pragma once

#include <string>
#include <vector>

#include "grade/expression.h"
#include "grade/latex_lexer.h"

namespace pith::grade {

struct ParseOutcome {
  ExprPtr tree;           // null when the text is no expression (words, prose, broken LaTeX)
  bool too_hard = false;  // null because a limit on size or depth was met
  // Names in front of an argument in brackets that were read as functions but may be factors: f(2), a(b + c).
  std::vector<std::string> heads;
  bool doubtful = false;  // one of them has an argument that is more than a number
  // A unit of one letter behind a number ("5 m"), which may be a symbol: 1, or 2 when it stands in \text.
  int letter_unit = 0;
};

struct ParseOptions {
  std::vector<std::string> factors;  // of the `heads`: those that are factors
  bool letter_units = false;         // "5 m" is a length
};

// Parses one answer: a value, a list of values, a relation, a matrix, ... or words (kText). Prose that merely contains
// numbers is not an answer and gives null.
ParseOutcome ParseAnswer(LexResult lexed, ParseOptions options = {});

}  // namespace pith::grade
