// Brings the tree of an answer to the shape in which answers are compared.
#pragma once

#include "grade/expression.h"
#include "grade/work_budget.h"

namespace pith::grade {

// Something that stands for a quantity rather than being one: x, x_1, f(x), |AB|, A:B, a name in words.
bool IsNameLike(const Expr& expr);
// What is the same for two names of one thing: f(x) and f(n) have the same head.
std::string NameKey(const Expr& expr);
// A relation with one "=" whose left side is a name.
bool IsAssignment(const Expr& expr);

// - a chain that ends in an approximation loses it; a = b = c is a = c; a computation (2 + 3 = 5) is its result;
// - 5 = x is x = 5;
// - an expression with plus-minus is the list of its two values;
// - lists in lists are one list; a list of assignments is a list of records, of which each name occurs once;
// - a name in front of a list of values is dropped; (p, q) = (3, 2) is a record;
// - sums and products of matrices are worked out; rational parts are numbers.
// `too_large` as in FoldExact. Null when a limit is met.
ExprPtr NormalizeTree(const ExprPtr& tree, WorkBudget* budget, bool* too_large);

}  // namespace pith::grade
