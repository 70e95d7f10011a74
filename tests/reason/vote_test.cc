#include "reason/vote.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace pith {
namespace {

Ballot Of(const char* answer, double weight = 1) { return {Answer(answer), weight}; }

TEST(VoteTest, Majority) {
  const std::vector<Ballot> ballots{Of("4"), Of("5"), Of("4"), Of("6")};
  const VoteResult vote = Vote(ballots);
  ASSERT_EQ(vote.candidates.size(), 3U);
  EXPECT_EQ(vote.candidates[0].answer, "4");
  EXPECT_EQ(vote.candidates[0].weight, 2);
  EXPECT_EQ(vote.candidates[0].ballots, (std::vector<int>{0, 2}));
  EXPECT_FALSE(vote.tie);
}

TEST(VoteTest, EquivalentAnswersAreOneCandidate) {
  const std::vector<Ballot> ballots{Of("0.5"), Of("3"), Of("\\frac{1}{2}"), Of("1/2"), Of("3.0")};
  const VoteResult vote = Vote(ballots);
  ASSERT_EQ(vote.candidates.size(), 2U);
  EXPECT_EQ(vote.candidates[0].ballots, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(vote.candidates[1].ballots, (std::vector<int>{1, 4}));
}

TEST(VoteTest, WeightsDecide) {
  const std::vector<Ballot> ballots{Of("4", 0.2), Of("4", 0.3), Of("5", 0.9)};
  const VoteResult vote = Vote(ballots);
  EXPECT_EQ(vote.candidates[0].answer, "5");
}

TEST(VoteTest, NoAnswerNeverWins) {
  const std::vector<Ballot> ballots{{Answer(), 100}, {Answer(), 100}, Of("5", 0.01)};
  const VoteResult vote = Vote(ballots);
  ASSERT_EQ(vote.candidates.size(), 1U);
  EXPECT_EQ(vote.candidates[0].answer, "5");
  EXPECT_EQ(vote.no_answer, 2);
  const std::vector<Ballot> nothing{{Answer(), 1}, {Answer(), 1}};
  EXPECT_FALSE(Vote(nothing).has_winner());
  EXPECT_FALSE(Vote({}).has_winner());
}

TEST(VoteTest, TieRule) {
  // Equal weights: more ballots, then the largest weight, then the shortest, then byte order.
  std::vector<Ballot> ballots{Of("7", 1.0), Of("8", 0.5), Of("8", 0.5)};
  EXPECT_EQ(Vote(ballots).candidates[0].answer, "8");
  EXPECT_TRUE(Vote(ballots).tie);
  ballots = {Of("7", 0.5), Of("7", 0.5), Of("8", 0.25), Of("8", 0.75)};
  EXPECT_EQ(Vote(ballots).candidates[0].answer, "8");
  ballots = {Of("12"), Of("7")};
  EXPECT_EQ(Vote(ballots).candidates[0].answer, "7");
  ballots = {Of("8"), Of("7")};
  EXPECT_EQ(Vote(ballots).candidates[0].answer, "7");
}

// All orders of up to six ballots: the same candidates in the same order with the same weights, bit for bit.
TEST(VoteTest, OrderChangesNothing) {
  const std::vector<std::vector<Ballot>> elections{
      {Of("1", 0.1), Of("2", 0.7), Of("1", 0.2), Of("3", 0.3), Of("1", 0.4), Of("2", 0.000001)},
      {Of("0.5"), Of("1/2"), Of("2"), Of("2.0"), Of("3"), {Answer(), 1}},
      {Of("a", 0.1), Of("b", 0.1), Of("c", 0.1), Of("d", 0.1), Of("e", 0.1), Of("f", 0.1)},
      {Of("1", 1e-17), Of("1", 1.0), Of("1", 1e-17), Of("2", 1.0), Of("2", 0), Of("2", 2e-17)},
      {Of("50%", 0.3), Of("0.5", 0.3), Of("50", 0.3), Of("50\\%", 0.3), Of("\\frac12", 0.2)},
      {{Answer(), 1}, {Answer(), 2}, {Answer(), 3}},
  };
  for (const auto& election : elections) {
    const VoteResult want = Vote(election);
    std::vector<size_t> order(election.size());
    std::iota(order.begin(), order.end(), size_t{0});
    do {
      std::vector<Ballot> ballots;
      for (const size_t i : order) ballots.push_back(election[i]);
      const VoteResult got = Vote(ballots);
      ASSERT_EQ(got.candidates.size(), want.candidates.size());
      EXPECT_EQ(got.tie, want.tie);
      EXPECT_EQ(got.no_answer, want.no_answer);
      for (size_t c = 0; c < got.candidates.size(); ++c) {
        EXPECT_EQ(got.candidates[c].answer, want.candidates[c].answer);
        EXPECT_EQ(got.candidates[c].weight, want.candidates[c].weight);
        std::vector<int> members;
        for (const int ballot : got.candidates[c].ballots)
          members.push_back(static_cast<int>(order[static_cast<size_t>(ballot)]));
        std::sort(members.begin(), members.end());
        EXPECT_EQ(members, want.candidates[c].ballots);
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(VoteTest, DecidedMeansThatNothingCanChangeIt) {
  // Every way in which up to 5 more ballots with two known answers or a new one could go.
  const char* answers[] = {"1", "2", "3"};
  for (int first = 0; first < 5; ++first) {
    for (int second = 0; second < 5; ++second) {
      std::vector<Ballot> ballots;
      for (int i = 0; i < first; ++i) ballots.push_back(Of("1"));
      for (int i = 0; i < second; ++i) ballots.push_back(Of("2"));
      const VoteResult now = Vote(ballots);
      for (int open = 0; open < 6; ++open) {
        bool changes = false;
        int ways = 1;
        for (int i = 0; i < open; ++i) ways *= 3;
        for (int way = 0; way < ways; ++way) {
          auto all = ballots;
          for (int i = 0, code = way; i < open; ++i, code /= 3) all.push_back(Of(answers[code % 3]));
          const VoteResult then = Vote(all);
          changes |= then.has_winner() != now.has_winner() ||
                     (now.has_winner() && then.candidates[0].answer != now.candidates[0].answer) || then.tie;
        }
        EXPECT_EQ(VoteIsDecided(now, open), open == 0 || !changes) << first << " " << second << " " << open;
      }
    }
  }
}

// 0.3333 and 0.33333 are two candidates until 1/3, which both are roundings of, shows that they are one.
TEST(VoteTest, OneMoreBallotMayJoinTheOthers) {
  std::vector<Ballot> ballots;
  for (int i = 0; i < 7; ++i) ballots.push_back(Of("5"));
  for (const char* answer : {"0.3333", "0.33333"}) {
    for (int i = 0; i < 3; ++i) ballots.push_back(Of(answer));
  }
  ASSERT_EQ(Vote(ballots).candidates[0].answer, "5");
  ASSERT_EQ(Vote(ballots).candidates.size(), 3U);
  auto one_more = ballots;
  one_more.push_back(Of("1/3"));
  ASSERT_EQ(Vote(one_more).candidates[0].ballots.size(), 7U);
  ASSERT_TRUE(Vote(one_more).tie);
  EXPECT_FALSE(VoteIsDecided(Vote(ballots), 1));
  ballots.push_back(Of("5"));
  EXPECT_TRUE(VoteIsDecided(Vote(ballots), 1));
  EXPECT_FALSE(VoteIsDecided(Vote(ballots), 2));
}

// All ways in which the others of three or four candidates may turn out to be one, and the open ballots go to it.
TEST(VoteTest, DecidedHoldsWhateverTheOthersTurnOutToBe) {
  for (int code = 0; code < 5 * 5 * 5 * 5; ++code) {
    const int counts[] = {code % 5, code / 5 % 5, code / 25 % 5, code / 125};
    std::vector<Ballot> ballots;
    const char* answers[] = {"11", "12", "13", "14"};
    int total = 0;
    for (int c = 0; c < 4; ++c) {
      for (int i = 0; i < counts[c]; ++i) ballots.push_back(Of(answers[c]));
      total += counts[c];
    }
    const int leader = *std::max_element(std::begin(counts), std::end(counts));
    for (int open = 1; open < 4; ++open) {
      EXPECT_EQ(VoteIsDecided(Vote(ballots), open), leader > total - leader + open) << code << " " << open;
    }
  }
}

TEST(RunningVoteTest, SaysWhatAVoteOverAllSays) {
  const char* answers[] = {"5", "0.3333", "0.33333", "1/3", "\\frac{1}{3}", "", "5.0", "7"};
  uint64_t state = 1;
  for (int election = 0; election < 200; ++election) {
    std::vector<Ballot> ballots;
    RunningVote running;
    for (int i = 0; i < 12; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const char* answer = answers[(state >> 33) % 8];
      const double weight = election % 2 == 0 ? 1.0 : static_cast<double>((state >> 40) % 100) / 100;
      ballots.push_back(*answer == '\0' ? Ballot{Answer(), weight} : Of(answer, weight));
      running.Add(ballots.back());
      for (const int64_t open : {0, 1, 2, 5}) {
        ASSERT_EQ(running.Decided(open), VoteIsDecided(Vote(ballots), open)) << election << " " << i << " " << open;
      }
    }
  }
}

// Each pair of answers is compared at most once, and none that is known to be one candidate.
TEST(RunningVoteTest, ComparesEachPairOnce) {
  RunningVote running;
  for (int i = 0; i < 20; ++i) running.Add(Of(std::to_string(i + 100).c_str()));
  EXPECT_EQ(running.comparisons(), 190);
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(running.Decided(3));
  EXPECT_EQ(running.comparisons(), 190);
  RunningVote same;
  for (int i = 0; i < 20; ++i) same.Add(Of("4"));
  EXPECT_EQ(same.comparisons(), 19);
}

}  // namespace
}  // namespace pith
