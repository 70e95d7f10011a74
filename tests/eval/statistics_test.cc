#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace pith {
namespace {

TEST(StatisticsTest, MeanDeviationQuantile) {
  const std::vector<double> values = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_DOUBLE_EQ(Mean(values), 5);
  EXPECT_DOUBLE_EQ(StandardDeviation(values), std::sqrt(32.0 / 7));
  EXPECT_EQ(Mean({}), 0);
  EXPECT_EQ(StandardDeviation(std::vector<double>{3}), 0);
  std::vector<double> odd = {9, 1, 5};
  EXPECT_EQ(Quantile(odd, 0.5), 5);
  std::vector<double> even = {4, 1, 3, 2};
  EXPECT_EQ(Quantile(even, 0.5), 2.5);
  EXPECT_EQ(Quantile(even, 0), 1);
  EXPECT_EQ(Quantile(even, 1), 4);
  EXPECT_DOUBLE_EQ(Quantile(even, 0.9), 3.7);
  std::vector<double> none;
  EXPECT_EQ(Quantile(none, 0.5), 0);
}

// Values of the closed form, worked out apart: for 8 of 10, (0.8 + z^2/20 -+ z sqrt(0.016 + z^2/400)) / (1 + z^2/10).
TEST(StatisticsTest, Wilson) {
  const Interval eight = WilsonInterval(8, 10);
  EXPECT_NEAR(eight.low, 0.490162, 1e-6);
  EXPECT_NEAR(eight.high, 0.943318, 1e-6);
  const Interval none = WilsonInterval(0, 20);
  EXPECT_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 0.161125, 1e-6);
  const Interval all = WilsonInterval(20, 20);
  EXPECT_NEAR(all.low, 1 - 0.161125, 1e-6);
  EXPECT_EQ(all.high, 1);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1);
}

TEST(StatisticsTest, BootstrapCoversAndRepeats) {
  std::vector<double> values;
  for (int i = 0; i < 400; ++i) values.push_back(i % 4 == 0 ? 1 : 0);
  const Interval interval = BootstrapInterval(values, 1);
  // The normal approximation gives 0.25 -+ 1.96 * sqrt(0.25 * 0.75 / 400) = 0.2076 .. 0.2924.
  EXPECT_NEAR(interval.low, 0.2076, 0.01);
  EXPECT_NEAR(interval.high, 0.2924, 0.01);
  const Interval again = BootstrapInterval(values, 1);
  EXPECT_EQ(interval.low, again.low);
  EXPECT_EQ(interval.high, again.high);
  const Interval same = BootstrapInterval(std::vector<double>{0.5, 0.5}, 1);
  EXPECT_EQ(same.low, 0.5);
  EXPECT_EQ(same.high, 0.5);
}

TEST(StatisticsTest, PassAtK) {
  EXPECT_DOUBLE_EQ(PassAtK(4, 1, 1), 0.25);
  EXPECT_DOUBLE_EQ(PassAtK(4, 1, 2), 0.5);           // 1 - C(3,2)/C(4,2) = 1 - 3/6
  EXPECT_DOUBLE_EQ(PassAtK(5, 2, 3), 1 - 1.0 / 10);  // 1 - C(3,3)/C(5,3)
  EXPECT_DOUBLE_EQ(PassAtK(4, 4, 1), 1);
  EXPECT_DOUBLE_EQ(PassAtK(4, 0, 4), 0);
  EXPECT_DOUBLE_EQ(PassAtK(4, 2, 4), 1);
}

TEST(StatisticsTest, RandomOrderIsFairAndRepeats) {
  int first[4] = {};
  for (uint64_t stream = 0; stream < 4000; ++stream) {
    auto order = RandomOrder(4, 9, stream);
    ++first[order[0]];
    EXPECT_EQ(order, RandomOrder(4, 9, stream));
    std::sort(order.begin(), order.end());
    ASSERT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
  }
  for (const int count : first) EXPECT_NEAR(count, 1000, 120);  // four standard deviations: 110
  EXPECT_TRUE(RandomOrder(0, 1, 1).empty());
}

}  // namespace
}  // namespace pith
