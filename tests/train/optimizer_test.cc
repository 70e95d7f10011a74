// Schedules, clipping, and AdamW over several steps against its definition in double.
#include "train/optimizer.h"

#include "train_test.h"

namespace pith::train {
namespace {

TEST(Schedule, WarmsUpAndFallsAsTransformersDoes) {
  Schedule cosine{ScheduleKind::kCosine, 10, 110};
  EXPECT_DOUBLE_EQ(cosine.Factor(0), 0.0);
  EXPECT_DOUBLE_EQ(cosine.Factor(5), 0.5);
  EXPECT_DOUBLE_EQ(cosine.Factor(10), 1.0);
  EXPECT_DOUBLE_EQ(cosine.Factor(60), 0.5);
  EXPECT_NEAR(cosine.Factor(110), 0.0, 1e-12);
  Schedule linear{ScheduleKind::kLinear, 0, 4};
  EXPECT_DOUBLE_EQ(linear.Factor(0), 1.0);
  EXPECT_DOUBLE_EQ(linear.Factor(3), 0.25);
  Schedule constant{ScheduleKind::kConstant, 2, 4};
  EXPECT_DOUBLE_EQ(constant.Factor(1), 0.5);
  EXPECT_DOUBLE_EQ(constant.Factor(4000), 1.0);
  EXPECT_EQ(ParseSchedule("polynomial").error().code, ErrorCode::kInvalidArgument);
}

TEST(Clipping, BringsTheNormDown) {
  EXPECT_DOUBLE_EQ(ClipFactor(0.5, 1.0), 1.0);
  EXPECT_NEAR(ClipFactor(4.0, 1.0), 0.25, 1e-6);
  EXPECT_DOUBLE_EQ(ClipFactor(4.0, 0.0), 1.0);
}

struct Numbers {
  std::vector<float> value, gradient;
  std::vector<Parameter> parameters;
  Numbers() : value{1.0F, -2.0F, 0.5F}, gradient(3) {
    parameters.push_back({"matrix", {2}, std::span(value).first(2), std::span(gradient).first(2), true});
    parameters.push_back({"bias", {1}, std::span(value).subspan(2), std::span(gradient).subspan(2), false});
  }
  void SetGradient(int step) {
    for (size_t i = 0; i < 3; ++i) gradient[i] = std::sin(static_cast<float>(step * 3 + static_cast<int>(i)));
  }
};

TEST(AdamW, StepsEqualTheDefinition) {
  Numbers numbers;
  AdamW optimizer(numbers.parameters, {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1});
  std::vector<double> value = {1.0, -2.0, 0.5}, m(3, 0.0), v(3, 0.0);
  for (int step = 1; step <= 20; ++step) {
    numbers.SetGradient(step);
    const double rate = 0.01 * step;
    for (size_t i = 0; i < 3; ++i) {
      const double g = 0.5 * static_cast<double>(numbers.gradient[i]);
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      if (i < 2) value[i] -= rate * 0.1 * value[i];
      value[i] -= rate * (m[i] / (1 - std::pow(0.9, step))) / (std::sqrt(v[i] / (1 - std::pow(0.95, step))) + 1e-6);
    }
    optimizer.Step(rate, 0.5);
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(static_cast<double>(numbers.value[i]), value[i], 1e-5);
}

TEST(AdamW, GoesOnFromItsState) {
  Numbers whole;
  AdamW straight(whole.parameters, {});
  Numbers cut;
  AdamW first(cut.parameters, {});
  for (int step = 1; step <= 5; ++step) {
    whole.SetGradient(step);
    straight.Step(0.1);
    cut.SetGradient(step);
    first.Step(0.1);
  }
  AdamW second(cut.parameters, {});
  ASSERT_TRUE(second.Restore(first.steps(), first.first(), first.second()).ok());
  for (int step = 6; step <= 9; ++step) {
    whole.SetGradient(step);
    straight.Step(0.1);
    cut.SetGradient(step);
    second.Step(0.1);
  }
  EXPECT_EQ(cut.value, whole.value);
  EXPECT_FALSE(second.Restore(1, {1.0F}, {1.0F}).ok());
}

TEST(GradientNorm, IsOverAllParameters) {
  Numbers numbers;
  numbers.gradient = {2.0F, -1.0F, 2.0F};
  EXPECT_DOUBLE_EQ(GradientNorm(numbers.parameters), 3.0);
  numbers.gradient[1] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(GradientNorm(numbers.parameters)));
}

}  // namespace
}  // namespace pith::train
