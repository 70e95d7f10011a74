// Many questions in the same steps of a scripted engine.
#include "reason/batch_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
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

struct Labelled {
  uint64_t id;
  Question question;
};

std::vector<Labelled> ManyQuestions(const ScriptedModel& scripted) {
  std::vector<Labelled> questions;
  for (uint64_t id = 0; id < 20; ++id) {
    AnswerOptions options = Sampled(1 + static_cast<int64_t>(id % 4), id);
    options.budget = 20 + static_cast<int64_t>(id * 7 % 90);
    options.mode = id % 3 == 0 ? ReasonMode::kOn : ReasonMode::kOff;
    questions.push_back({id, Ask(scripted, std::string(1 + id * 13 % 170, 'q'), options)});
  }
  return questions;
}

TEST(BatchRunnerTest, ABatchGivesWhatEachQuestionGivesAlone) {
  ScriptedModel scripted;
  for (char c = 'a'; c <= 'j'; ++c) {
    scripted.responses.push_back(std::string(1, c) + std::string(static_cast<size_t>(c - 'a') * 9, 'x') + "\\boxed{" +
                                 c + "}");
  }
  scripted.responses.push_back("<think>\nso</think>\\boxed{8}");
  scripted.responses.push_back("<think>\n" + std::string(70, 'y') + "</think>\\boxed{9}");
  for (const BatchOptions batch :
       {BatchOptions{32, 128}, BatchOptions{4, 16}, BatchOptions{3, 1}, BatchOptions{1000, 4096}}) {
    scripted.engine.steps.clear();
    BatchRunner runner(scripted.model, batch);
    for (auto& [id, question] : ManyQuestions(scripted)) ASSERT_TRUE(runner.Add(id, std::move(question)).ok());
    std::map<uint64_t, AnswerResult> answers;
    while (!runner.idle()) {
      for (auto& finished : runner.Step()) {
        ASSERT_TRUE(finished.answer.ok());
        answers[finished.id] = std::move(*finished.answer);
      }
    }
    ASSERT_EQ(answers.size(), 20U);
    for (const auto& step : scripted.engine.steps) {
      size_t most = 0;
      for (const size_t tokens : step.tokens) most = std::max(most, tokens);
      EXPECT_LE(static_cast<int64_t>(step.tokens.size()),
                std::max<int64_t>(batch.max_streams, 4) + batch.prefill_tokens);
      EXPECT_LE(static_cast<int64_t>(most), std::max<int64_t>(batch.prefill_tokens, 40));
    }
    int64_t tokens = 0;
    for (auto& [id, question] : ManyQuestions(scripted)) {
      const AnswerResult alone = Solve(scripted, std::move(question));
      const AnswerResult& together = answers[id];
      EXPECT_EQ(together.answer, alone.answer);
      ASSERT_EQ(together.streams.size(), alone.streams.size());
      for (size_t i = 0; i < alone.streams.size(); ++i) {
        EXPECT_EQ(together.streams[i].tokens, alone.streams[i].tokens);
        EXPECT_EQ(together.streams[i].text, alone.streams[i].text);
      }
      tokens += alone.generated_tokens();
    }
    EXPECT_EQ(runner.generated_tokens(), tokens);
    if (batch.max_streams == 32) {
      EXPECT_LT(runner.steps() * 5, tokens);
    }
  }
  EXPECT_EQ(scripted.engine.blocks_in_use(), 0);
}

TEST(BatchRunnerTest, AFaultBelongsToOneQuestion) {
  ScriptedModel scripted;
  scripted.responses = {"abc\\boxed{1}"};
  const std::string bad(33, 'q');
  scripted.engine.fails = [](const StepItem& item) { return item.sequence->length() == 36; };
  BatchRunner runner(scripted.model, {.max_streams = 8});
  for (uint64_t id = 0; id < 6; ++id) {
    ASSERT_TRUE(runner.Add(id, Ask(scripted, id == 2 ? bad : std::string(40 + id, 'q'), Greedy())).ok());
  }
  std::map<uint64_t, bool> ok;
  while (!runner.idle()) {
    for (auto& finished : runner.Step()) {
      ok[finished.id] = finished.answer.ok();
      if (finished.answer.ok()) {
        EXPECT_EQ(finished.answer->best().text, "abc\\boxed{1}");
      } else {
        EXPECT_EQ(finished.answer.error().code, ErrorCode::kNumeric);
      }
    }
  }
  ASSERT_EQ(ok.size(), 6U);
  for (const auto& [id, fine] : ok) EXPECT_EQ(fine, id != 2);
}

TEST(BatchRunnerTest, NewQuestionsBeginAsOldOnesEnd) {
  ScriptedModel scripted;
  scripted.responses = {"a\\boxed{1}", "b" + std::string(100, 'x') + "\\boxed{1}"};
  BatchRunner runner(scripted.model, {.max_streams = 4});
  EXPECT_TRUE(runner.HasRoom(9));  // alone
  size_t most = 0;
  uint64_t added = 0;
  size_t done = 0;
  while (true) {
    while (added < 30 && runner.HasRoom(2)) {
      ASSERT_TRUE(runner.Add(added, Ask(scripted, "q", Sampled(2, added))).ok());
      ++added;
    }
    if (runner.idle()) break;
    done += runner.Step().size();
  }
  for (const auto& step : scripted.engine.steps) most = std::max(most, step.tokens.size());
  EXPECT_EQ(done, 30U);
  EXPECT_EQ(most, 4U);
}

}  // namespace
}  // namespace pith
