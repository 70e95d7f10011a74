#include "engine/sampler.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/json.h"
#include "base/random.h"
#include "support/data.h"

namespace pith {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Sampler Make(const SamplingParams& params) {
  auto sampler = Sampler::Create(params);
  EXPECT_TRUE(sampler.ok());
  return std::move(sampler).value();
}

std::vector<float> RandomLogits(size_t n, uint64_t seed, double scale) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(scale * std::sqrt(-2.0 * std::log(1.0 - RandomUniform(seed, 0, i))) *
                              std::cos(6.283185307179586 * RandomUniform(seed, 1, i)));
  }
  return x;
}

TEST(SamplerTest, EveryParameterIsValidated) {
  struct Case {
    const char* name;
    SamplingParams params;
  };
  const double nan = std::nan(""), inf = HUGE_VAL;
  std::vector<Case> cases;
  for (const double bad : {-1.0, -1e-9, 1e-6, 100.5, 1e30, nan, inf, -inf})
    cases.push_back({"temperature", {.temperature = bad}});
  for (const int64_t bad : {int64_t{-1}, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                            (int64_t{1} << 30) + 1}) {
    cases.push_back({"top_k", {.top_k = bad}});
  }
  for (const double bad : {-0.1, 1.0000001, 90.0, nan, inf}) {
    cases.push_back({"top_p", {.top_p = bad}});
    cases.push_back({"min_p", {.min_p = bad}});
  }
  for (const double bad : {0.0, -1.1, 0.009, 101.0, nan, inf})
    cases.push_back({"repetition_penalty", {.repetition_penalty = bad}});
  for (const auto& c : cases) {
    const auto sampler = Sampler::Create(c.params);
    ASSERT_FALSE(sampler.ok()) << c.name;
    EXPECT_EQ(sampler.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(sampler.error().message.rfind(c.name, 0), 0u) << sampler.error().message;
  }
  for (const SamplingParams& good :
       {SamplingParams{}, SamplingParams{.temperature = 0.0}, SamplingParams{.temperature = 1e-5},
        SamplingParams{
            .temperature = 100.0, .top_k = int64_t{1} << 30, .top_p = 0.0, .min_p = 1.0, .repetition_penalty = 0.01}}) {
    EXPECT_TRUE(ValidateSampling(good).ok());
  }
}

TEST(SamplerTest, SupportsAndProbabilitiesOfTransformers) {
  auto json = ParseJson(testing::ReadFile(testing::GoldenPath("sampler/sampler.json")), "sampler.json");
  ASSERT_TRUE(json.ok());
  std::map<std::string, std::vector<float>> logits;
  std::map<std::string, std::vector<int32_t>> seen;
  for (const auto& [name, values] : (*json)["logits"].items()) {
    for (const auto& v : values) logits[name].push_back(v.is_null() ? -kInfinity : static_cast<float>(v.get<double>()));
    seen[name] = (*json)["seen"][name].get<std::vector<int32_t>>();
  }
  ASSERT_GE((*json)["cases"].size(), 80u);
  for (const auto& c : (*json)["cases"]) {
    const auto& p = c["params"];
    SamplingParams params;
    params.temperature = p.value("temperature", 1.0);
    params.top_k = p.value("top_k", int64_t{0});
    params.top_p = p.value("top_p", 1.0);
    params.min_p = p.value("min_p", 0.0);
    params.repetition_penalty = p.value("repetition_penalty", 1.0);
    const std::string name = c["logits"].get<std::string>();
    auto sampler = Make(params);
    const auto got = sampler.Distribution(logits[name], seen[name]);
    ASSERT_TRUE(got.ok());
    std::vector<int32_t> kept;
    double total = 0.0;
    for (const auto& t : *got) {
      kept.push_back(t.token);
      total += t.probability;
    }
    EXPECT_NEAR(total, 1.0, 1e-12);
    const std::string label = name + " " + p.dump();
    if (c["kept"].is_string()) {
      EXPECT_EQ(kept.size(), logits[name].size()) << label;
    } else {
      EXPECT_EQ(kept, c["kept"].get<std::vector<int32_t>>()) << label;
    }
    for (size_t i = 0; i < c["probabilities"].size() && i < got->size(); ++i) {
      const double want = c["probabilities"][i].get<double>();
      // Scores of transformers are rounded to float after each step: |score| < 32, so 2e-6 absolute each.
      EXPECT_NEAR((*got)[i].probability, want, 1e-5 * want + 1e-9) << label << " " << i;
    }
  }
}

TEST(SamplerTest, GreedyTakesTheLowestIndexOfEqualsAndItsLogProb) {
  auto sampler = Make({.temperature = 0.0, .top_k = 5, .top_p = 0.5});
  std::vector<float> logits(1000, 0.0f);
  logits[300] = logits[700] = 2.0f;
  const auto token = sampler.Sample(logits, {}, 0, 0);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->token, 300);
  EXPECT_NEAR(token->log_prob, 2.0 - std::log(998.0 + 2.0 * std::exp(2.0)), 1e-6);
  // The penalty counts a repeated id once, and the log-prob stays the model's own.
  auto penalized = Make({.temperature = 0.0, .repetition_penalty = 1.5});
  const std::vector<int32_t> seen = {300, 300, 300};
  const auto other = penalized.Sample(logits, seen, 0, 0);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->token, 700);
  EXPECT_EQ(other->log_prob, token->log_prob);
  const auto whole = Make({.temperature = 1.0, .repetition_penalty = 1.5}).Distribution(logits, seen);
  ASSERT_TRUE(whole.ok());
  EXPECT_NEAR((*whole)[300].probability / (*whole)[0].probability, std::exp(2.0 / 1.5), 1e-6);
}

