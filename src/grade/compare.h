// Whether two normalized trees are the same answer.
#pragma once

#include "grade/expression.h"
#include "grade/probe.h"
#include "grade/work_budget.h"

namespace pith::grade {

struct CompareOptions {
  // The first tree is the key: an inequality does not answer a key that states the solved set.
  bool directed = false;
  // A percentage is the number before its sign, and nothing else.
  bool plain_percent = false;
  // The trees have parts too large to write down: they are never said to be equal by numbers alone.
  bool too_large = false;
};

// kUnknown when a limit on work was met.
Sameness CompareTrees(const ExprPtr& gold, const ExprPtr& predicted, const CompareOptions& options, WorkBudget* budget);

// Letters and digits of a text in lower case, without articles and LaTeX commands: two texts of words with the same key
// are the same answer.
std::string WordsKey(std::string_view text);

}  // namespace pith::grade
