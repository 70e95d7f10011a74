// Sets of real numbers as unions of intervals with constant ends: what intervals, finite sets, their unions and
// inequalities in one variable mean.
#pragma once

#include <optional>
#include <vector>

#include "grade/expression.h"
#include "grade/probe.h"
#include "grade/work_budget.h"

namespace pith::grade {

struct RealPart {
  ExprPtr low;  // constants, "infinity" and its negative included
  ExprPtr high;
  bool low_closed = false;
  bool high_closed = false;
};
// Ordered, disjoint, and no two parts could be one.
using RealSet = std::vector<RealPart>;

// From set notation: an interval, a finite set, \mathbb R, unions, intersections and differences of them. Nothing when
// it is none, or not decided within the budget.
std::optional<RealSet> SetFromNotation(const Expr& expr, WorkBudget* budget);

// From inequalities in one symbol, which is written to `symbol`: x < 3, 1 <= 2x + 1 < 5, |x| > 2, x != 0, and lists of
// them joined by "and", "or" or commas. Nothing when it is none of these.
std::optional<RealSet> SetFromInequality(const Expr& expr, std::string* symbol, WorkBudget* budget);

}  // namespace pith::grade