TEST(SamplerTest, BadLogitsAreErrors) {
  for (const SamplingParams& params : {SamplingParams{.temperature = 0.0}, SamplingParams{}, SamplingParams{.top_k = 3},
                                       SamplingParams{.top_p = 0.9}}) {
    auto sampler = Make(params);
    for (const float bad : {kNan, kInfinity}) {
      for (const size_t at : {size_t{0}, size_t{17}, size_t{100}}) {
        auto logits = RandomLogits(101, 1, 2.0);
        logits[at] = bad;
        const auto token = sampler.Sample(logits, {}, 0, 0);
        ASSERT_FALSE(token.ok());
        EXPECT_EQ(token.error().code, ErrorCode::kNumeric);
      }
    }
    const std::vector<float> none(40, -kInfinity);
    EXPECT_EQ(sampler.Sample(none, {}, 0, 0).error().code, ErrorCode::kNumeric);
    EXPECT_EQ(sampler.Sample({}, {}, 0, 0).error().code, ErrorCode::kInvalidArgument);
  }
  auto penalized = Make({.repetition_penalty = 1.1});
  const auto logits = RandomLogits(10, 1, 2.0);
  for (const int32_t id : {-1, 10, std::numeric_limits<int32_t>::max()}) {
    const std::vector<int32_t> seen = {3, id};
    EXPECT_EQ(penalized.Sample(logits, seen, 0, 0).error().code, ErrorCode::kInvalidArgument);
  }
  auto strong = Make({.repetition_penalty = 100.0});
  const std::vector<float> huge(4, -3e38f);
  const std::vector<int32_t> all = {0, 1, 2, 3};
  EXPECT_EQ(strong.Sample(huge, all, 0, 0).error().code, ErrorCode::kNumeric);
}

