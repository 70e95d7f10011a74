// Exact values: rational numbers of bounded size.
#pragma once

#include <gmpxx.h>

#include "grade/expression.h"
#include "grade/work_budget.h"

namespace pith::grade {

enum class ExactState : uint8_t {
  kRational,   // the value is exactly `value`
  kUndefined,  // no value: division by zero, 0^0 of limits, factorial of a negative integer
  kOther,      // symbols, radicals, transcendental functions
  kTooLarge,   // rational by its form, but larger than the limits
};

struct ExactValue {
  ExactState state = ExactState::kOther;
  mpq_class value;
};

ExactValue EvaluateExact(const Expr& expr, WorkBudget* budget);

// The tree with every part that is a rational number replaced by that number. `too_large` is set when a part is
// rational but too large to write down: a numeric comparison of such a tree must not conclude that it is equal to
// another.
ExprPtr FoldExact(const ExprPtr& expr, WorkBudget* budget, bool* too_large);

// Bits of the larger of numerator and denominator.
int64_t BitsOf(const mpq_class& value);

}  // namespace pith::grade
