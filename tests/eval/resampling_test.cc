#include "eval/resampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/random.h"
#include "reason/vote.h"

namespace pith {
namespace {

StoredBallot Ballot1(int candidate, double weight, const std::string& answer, bool correct = false) {
  return {candidate, weight, answer, correct};
}

TEST(ResamplingTest, EqualAnswersAreOneCandidate) {
  const std::vector<std::optional<std::string>> answers = {"1/2", std::nullopt, "0.5", "3"};
  const auto candidates = CandidatesOf(answers);
  ASSERT_EQ(candidates.size(), 4U);
  EXPECT_EQ(candidates[0], candidates[2]);
  EXPECT_NE(candidates[0], candidates[3]);
  EXPECT_EQ(candidates[1], -1);
}

TEST(ResamplingTest, NoAnswerNeverWins) {
  const std::vector<StoredBallot> ballots = {Ballot1(-1, 9, ""), Ballot1(-1, 9, ""), Ballot1(0, 0.1, "5")};
  EXPECT_EQ(WinningBallot(ballots, std::vector{0, 1, 2}, true), 2);
  EXPECT_EQ(WinningBallot(ballots, std::vector{0, 1}, false), -1);
  EXPECT_EQ(WinningBallot(ballots, {}, false), -1);
}

TEST(ResamplingTest, WeightsDecide) {
  const std::vector<StoredBallot> ballots = {Ballot1(0, 0.2, "5"), Ballot1(0, 0.2, "5.0"), Ballot1(1, 0.9, "7")};
  EXPECT_EQ(WinningBallot(ballots, std::vector{0, 1, 2}, false), 0);
  EXPECT_EQ(WinningBallot(ballots, std::vector{1, 2}, true), 2);
  EXPECT_EQ(WinningBallot(ballots, std::vector{2, 1, 0}, true), 2);
}

// The resampled vote is the vote of the policy: the same winner for random ballots, ties included.
TEST(ResamplingTest, AgreesWithTheVoteOfThePolicy) {
  const char* texts[] = {"1/2", "0.5", "3", "3.0", "12", "7", ""};
  const double weights[] = {0.25, 0.5, 1.0};
  for (uint64_t test = 0; test < 300; ++test) {
    std::vector<std::optional<std::string>> answers;
    std::vector<StoredBallot> stored;
    const auto count = static_cast<size_t>(1 + RandomBits(1, test, 0) % 7);
    for (size_t i = 0; i < count; ++i) {
      const std::string text = texts[RandomBits(2, test, i) % std::size(texts)];
      answers.push_back(text.empty() ? std::nullopt : std::optional(text));
      stored.push_back(Ballot1(-1, weights[RandomBits(3, test, i) % std::size(weights)], text));
    }
    const auto candidates = CandidatesOf(answers);
    std::vector<int> all(count);
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = 0; i < count; ++i) stored[i].candidate = candidates[i];
    for (const bool weighted : {false, true}) {
      std::vector<Ballot> ballots;
      for (const auto& ballot : stored) {
        ballots.push_back({ballot.answer.empty() ? Answer() : Answer(ballot.answer), weighted ? ballot.weight : 1.0});
      }
      const VoteResult vote = Vote(ballots);
      const int winner = WinningBallot(stored, all, weighted);
      ASSERT_EQ(winner >= 0, vote.has_winner()) << test;
      if (winner >= 0) {
        EXPECT_EQ(stored[static_cast<size_t>(winner)].answer, vote.candidates[0].answer) << test;
      }
    }
  }
}

TEST(ResamplingTest, CurveByHand) {
  // One problem, three streams: two right, one wrong. N = 1: the mean is about 2/3; N = 3: always right.
  // A second problem is never right.
  const std::vector<std::vector<StoredBallot>> problems = {
      {Ballot1(0, 1, "5", true), Ballot1(0, 1, "5", true), Ballot1(1, 1, "6")},
      {Ballot1(0, 1, "1"), Ballot1(0, 1, "1"), Ballot1(0, 1, "1"), Ballot1(0, 1, "1")}};
  const auto curve = VoteCurve(problems, 16, 2000, 1);
  ASSERT_EQ(curve.size(), 3U);  // as many as every problem has
  EXPECT_EQ(curve[0].n, 1);
  // A mean of 2000 draws of 0 or 1/2; its standard error is 0.5 * sqrt(2/9) / sqrt(2000) = 0.0053.
  EXPECT_NEAR(curve[0].majority_mean, 1.0 / 3, 0.022);
  EXPECT_NEAR(curve[0].majority_sd, 0.5 * std::sqrt(2.0 / 9), 0.01);
  // N = 2: right when both are the right ones (1/3), or one of each (2/3) and "5" is first of equals: always.
  EXPECT_DOUBLE_EQ(curve[1].majority_mean, 0.5);
  EXPECT_EQ(curve[1].majority_sd, 0);
  EXPECT_DOUBLE_EQ(curve[2].majority_mean, 0.5);
  EXPECT_EQ(curve[2].weighted_mean, curve[2].majority_mean);
}

TEST(ResamplingTest, CurveRepeatsAndDependsOnTheSeed) {
  std::vector<std::vector<StoredBallot>> problems(20);
  for (size_t p = 0; p < problems.size(); ++p) {
    for (int i = 0; i < 16; ++i) {
      const auto candidate = static_cast<int>(RandomBits(5, p, static_cast<uint64_t>(i)) % 3);
      problems[p].push_back(
          Ballot1(candidate, RandomUniform(6, p, static_cast<uint64_t>(i)), std::to_string(candidate), candidate == 0));
    }
  }
  const auto one = VoteCurve(problems, 16, 20, 7);
  const auto two = VoteCurve(problems, 16, 20, 7);
  const auto other = VoteCurve(problems, 16, 20, 8);
  ASSERT_EQ(one.size(), 16U);
  bool differs = false;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].majority_mean, two[i].majority_mean);
    EXPECT_EQ(one[i].weighted_sd, two[i].weighted_sd);
    differs = differs || one[i].majority_mean != other[i].majority_mean;
  }
  EXPECT_TRUE(differs);
  EXPECT_EQ(one[15].majority_sd, 0);  // all streams: nothing is drawn
  EXPECT_TRUE(VoteCurve({}, 16, 20, 7).empty());
  EXPECT_TRUE(VoteCurve({{}}, 16, 20, 7).empty());
}

}  // namespace
}  // namespace pith