// Pearson's statistic of `draws` samples against the distribution; cells with fewer than 5 expected draws are joined.
void ExpectDistribution(const SamplingParams& params, const std::vector<float>& logits, int draws) {
  auto sampler = Make(params);
  const auto want = sampler.Distribution(logits, {});
  ASSERT_TRUE(want.ok());
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) {
    const auto token = sampler.Sample(logits, {}, 3, static_cast<uint64_t>(i));
    ASSERT_TRUE(token.ok());
    ++counts[token->token];
  }
  double statistic = 0.0, joined_expected = 0.0, joined_count = 0.0;
  int cells = 0, drawn = 0;
  for (const auto& t : *want) {
    const double expected = t.probability * draws;
    const int count = counts[t.token];
    drawn += count;
    if (expected < 5.0) {
      joined_expected += expected;
      joined_count += count;
    } else {
      statistic += (count - expected) * (count - expected) / expected;
      ++cells;
    }
  }
  if (joined_expected > 1.0) {
    statistic += (joined_count - joined_expected) * (joined_count - joined_expected) / joined_expected;
    ++cells;
  }
  EXPECT_EQ(drawn, draws) << "a token outside the support was drawn";
  const double freedom = cells - 1;
  if (freedom < 1) return;
  // Wilson-Hilferty: the cube root of chi^2 / freedom is nearly normal. 3.7 standard deviations: one seed in 10,000.
  const double z = (std::cbrt(statistic / freedom) - (1.0 - 2.0 / (9.0 * freedom))) / std::sqrt(2.0 / (9.0 * freedom));
  EXPECT_LT(z, 3.7) << statistic << " with " << freedom;
  EXPECT_GT(z, -3.7) << statistic << " with " << freedom;
}

TEST(SamplerTest, DrawsFollowTheDistribution) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const auto small = RandomLogits(50, seed, 1.5), large = RandomLogits(2100, seed, 2.5);
    ExpectDistribution({.seed = seed}, small, 5000);
    ExpectDistribution({.seed = seed}, large, 5000);  // several strides of the unfiltered walk
    ExpectDistribution({.temperature = 0.5, .seed = seed}, large, 5000);
    ExpectDistribution({.top_k = 40, .seed = seed}, large, 5000);
    ExpectDistribution({.top_p = 0.9, .seed = seed}, large, 5000);
    ExpectDistribution({.temperature = 1.3, .min_p = 0.05, .seed = seed}, large, 5000);
  }
  auto excluded = RandomLogits(60, 4, 1.0);
  for (size_t i = 0; i < 60; i += 2) excluded[i] = -kInfinity;
  ExpectDistribution({.seed = 9}, excluded, 5000);
}

TEST(SamplerTest, TopPOfManyTokensEqualsASort) {
  for (const double scale : {0.0, 0.01, 1.0, 3.0}) {
    for (const double top_p : {0.05, 0.5, 0.95, 0.9999}) {
      const auto logits = RandomLogits(20000, 6, scale);
      const auto got = Make({.top_p = top_p}).Distribution(logits, {});
      ASSERT_TRUE(got.ok());
      std::vector<Candidate> order;
      for (size_t i = 0; i < logits.size(); ++i) order.push_back({static_cast<int32_t>(i), logits[i]});
      std::sort(order.begin(), order.end(), Before);
      double total = 0.0, mass = 0.0;
      for (const auto& c : order) total += std::exp(static_cast<double>(c.value));
      size_t count = 0;
      for (; count < order.size() && mass < top_p * total; ++count)
        mass += std::exp(static_cast<double>(order[count].value));
      // The float sum over 20,000 terms may move the cut by a few of the (nearly equal) smallest tokens.
      EXPECT_NEAR(static_cast<double>(got->size()), static_cast<double>(count), 1.0 + 2e-6 * 20000.0)
          << scale << " " << top_p;
      std::set<int32_t> kept;
      for (const auto& t : *got) kept.insert(t.token);
      for (size_t i = 0; i < got->size(); ++i) EXPECT_TRUE(kept.count(order[i].index)) << "not the most likely ones";
    }
  }
}

