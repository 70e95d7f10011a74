// The arithmetic of GRPO against TRL 0.26.2, and where TRL has traps: missing rewards, groups without variance, samples
// that are masked out, log-ratios that overflow (demands 83, 85, 86, 87, 90).
#include "train/grpo_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/json.h"
#include "support/data.h"

namespace pith::train {
namespace {

Json ReadGolden() { return Json::parse(testing::ReadFile(testing::GoldenPath("train/grpo.json"))); }

TEST(GrpoLoss, AdvantagesEqualTrl) {
  const Json golden = ReadGolden();
  for (const Json& entry : golden["advantages"]) {
    const auto scale = ParseScaleRewards(entry["scale"].get<std::string>());
    ASSERT_TRUE(scale.ok());
    const auto group = entry["group"].get<size_t>();
    const auto rewards = entry["rewards"].get<std::vector<double>>();
    for (size_t begin = 0; begin < rewards.size(); begin += group) {
      std::vector<std::optional<double>> of_group;
      for (size_t i = begin; i < begin + group; ++i) of_group.emplace_back(rewards[i]);
      const GroupAdvantages got = ComputeAdvantages(of_group, *scale);
      EXPECT_EQ(got.valid, static_cast<int64_t>(group));
      EXPECT_EQ(got.informative, !entry["zero_std"][begin].get<bool>());
      for (size_t i = 0; i < group; ++i) {
        EXPECT_NEAR(got.advantages[i], entry["advantages"][begin + i].get<double>(), 1e-12);
      }
    }
  }
}

TEST(GrpoLoss, LossAndGradientEqualTrl) {
  const Json golden = ReadGolden();
  ASSERT_EQ(golden["losses"].size(), 9U);
  for (const Json& entry : golden["losses"]) {
    GrpoLossOptions options;
    const auto type = ParseGrpoLossType(entry["type"].get<std::string>());
    ASSERT_TRUE(type.ok());
    options.type = *type;
    options.epsilon = entry["epsilon"].get<double>();
    options.epsilon_high = entry["epsilon_high"].get<double>();
    options.beta = entry["beta"].get<double>();
    options.max_completion_length = golden["max_completion_length"].get<int64_t>();
    const auto log_probs = entry["log_probs"].get<std::vector<std::vector<float>>>();
    const auto old = entry["old_log_probs"].get<std::vector<std::vector<float>>>();
    const auto reference = entry["reference"].get<std::vector<std::vector<float>>>();
    const auto want = entry["gradient"].get<std::vector<std::vector<double>>>();
    StepCounts counts;
    for (const auto& sample : log_probs) {
      ++counts.samples;
      counts.tokens += static_cast<int64_t>(sample.size());
    }
    double loss = 0;
    double kl = 0;
    double clipped = 0;
    for (size_t i = 0; i < log_probs.size(); ++i) {
      const double weight = TokenWeight(options, counts, static_cast<int64_t>(log_probs[i].size()));
      const SampleLoss got = ComputeSampleLoss({.log_probs = log_probs[i],
                                                .old_log_probs = old[i],
                                                .reference = reference[i],
                                                .importance = {},
                                                .advantage = entry["advantages"][i].get<double>()},
                                               options, weight);
      loss += got.loss;
      kl += got.kl_sum;
      clipped += static_cast<double>(got.clipped);
      for (size_t t = 0; t < want[i].size(); ++t) {
        EXPECT_NEAR(got.gradient[t], want[i][t], 1e-7 * std::abs(want[i][t]) + 1e-12) << entry["type"] << i << " " << t;
      }
    }
    // TRL's metrics are float32.
    EXPECT_NEAR(loss, entry["loss"].get<double>(), 1e-12) << entry["type"];
    const auto tokens = static_cast<double>(counts.tokens);
    if (!entry["kl"].is_null()) {
      EXPECT_NEAR(kl / tokens, entry["kl"].get<double>(), 1e-6);
    }
    EXPECT_NEAR(clipped / tokens, entry["clip_ratio"].get<double>(), 1e-6);
  }
}

// The derivative is that of the loss, also where TRL has no vectors: with weights of the rollout correction, and beyond
// the bound on exponents.
TEST(GrpoLoss, GradientIsTheDerivative) {
  GrpoLossOptions options;
  options.beta = 0.3;
  options.epsilon = 0.2;
  options.epsilon_high = 0.28;
  const std::vector<float> old = {-1.0F, -0.5F, -2.0F, -0.1F, -3.0F, -1.5F};
  const std::vector<float> reference = {-1.5F, -0.25F, -2.5F, -30.0F, -3.0F, -0.125F};
  const std::vector<float> importance = {1.0F, 0.5F, 2.0F, 1.5F, 0.25F, 3.0F};
  const std::vector<float> log_probs = {-1.0F, -0.75F, -1.0F, -0.125F, -45.0F, -1.625F};
  for (const double advantage : {0.8, -0.8}) {
    const SampleLoss whole = ComputeSampleLoss({log_probs, old, reference, importance, advantage}, options, 0.1);
    for (size_t t = 0; t < log_probs.size(); ++t) {
      // Of one token alone: the sum of all would round.
      const auto loss_at = [&](float log_prob) {
        const auto one = [t](const std::vector<float>& values) { return std::span(values).subspan(t, 1); };
        return ComputeSampleLoss({{&log_prob, 1}, one(old), one(reference), one(importance), advantage}, options, 0.1)
            .loss;
      };
      const float step = 1.0F / 1024;
      const double numeric = (loss_at(log_probs[t] + step) - loss_at(log_probs[t] - step)) / (2.0 * step);
      EXPECT_NEAR(whole.gradient[t], numeric, 1e-5 * (1 + std::abs(numeric))) << advantage << " " << t;
    }
  }
}

TEST(GrpoLoss, KlIsZeroWhereNothingChangedAndNeverOverflows) {
  for (const double log_prob : {-1e-9, -0.3, -7.25, -300.0}) {
    EXPECT_EQ(K3(log_prob, log_prob).value, 0.0);
    EXPECT_EQ(K3(log_prob, log_prob).derivative, 0.0);
  }
  // Small differences keep their digits: d^2 / 2.
  EXPECT_NEAR(K3(-1.0, -1.0 + 1e-6).value, 0.5e-12, 1e-15);
  double before = 0;
  for (const double difference : {1.0, 10.0, 19.9, 20.1, 88.0, 800.0, 1e30}) {
    const TokenKl kl = K3(-difference, 0.0);
    EXPECT_TRUE(std::isfinite(kl.value) && std::isfinite(kl.derivative));
    EXPECT_GT(kl.value, before);
    EXPECT_LT(kl.derivative, 0);  // raises the probability
    before = kl.value;
  }
  // An exploding ratio on either side: finite as floats.
  GrpoLossOptions options;
  options.beta = 1;
  const std::vector<float> tiny = {-1000.0F};
  const std::vector<float> sure = {0.0F};
  for (const double advantage : {5.0, -5.0}) {
    for (const auto& [now, then] : {std::pair(tiny, sure), std::pair(sure, tiny)}) {
      const SampleLoss loss = ComputeSampleLoss({now, then, then, {}, advantage}, options, 1.0);
      EXPECT_TRUE(std::isfinite(loss.loss) && std::isfinite(loss.gradient[0]));
    }
  }
}

TEST(GrpoLoss, MissingRewardsAreLeftOut) {
  const auto none = std::nullopt;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::optional<double>> with_holes = {1.0, none, 0.0, nan, 0.5};
  const std::vector<std::optional<double>> without = {1.0, 0.0, 0.5};
  const auto a = ComputeAdvantages(with_holes, ScaleRewards::kGroup);
  const auto b = ComputeAdvantages(without, ScaleRewards::kGroup);
  EXPECT_EQ(a.valid, 3);
  EXPECT_EQ(a.advantages, (std::vector<double>{b.advantages[0], 0, b.advantages[1], 0, b.advantages[2]}));
  EXPECT_EQ(a.deviation, 0.5);
  // One valid reward compares nothing; none at all neither.
  for (const std::vector<std::optional<double>>& group :
       {std::vector<std::optional<double>>{1.0, none, none}, {none, none}, {}}) {
    const auto few = ComputeAdvantages(group, ScaleRewards::kGroup);
    EXPECT_FALSE(few.informative);
    EXPECT_EQ(few.deviation, 0);
    for (const double advantage : few.advantages) EXPECT_EQ(advantage, 0);
  }
}

// A mean that rounds must not make equal rewards look different: 0.1 six times has a computed deviation above 0.
TEST(GrpoLoss, EqualRewardsHaveNoAdvantage) {
  for (const double reward : {0.1, 1.0 / 3, 0.7}) {
    for (const size_t count : {2U, 3U, 6U, 7U}) {
      const std::vector<std::optional<double>> group(count, reward);
      for (const ScaleRewards scale : {ScaleRewards::kGroup, ScaleRewards::kNone}) {
        const auto result = ComputeAdvantages(group, scale);
        EXPECT_FALSE(result.informative);
        for (const double advantage : result.advantages) EXPECT_EQ(advantage, 0);
      }
    }
  }
}

TEST(GrpoLoss, OptionsAreChecked) {
  GrpoLossOptions options;
  EXPECT_TRUE(CheckGrpoLoss(options).ok());
  options.epsilon = 1;
  EXPECT_FALSE(CheckGrpoLoss(options).ok());
  options = {};
  options.epsilon_high = -0.1;
  EXPECT_FALSE(CheckGrpoLoss(options).ok());
  options = {};
  options.beta = std::nan("");
  EXPECT_FALSE(CheckGrpoLoss(options).ok());
  EXPECT_FALSE(ParseGrpoLossType("ppo").ok());
  EXPECT_FALSE(ParseScaleRewards("batch").ok());
}

}  // namespace
}  // namespace pith::train
