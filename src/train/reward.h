// The reward of budget forcing: accuracy times a soft barrier on the length (arXiv 2603.16867, eq. 2 and 3).
//
//   low = (1 - m) B, high = (1 + m) B
//   barrier(L) = 1                                      L <= low
//              = 1 - (1 - p) (L - low) / (high - low)   low < L <= high     so that barrier(B) = (1 + p) / 2
//              = p                                      L > high
//   reward = accuracy * barrier, accuracy 0 or 1
//
// A product of two numbers in [0, 1]: a wrong response gets 0 whatever its length, a right one never less than a longer
// right one, and there is no sign by which a penalty could turn into a refund. L counts all generated tokens, thoughts,
// answer and what was forced: a penalty on the thoughts alone is avoided by thinking in the answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grade/grade.h"

namespace pith::train {

struct BudgetWindow {
  double half_width = 0.5;  // m, 0..1: half the width of the window, as a share of the budget
  double floor = 0;         // p, 0..1: what is left of the reward above the window
};

// kInvalidArgument names the field.
Status CheckBudgetWindow(const BudgetWindow& window);

// The barrier of `length` generated tokens under a budget. length >= 0, budget >= 1; in [0, 1], never rising with the
// length.
double BudgetBarrier(int64_t length, int64_t budget, const BudgetWindow& window);

// The reward; nothing when the grader could not decide (a limit on its work): such a sample is left out of the group's
// statistics, and is not taught anything.
std::optional<double> BudgetReward(Verdict verdict, int64_t length, int64_t budget, const BudgetWindow& window);

// The budget of the prompt at `position` in the order of the run: uniform over `budgets`, a pure function.
int64_t DrawBudget(const std::vector<int64_t>& budgets, uint64_t seed, uint64_t position);

}  // namespace pith::train