TEST(SamplerTest, TopPOfZeroAndOfEqualLogits) {
  auto logits = RandomLogits(500, 3, 2.0);
  logits[123] = logits[321] = 50.0f;
  const auto one = Make({.top_p = 0.0}).Distribution(logits, {});
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ((*one)[0].token, 123);
  const std::vector<float> equal(1000, 1.0f);
  const auto half = Make({.top_p = 0.5}).Distribution(equal, {});
  ASSERT_TRUE(half.ok());
  ASSERT_EQ(half->size(), 500u);
  EXPECT_EQ(half->back().token, 499);  // lowest indices first
  EXPECT_EQ(Make({.top_p = 0.5, .min_p = 1.0}).Distribution(equal, {})->size(), 500u);
}

TEST(SamplerTest, StreamsDifferAndRepeatAndWrap) {
  const auto logits = RandomLogits(2000, 7, 1.0);
  auto draw = [&](uint64_t seed, uint64_t stream, uint64_t first) {
    auto sampler = Make({.seed = seed});
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < 32; ++i) tokens.push_back(sampler.Sample(logits, {}, stream, first + i)->token);
    return tokens;
  };
  const uint64_t last = std::numeric_limits<uint64_t>::max();
  std::set<std::vector<int32_t>> distinct;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, last}) {
    for (const uint64_t stream : {uint64_t{0}, uint64_t{1}, uint64_t{2}, last}) {
      for (const uint64_t first : {uint64_t{0}, last - 4}) {
        EXPECT_EQ(draw(seed, stream, first), draw(seed, stream, first));
        distinct.insert(draw(seed, stream, first));
      }
    }
  }
  EXPECT_EQ(distinct.size(), 24u);
  // Position 2^64 is position 0.
  const auto wrapped = draw(5, 0, last);
  const auto plain = draw(5, 0, 0);
  EXPECT_TRUE(std::equal(wrapped.begin() + 1, wrapped.end(), plain.begin()));
  // One sampler for several streams, in any order, draws the same as one each.
  auto shared = Make({.seed = 1});
  for (uint64_t i = 32; i-- > 0;) {
    EXPECT_EQ(shared.Sample(logits, {}, 2, i)->token, draw(1, 2, 0)[i]);
    EXPECT_EQ(shared.Sample(logits, {}, 0, i)->token, draw(1, 0, 0)[i]);
  }
}

TEST(SamplerTest, ExtremeTemperaturesStayFinite) {
  const auto logits = RandomLogits(3000, 8, 5.0);
  const auto cold = Make({.temperature = 1e-5}).Sample(logits, {}, 0, 0);
  const auto greedy = Make({.temperature = 0.0}).Sample(logits, {}, 0, 0);
  ASSERT_TRUE(cold.ok());
  EXPECT_EQ(cold->token, greedy->token);
  std::set<int32_t> hot;
  auto sampler = Make({.temperature = 100.0});
  for (uint64_t i = 0; i < 200; ++i) hot.insert(sampler.Sample(logits, {}, 0, i)->token);
  EXPECT_GT(hot.size(), 150u);
  // Logits of the size that float still holds.
  const std::vector<float> wide = {3e38f, -3e38f, 0.0f};
  for (const SamplingParams& p :
       {SamplingParams{}, SamplingParams{.top_p = 0.5}, SamplingParams{.top_k = 2}, SamplingParams{.min_p = 0.1},
        SamplingParams{.top_k = 2, .top_p = 0.5},
        SamplingParams{.temperature = 100.0, .top_k = 2, .top_p = 1.0 - 1e-16, .min_p = 1e-300}}) {
    const auto token = Make(p).Sample(wide, {}, 0, 1);
    ASSERT_TRUE(token.ok());
    EXPECT_EQ(token->token, 0);
    EXPECT_EQ(token->log_prob, 0.0f);
  }
}

}  // namespace
}  // namespace pith
