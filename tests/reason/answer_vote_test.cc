// Verifier, vote and early stop of one question on a scripted engine.
#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "policy_support.h"
#include "reason/answer.h"
#include "support/scripted_engine.h"

namespace pith {
namespace {

using testing::Ask;
using testing::Greedy;
using testing::Sampled;
using testing::ScriptedModel;
using testing::Solve;
using testing::TinyConfig;
using testing::Verified;

TEST(AnswerVoteTest, TheVerifierOutvotesTheMajority) {
  Verified scripted;
  const AnswerResult answer = Solve(scripted, Ask(scripted, "q", Sampled(16)));
  int a = 0;
  for (const auto& stream : answer.streams) {
    ASSERT_TRUE(stream.verifier_score);
    EXPECT_EQ(stream.weight, *stream.verifier_score);
    EXPECT_NEAR(*stream.verifier_score, stream.text[0] == 'a' ? 0.9526 : 0.0474, 1e-4);
    a += stream.text[0] == 'a';
  }
  ASSERT_GT(a, 0);
  ASSERT_LT(a, 8);
  EXPECT_EQ(answer.answer, "1");
  EXPECT_EQ(answer.best().text, "a \\boxed{1}");
  EXPECT_EQ(answer.verification_tokens, 16 * static_cast<int64_t>(scripted.model.verification.size()));
  AnswerOptions plain = Sampled(16);
  plain.verify = AnswerOptions::Verify::kNever;
  EXPECT_EQ(Solve(scripted, Ask(scripted, "q", plain)).answer, "2");
}

TEST(AnswerVoteTest, VerificationReadsTheStreamsOwnCache) {
  Verified scripted;
  scripted.model.adapter = Adapter::Random(TinyConfig(), 4, LoraFormat::kF32);
  std::vector<std::vector<KvOrigin>> read;
  const auto state = scripted.engine.state;
  scripted.engine.state = [&](std::span<const KvOrigin> so_far) {
    read.emplace_back(so_far.begin(), so_far.end());
    return state(so_far);
  };
  scripted.responses = {"<think>\nx</think>\\boxed{1}"};
  AnswerOptions options = Greedy();
  options.mode = ReasonMode::kOn;
  options.verify = AnswerOptions::Verify::kAlways;
  for (const bool adapter : {false, true}) {
    read.clear();
    scripted.model.verification_adapter = adapter;
    const AnswerResult answer = Solve(scripted, Ask(scripted, "q", options));
    ASSERT_EQ(read.size(), 1U);
    const auto& origins = read[0];
    ASSERT_EQ(origins.size(), 2 + answer.best().tokens.size() + scripted.model.verification.size());
    for (size_t i = 0; i < origins.size(); ++i) {
      const bool response = i >= 2 && i < 2 + answer.best().tokens.size();
      EXPECT_EQ(origins[i].adapter != 0, response || (adapter && i >= 2)) << i;
      if (response) {
        EXPECT_EQ(origins[i].token, answer.best().tokens[i - 2]);
      }
    }
  }
}

TEST(AnswerVoteTest, OneStreamIsVerifiedOnlyWhenAsked) {
  Verified scripted;
  EXPECT_FALSE(Solve(scripted, Ask(scripted, "q", Greedy())).best().verifier_score);
  AnswerOptions options = Greedy();
  options.verify = AnswerOptions::Verify::kAlways;
  EXPECT_TRUE(Solve(scripted, Ask(scripted, "q", options)).best().verifier_score);
}

// --- early stop ---

TEST(AnswerVoteTest, EarlyStopChangesNoWinner) {
  ScriptedModel scripted;
  scripted.responses = {"a\\boxed{1}", "b" + std::string(60, 'x') + "\\boxed{1}",
                        "c" + std::string(90, 'x') + "\\boxed{2}", "d" + std::string(200, 'x') + "\\boxed{1}"};
  int64_t stopped = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    AnswerOptions options = Sampled(7, seed);
    const AnswerResult full = Solve(scripted, Ask(scripted, "q", options));
    options.early_stop = true;
    const AnswerResult early = Solve(scripted, Ask(scripted, "q", options));
    EXPECT_EQ(early.answer, full.answer);
    int64_t saved = 0;
    for (size_t i = 0; i < 7; ++i) {
      if (early.streams[i].finish == FinishReason::kDecided) {
        ++stopped;
        EXPECT_EQ(early.streams[i].candidate, -1);
        EXPECT_LT(early.streams[i].tokens.size(), full.streams[i].tokens.size());
        saved += options.budget - static_cast<int64_t>(early.streams[i].tokens.size());
      } else {
        EXPECT_EQ(early.streams[i].tokens, full.streams[i].tokens);
      }
    }
    EXPECT_EQ(early.tokens_saved_at_most, saved);
    EXPECT_EQ(full.tokens_saved_at_most, 0);
  }
  EXPECT_GT(stopped, 20);
}

// Two candidates that a later answer shows to be one must not have been stopped for a third.
TEST(AnswerVoteTest, EarlyStopWaitsWhileTheOthersMayBeOne) {
  ScriptedModel scripted;
  scripted.responses = {"a\\boxed{5}", "b\\boxed{0.3333}", "c\\boxed{0.33333}",
                        "d" + std::string(60, 'x') + "\\boxed{1/3}"};
  int joined = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    AnswerOptions options = Sampled(11, seed);
    const AnswerResult full = Solve(scripted, Ask(scripted, "q", options));
    options.early_stop = true;
    const AnswerResult early = Solve(scripted, Ask(scripted, "q", options));
    // How the winner is written may depend on who was stopped, which candidate it is may not.
    ASSERT_EQ(early.answer == "5", full.answer == "5") << seed;
    joined += full.answer != "5" && full.vote.candidates[0].ballots.size() <= 7 ? 1 : 0;
  }
  EXPECT_GT(joined, 10);
}

// The answers of streams that ended are not graded again while the others go on.
TEST(AnswerVoteTest, EarlyStopVotesOnlyWhenAStreamEnds) {
  ScriptedModel scripted;
  scripted.responses.clear();
  for (char c = 'a'; c < 'f'; ++c) {
    const std::string k(1, static_cast<char>('2' + (c - 'a')));
    scripted.responses.push_back(std::string(1, c) + "\\boxed{\\sin(x+" + k + ")\\cos(" + k + "x)e^{x/" + k + "}}");
  }
  scripted.responses.push_back("z" + std::string(900, 'x'));
  const auto seconds = [&](bool early_stop) {
    const std::clock_t start = std::clock();  // of the processor
    AnswerOptions options = Sampled(16, 3);
    options.early_stop = early_stop;
    options.budget = 800;
    const AnswerResult answer = Solve(scripted, Ask(scripted, "q", options));
    EXPECT_EQ(answer.best().finish, FinishReason::kStop);
    EXPECT_EQ(answer.tokens_saved_at_most, 0);
    EXPECT_GE(answer.vote.candidates.size(), 4U);
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  seconds(false);  // the first grading of all sets its tables up
  const double without = seconds(false);
  EXPECT_LT(seconds(true), 4 * without + 0.05);
}

}  // namespace
}  // namespace pith
