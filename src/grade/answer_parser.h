// From tokens to the tree of an answer.
#pragma once

#include "grade/expression.h"
#include "grade/latex_lexer.h"

namespace pith::grade {

struct ParseOutcome {
  ExprPtr tree;           // null when the text is no expression (words, prose, broken LaTeX)
  bool too_hard = false;  // null because a limit on size or depth was met
};

// Parses one answer: a value, a list of values, a relation, a matrix, ... or words (kText). Prose that merely contains
// numbers is not an answer and gives null.
ParseOutcome ParseAnswer(LexResult lexed);

}  // namespace pith::grade
