#include "heads/head_metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "heads/head_net.h"

namespace pith::heads {
namespace {

TEST(AreaUnderCurveTest, CountsPairs) {
  const std::vector<double> scores = {0.1, 0.4, 0.35, 0.8};
  const std::vector<float> labels = {0, 0, 1, 1};
  EXPECT_DOUBLE_EQ(*AreaUnderCurve(scores, labels), 0.75);  // scikit-learn's own example
  EXPECT_DOUBLE_EQ(*AreaUnderCurve(std::vector<double>(4, 0.5), labels), 0.5);
  EXPECT_DOUBLE_EQ(*AreaUnderCurve(std::vector<double>{1, 0, 0, 0}, labels), 0.25);  // (0 + 0.5 + 0 + 0.5) / 4
  EXPECT_FALSE(AreaUnderCurve(scores, std::vector<float>(4, 1.0F)).has_value());
}

TEST(MeasureScoresTest, ByHand) {
  const std::vector<double> scores = {0.9, 0.8, 0.3, 0.05};
  const std::vector<float> labels = {1, 0, 1, 0};
  const ScoreMetrics m = MeasureScores(scores, labels);
  EXPECT_EQ(m.rows, 4);
  EXPECT_EQ(m.positives, 2);
  EXPECT_DOUBLE_EQ(m.accuracy, 0.5);
  EXPECT_NEAR(m.brier, (0.01 + 0.64 + 0.49 + 0.0025) / 4, 1e-12);
  EXPECT_NEAR(m.log_loss, -(std::log(0.9) + std::log(0.2) + std::log(0.3) + std::log(0.95)) / 4, 1e-12);
  // Bins 9, 8, 3 and 0 hold a row each.
  EXPECT_NEAR(m.ece, (0.1 + 0.8 + 0.7 + 0.05) / 4, 1e-12);
  EXPECT_EQ(MeasureScores({}, {}).rows, 0);
  EXPECT_DOUBLE_EQ(MeasureScores(std::vector<double>{1.0}, std::vector<float>{1}).ece, 0.0);  // the last bin has 1
}

TEST(ThresholdTest, RowsAndRecall) {
  const std::vector<double> scores = {0.9, 0.7, 0.6, 0.2};
  const std::vector<float> labels = {1, 0, 1, 0};
  const ThresholdRow row = AtThreshold(scores, labels, 0.65);
  EXPECT_DOUBLE_EQ(row.share, 0.5);
  EXPECT_DOUBLE_EQ(*row.recall, 0.5);
  EXPECT_DOUBLE_EQ(*row.precision, 0.5);
  EXPECT_DOUBLE_EQ(row.accuracy, 0.5);
  EXPECT_DOUBLE_EQ(*AtThreshold(scores, labels, 0.7).precision, 0.5);  // the threshold itself is chosen
  EXPECT_FALSE(AtThreshold(scores, labels, 0.95).precision.has_value());
  const auto table = ThresholdTable(scores, labels);
  ASSERT_EQ(table.size(), 19U);
  for (size_t i = 1; i < table.size(); ++i) EXPECT_LE(table[i].share, table[i - 1].share);
  EXPECT_DOUBLE_EQ(ThresholdForRecall(scores, labels, 0.5), 0.9);
  EXPECT_DOUBLE_EQ(ThresholdForRecall(scores, labels, 0.51), 0.6);
  EXPECT_DOUBLE_EQ(ThresholdForRecall(scores, labels, 1), 0.6);
}

TEST(CalibrationTest, FindsTheLineThatMadeTheLabels) {
  std::vector<double> logits;
  std::vector<float> labels;
  for (uint64_t i = 0; i < 40000; ++i) {
    const double z = 6 * RandomUniform(1, 0, i) - 3;
    logits.push_back(z);
    labels.push_back(RandomUniform(1, 1, i) < Sigmoid(0.5 * z - 0.8) ? 1.0F : 0.0F);
  }
  const Calibration platt = FitCalibration(logits, labels, false);
  EXPECT_NEAR(platt.scale, 0.5, 0.03);
  EXPECT_NEAR(platt.offset, -0.8, 0.03);
  const Calibration temperature = FitCalibration(logits, labels, true);
  EXPECT_EQ(temperature.offset, 0);
  // At the optimum of one parameter, the sum of logit * error is zero.
  double slope = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    slope += logits[i] * (Sigmoid(temperature.scale * logits[i]) - static_cast<double>(labels[i]));
  }
  EXPECT_NEAR(slope / static_cast<double>(logits.size()), 0, 1e-3);
}

TEST(CalibrationTest, SeparableAndUselessScores) {
  const std::vector<double> apart = {-2, -1, 1, 2};
  const std::vector<float> labels = {0, 0, 1, 1};
  const Calibration fit = FitCalibration(apart, labels, false);
  EXPECT_TRUE(std::isfinite(fit.scale));
  EXPECT_GT(fit.scale, 0);
  EXPECT_LT(fit.scale, 10);
  // Scores the wrong way round, all the same, or one class: nothing is changed.
  EXPECT_EQ(FitCalibration(std::vector<double>{2, 1, -1, -2}, labels, false).scale, 1);
  EXPECT_EQ(FitCalibration(apart, std::vector<float>(4, 1.0F), false).scale, 1);
  const Calibration flat = FitCalibration(std::vector<double>(4, 3.0), labels, false);
  EXPECT_TRUE(std::isfinite(flat.scale) && std::isfinite(flat.offset));
  EXPECT_NEAR(Sigmoid(3 * flat.scale + flat.offset), 0.5, 1e-3);
}

}  // namespace
}  // namespace pith::heads
