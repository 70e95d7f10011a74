// The reward as a table of (correct?, length) for each budget (demand 100), and its bounds.
#include "train/reward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace pith::train {
namespace {

const std::vector<int64_t> kBudgets = {100, 200, 300, 400, 1000, 3000, 4000, 6000};

TEST(Reward, Table) {
  struct Row {
    int64_t budget, length;
    double barrier;
  };
  // m = 0.5, p = 0: 1 up to half the budget, 1/2 at it, 0 above one and a half.
  const BudgetWindow window{.half_width = 0.5, .floor = 0};
  const std::vector<Row> table = {
      {100, 0, 1},       {100, 50, 1},    {100, 75, 0.75},   {100, 100, 0.5}, {100, 125, 0.25},
      {100, 150, 0},     {100, 151, 0},   {200, 100, 1},     {200, 200, 0.5}, {200, 250, 0.25},
      {200, 301, 0},     {400, 200, 1},   {400, 300, 0.75},  {400, 400, 0.5}, {400, 600, 0},
      {1000, 1000, 0.5}, {6000, 3000, 1}, {6000, 6000, 0.5}, {6000, 9000, 0}, {6000, 9001, 0},
  };
  for (const Row& row : table) {
    EXPECT_DOUBLE_EQ(BudgetBarrier(row.length, row.budget, window), row.barrier) << row.budget << " " << row.length;
    EXPECT_EQ(BudgetReward(Verdict::kEqual, row.length, row.budget, window), row.barrier);
    // Wrong, or without an answer: 0 at any length.
    EXPECT_EQ(BudgetReward(Verdict::kDifferent, row.length, row.budget, window), 0.0);
    EXPECT_EQ(BudgetReward(Verdict::kNoAnswer, row.length, row.budget, window), 0.0);
    EXPECT_EQ(BudgetReward(Verdict::kTooHard, row.length, row.budget, window), std::nullopt);
  }
}

TEST(Reward, BoundedAndMonotone) {
  for (const double half_width : {0.0, 0.1, 0.25, 0.5, 1.0}) {
    for (const double floor : {0.0, 0.2, 1.0}) {
      const BudgetWindow window{half_width, floor};
      ASSERT_TRUE(CheckBudgetWindow(window).ok());
      for (const int64_t budget : kBudgets) {
        double before = 1;
        for (int64_t length = 0; length <= 2 * budget + 2; ++length) {
          const double barrier = BudgetBarrier(length, budget, window);
          ASSERT_LE(barrier, before) << half_width << " " << floor << " " << budget << " " << length;
          ASSERT_GE(barrier, floor);
          ASSERT_LE(barrier, 1.0);
          before = barrier;
        }
        // Half way between 1 and p at the budget itself; a window of no width is a step behind it.
        EXPECT_DOUBLE_EQ(BudgetBarrier(budget, budget, window), half_width == 0 ? 1.0 : (1 + floor) / 2);
        EXPECT_EQ(
            BudgetBarrier(static_cast<int64_t>((1 + half_width) * static_cast<double>(budget)) + 1, budget, window),
            floor);
      }
      // More budget never gives less.
      for (int64_t length = 0; length < 10000; length += 37) {
        double before = 0;
        for (const int64_t budget : kBudgets) {
          const double barrier = BudgetBarrier(length, budget, window);
          EXPECT_GE(barrier, before);
          before = barrier;
        }
      }
    }
  }
}

TEST(Reward, WindowIsChecked) {
  for (const double bad : {-0.1, 1.1, std::nan("")}) {
    EXPECT_EQ(CheckBudgetWindow({bad, 0}).error().code, ErrorCode::kInvalidArgument);
    // A negative floor would turn the product into a refund for wrong answers elsewhere.
    EXPECT_EQ(CheckBudgetWindow({0.5, bad}).error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Reward, BudgetsAreDrawnEvenlyAndRepeatably) {
  const std::vector<int64_t> budgets = {100, 200, 300, 400};
  std::map<int64_t, int> counts;
  for (uint64_t position = 0; position < 4000; ++position) {
    const int64_t budget = DrawBudget(budgets, 7, position);
    EXPECT_EQ(budget, DrawBudget(budgets, 7, position));
    ++counts[budget];
  }
  ASSERT_EQ(counts.size(), 4U);
  // Binomial with 4000 draws of 1/4: five deviations are 137.
  for (const auto& [budget, count] : counts) EXPECT_NEAR(count, 1000, 137) << budget;
  int different = 0;
  for (uint64_t position = 0; position < 100; ++position) {
    if (DrawBudget(budgets, 7, position) != DrawBudget(budgets, 8, position)) ++different;
  }
  EXPECT_GT(different, 40);
}

}  // namespace
}  // namespace pith::train
