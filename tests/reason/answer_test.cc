// The path of one question on a scripted engine: routes, prompts, budgets, streams, edges.
#include "reason/answer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "policy_support.h"
#include "reason/batch_runner.h"
#include "support/scripted_engine.h"

namespace pith {
namespace {

using testing::Ask;
using testing::Greedy;
using testing::Ids;
using testing::PieceTokenizer;
using testing::RecordOrigins;
using testing::Sampled;
using testing::ScriptedModel;
using testing::Solve;
using testing::TinyConfig;
using testing::Verified;

TEST(AnswerTest, DirectRoute) {
  ScriptedModel scripted;
  scripted.responses = {"It is \\boxed{4}."};
  std::string streamed;
  AnswerOptions options = Greedy();
  options.on_text = [&](int64_t stream, std::string_view text, bool thought) {
    EXPECT_EQ(stream, 0);
    EXPECT_FALSE(thought);
    streamed += text;
  };
  const AnswerResult answer = Solve(scripted, Ask(scripted, "2+2?", options));
  EXPECT_EQ(answer.route, Route::kDirect);
  EXPECT_FALSE(answer.score);
  EXPECT_EQ(answer.best().text, "It is \\boxed{4}.");
  EXPECT_EQ(streamed, answer.best().text);
  EXPECT_EQ(answer.answer, "4");
  EXPECT_EQ(answer.best().finish, FinishReason::kStop);
  EXPECT_EQ(answer.prompt_tokens, 5);
  EXPECT_EQ(answer.prefill_tokens, 5);
  EXPECT_EQ(answer.prefill_tokens_saved, 0);
}

TEST(AnswerTest, ReasoningForcesTheTagAndPutsTheAdapterOnFromThere) {
  ScriptedModel scripted;
  scripted.responses = {"<think>\nhm\n</think>\n\n\\boxed{4}"};
  scripted.model.adapter = Adapter::Random(TinyConfig(), 4, LoraFormat::kF32);
  std::vector<KvOrigin> longest;
  RecordOrigins(scripted, &longest);
  AnswerOptions options = Greedy();
  options.mode = ReasonMode::kOn;
  std::string thoughts, text;
  options.on_text = [&](int64_t, std::string_view piece, bool thought) { (thought ? thoughts : text) += piece; };
  const AnswerResult answer = Solve(scripted, Ask(scripted, "2+2?", options));
  EXPECT_EQ(answer.route, Route::kReason);
  EXPECT_EQ(answer.best().reasoning, "hm\n");
  EXPECT_EQ(answer.best().text, "\\boxed{4}");
  EXPECT_EQ(thoughts, answer.best().reasoning);
  EXPECT_EQ(text, answer.best().text);
  const auto open = Ids(*scripted.tokenizer, "<think>\n");
  EXPECT_TRUE(std::equal(open.begin(), open.end(), answer.best().tokens.begin()));
  ASSERT_GT(longest.size(), 5U);
  for (size_t i = 0; i < longest.size(); ++i) {
    EXPECT_EQ(longest[i].adapter, i < 5 ? 0 : scripted.model.adapter->id()) << i;
  }
}

TEST(AnswerTest, AdapterOnThePromptForComparison) {
  ScriptedModel scripted;
  scripted.responses = {"<think>\nhm\n</think>\n\n\\boxed{4}"};
  scripted.model.adapter = Adapter::Random(TinyConfig(), 4, LoraFormat::kF32);
  std::vector<KvOrigin> longest;
  RecordOrigins(scripted, &longest);
  AnswerOptions options = Greedy();
  options.adapter_on_prompt = true;
  EXPECT_EQ(ValidateQuestion(scripted.model, Ask(scripted, "2+2?", options)).error().code, ErrorCode::kInvalidArgument);
  options.mode = ReasonMode::kOn;
  EXPECT_EQ(Solve(scripted, Ask(scripted, "2+2?", options)).best().text, "\\boxed{4}");
  ASSERT_GT(longest.size(), 5U);
  for (const KvOrigin& origin : longest) EXPECT_EQ(origin.adapter, scripted.model.adapter->id());
  options.keep_states = true;
  EXPECT_FALSE(ValidateQuestion(scripted.model, Ask(scripted, "2+2?", options)).ok());
}

// What the policy gradient needs: the log-probability of what was drawn, the end token too, and nothing for what was
// forced.
TEST(AnswerTest, LogProbsOfWhatWasDrawn) {
  ScriptedModel scripted;
  scripted.responses = {"<think>\nhm\n</think>\n\n\\boxed{4}"};
  AnswerOptions options = Sampled(2);
  options.mode = ReasonMode::kOn;
  options.keep_log_probs = true;
  options.sampling.temperature = 0.5;
  const AnswerResult answer = Solve(scripted, Ask(scripted, "2+2?", options));
  const auto forced = scripted.model.forced->open.size();
  for (const StreamResult& stream : answer.streams) {
    EXPECT_EQ(stream.end_token, PieceTokenizer::kEnd);
    ASSERT_EQ(stream.drawn.size(), stream.tokens.size() + 1);
    for (size_t i = 0; i < stream.drawn.size(); ++i) {
      EXPECT_EQ(std::isnan(stream.drawn[i]), i < forced) << i;
      if (i >= forced) {
        EXPECT_LE(stream.drawn[i], 0.0F);
      }
    }
  }
  // Cut by the budget: no end token, and what is forced before is not drawn either.
  options.budget = 40;
  scripted.responses = {"<think>\n" + std::string(100, 'a')};
  const AnswerResult cut = Solve(scripted, Ask(scripted, "2+2?", options));
  for (const StreamResult& stream : cut.streams) {
    EXPECT_TRUE(stream.answer_forced);
    ASSERT_EQ(stream.drawn.size(), stream.tokens.size() + (stream.end_token >= 0 ? 1 : 0));
    const auto nan = [](float value) { return std::isnan(value); };
    EXPECT_EQ(static_cast<size_t>(std::ranges::count_if(stream.drawn, nan)),
              forced + scripted.model.forced->close.size());
  }
  options.keep_log_probs = false;
  EXPECT_TRUE(Solve(scripted, Ask(scripted, "2+2?", options)).best().drawn.empty());
}

TEST(AnswerTest, StreamsDifferRepeatAndShareThePrompt) {
  ScriptedModel scripted;
  for (char c = 'a'; c <= 'p'; ++c) scripted.responses.push_back(std::string(1, c) + " \\boxed{1}");
  const AnswerResult one = Solve(scripted, Ask(scripted, "pick", Sampled(8)));
  const AnswerResult two = Solve(scripted, Ask(scripted, "pick", Sampled(8)));
  const AnswerResult other = Solve(scripted, Ask(scripted, "pick", Sampled(8, 2)));
  std::set<std::string> texts;
  bool seeds_differ = false;
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(one.streams[i].tokens, two.streams[i].tokens);
    seeds_differ |= one.streams[i].tokens != other.streams[i].tokens;
    texts.insert(one.streams[i].text);
  }
  EXPECT_GE(texts.size(), 3U);
  EXPECT_TRUE(seeds_differ);
  EXPECT_EQ(one.prefill_tokens, 5);
  EXPECT_EQ(one.prefill_tokens_saved, 35);
  // A stream is the same whatever the others are: the first 3 of 8 are 3.
  const AnswerResult three = Solve(scripted, Ask(scripted, "pick", Sampled(3)));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(three.streams[i].tokens, one.streams[i].tokens);
  AnswerOptions later = Sampled(2);
  later.first_stream = 5;
  const AnswerResult tail = Solve(scripted, Ask(scripted, "pick", later));
  EXPECT_EQ(tail.streams[1].tokens, one.streams[6].tokens);
}

// Smaller budgets on the way are what each of them gives alone, with forced answers, thoughts, verification and votes.
TEST(AnswerTest, SmallerBudgetsOnTheWay) {
  ScriptedModel scripted;
  scripted.responses = {"<think>\nhm, that is 2 and 2\n</think>\n\n\\boxed{4}", "<think>\nno\n</think>\n\n\\boxed{5}",
                        "<think>\n" + std::string(90, 'x') + "\n</think>\n\nSo \\boxed{4}"};
  scripted.after_forced = "4}.";
  scripted.model.adapter = Adapter::Random(TinyConfig(), 4, LoraFormat::kF32);
  for (const bool force : {true, false}) {
    for (const ReasonMode mode : {ReasonMode::kOn, ReasonMode::kOff}) {
      AnswerOptions options = Sampled(6);
      options.mode = mode;
      options.budget = 200;
      options.force_answer = force;
      AnswerOptions ladder = options;
      ladder.smaller_budgets = {100, 60, 33, 12, 1, 0};
      const AnswerResult together = Solve(scripted, Ask(scripted, "2+2?", ladder));
      ASSERT_EQ(together.smaller.size(), 6U);
      for (size_t level = 0; level <= 6; ++level) {
        AnswerOptions one = options;
        if (level > 0) one.budget = ladder.smaller_budgets[level - 1];
        const AnswerResult alone = Solve(scripted, Ask(scripted, "2+2?", one));
        const AnswerResult& same = level == 0 ? together : together.smaller[level - 1];
        EXPECT_EQ(same.answer, alone.answer) << one.budget;
        EXPECT_EQ(same.chosen, alone.chosen) << one.budget;
        EXPECT_EQ(same.route, alone.route);
        ASSERT_EQ(same.streams.size(), alone.streams.size());
        for (size_t i = 0; i < alone.streams.size(); ++i) {
          EXPECT_EQ(same.streams[i].tokens, alone.streams[i].tokens) << one.budget << ", stream " << i;
          EXPECT_EQ(same.streams[i].text, alone.streams[i].text);
          EXPECT_EQ(same.streams[i].reasoning, alone.streams[i].reasoning);
          EXPECT_EQ(same.streams[i].finish, alone.streams[i].finish) << one.budget << ", stream " << i;
          EXPECT_EQ(same.streams[i].answer_forced, alone.streams[i].answer_forced);
          EXPECT_EQ(same.streams[i].truncated, alone.streams[i].truncated);
          EXPECT_EQ(same.streams[i].verifier_score, alone.streams[i].verifier_score);
          EXPECT_EQ(same.streams[i].candidate, alone.streams[i].candidate);
        }
      }
    }
  }
  AnswerOptions wrong = Sampled(2);
  wrong.budget = 50;
  for (const std::vector<int64_t>& smaller : {std::vector<int64_t>{50}, {10, 20}, {-1}}) {
    wrong.smaller_budgets = smaller;
    EXPECT_EQ(AnswerQuestion(scripted.model, Ask(scripted, "2+2?", wrong)).error().code, ErrorCode::kInvalidArgument);
  }
  wrong.smaller_budgets = {20};
  wrong.early_stop = true;
  EXPECT_EQ(AnswerQuestion(scripted.model, Ask(scripted, "2+2?", wrong)).error().code, ErrorCode::kInvalidArgument);
}

TEST(AnswerTest, MajorityIsTheAnswer) {
  ScriptedModel scripted;
  scripted.responses = {"a \\boxed{1/2}", "b \\boxed{0.5}", "c \\boxed{3}",
                        "d This is a hard question, and I do not see what it asks for or how one would begin with it."};
  const AnswerResult answer = Solve(scripted, Ask(scripted, "pick", Sampled(32)));
  ASSERT_EQ(answer.vote.candidates.size(), 2U);
  EXPECT_EQ(answer.vote.candidates[0].answer, "0.5");
  EXPECT_EQ(answer.answer, "0.5");
  double total = 0;
  for (const auto& stream : answer.streams) {
    if (stream.text[0] == 'd') {
      EXPECT_EQ(stream.candidate, -1);
      EXPECT_FALSE(stream.answer);
      total += 1;
    } else {
      EXPECT_EQ(stream.candidate, stream.text[0] == 'c' ? 1 : 0);
    }
  }
  for (const auto& candidate : answer.vote.candidates) total += candidate.weight;
  EXPECT_EQ(total, 32);
  EXPECT_EQ(answer.best().candidate, 0);
}

// --- routing ---

SwitcherHead SumHead(int64_t hidden) {
  // relu(sum) - 1
  SwitcherHead head;
  head.hidden = hidden;
  head.inner = 1;
  head.w1.assign(static_cast<size_t>(hidden), 1.0F);
  head.b1 = {0};
  head.w2 = {1};
  head.b2 = -1;
  return head;
}

TEST(AnswerTest, TheSwitcherChooses) {
  ScriptedModel scripted;
  scripted.model.switcher = SumHead(4);
  // Greedy takes the lower id of equally likely tokens: '#' comes before '<'.
  scripted.responses = {"# \\boxed{1}", "<think>\nhm</think>\\boxed{2}"};
  float value = 0;
  scripted.engine.state = [&](std::span<const KvOrigin>) { return std::vector<float>(4, value); };
  AnswerOptions options = Greedy();
  options.mode = ReasonMode::kAuto;
  EXPECT_EQ(DefaultMode(scripted.model), ReasonMode::kAuto);
  std::vector<std::pair<Route, std::optional<double>>> told;
  options.on_route = [&](Route route, std::optional<double> score) { told.emplace_back(route, score); };
  value = 0.1F;  // logit -0.6
  AnswerResult answer = Solve(scripted, Ask(scripted, "q", options));
  EXPECT_EQ(answer.route, Route::kDirect);
  EXPECT_NEAR(*answer.score, 1 / (1 + std::exp(0.6)), 1e-6);
  EXPECT_EQ(answer.threshold, 0.5);
  EXPECT_EQ(answer.answer, "1");
  value = 1.0F;  // logit 3
  answer = Solve(scripted, Ask(scripted, "q", options));
  EXPECT_EQ(answer.route, Route::kReason);
  EXPECT_EQ(answer.answer, "2");
  EXPECT_EQ(answer.best().reasoning, "hm");
  options.threshold = 0.99;
  answer = Solve(scripted, Ask(scripted, "q", options));
  EXPECT_EQ(answer.route, Route::kDirect);
  EXPECT_EQ(answer.threshold, 0.99);
  ASSERT_EQ(told.size(), 3U);
  EXPECT_EQ(told[1].first, Route::kReason);
  EXPECT_EQ(told[1].second, told[2].second);
}

TEST(AnswerTest, AutoAnswersEasyQuestionsWithOneStream) {
  ScriptedModel scripted;
  scripted.model.switcher = SumHead(4);
  scripted.responses = {"d \\boxed{1}"};
  AnswerOptions options = Sampled(8);
  options.mode = ReasonMode::kAuto;
  EXPECT_EQ(Solve(scripted, Ask(scripted, "q", options)).streams.size(), 1U);
  options.mode = ReasonMode::kOff;
  EXPECT_EQ(Solve(scripted, Ask(scripted, "q", options)).streams.size(), 8U);
}

TEST(AnswerTest, TheBudgetTemplateCostsOnlyItsTail) {
  ScriptedModel scripted;
  scripted.model.switcher = SumHead(4);
  scripted.engine.state = [](std::span<const KvOrigin>) { return std::vector<float>(4, 9.0F); };
  scripted.responses = {"<think>\nhm</think>\\boxed{2}"};
  AnswerOptions options = Greedy();
  options.mode = ReasonMode::kAuto;
  Question question = Ask(scripted, std::string(300, 'q'), options);
  question.reason_prompt = scripted.Prompt(std::string(300, 'q') + " in 50 tokens");
  const AnswerResult answer = Solve(scripted, question);
  EXPECT_EQ(answer.prompt_tokens, 314);
  EXPECT_EQ(answer.prefill_tokens, 301 + 14);
  EXPECT_EQ(answer.answer, "2");
  // The route alone, without the switcher, computes the one prompt.
  question.options.mode = ReasonMode::kOn;
  EXPECT_EQ(Solve(scripted, question).prefill_tokens, 314);
  question.options.mode = ReasonMode::kOff;
  EXPECT_EQ(Solve(scripted, question).prompt_tokens, 301);
}

TEST(AnswerTest, ThePooledStateDoesNotDependOnThePrefill) {
  ScriptedModel scripted;
  scripted.responses = {"\\boxed{1}"};
  scripted.engine.state = [](std::span<const KvOrigin> so_far) {
    std::vector<float> row(4);
    for (size_t i = 0; i < 4; ++i) row[i] = static_cast<float>(std::sin(static_cast<double>(so_far.size() * (i + 3))));
    return row;
  };
  std::vector<std::vector<float>> states;
  for (const int64_t chunk : {1, 7, 100, 128, 1000}) {
    BatchRunner runner(scripted.model, {.prefill_tokens = chunk});
    AnswerOptions options = Greedy();
    options.keep_states = true;
    ASSERT_TRUE(runner.Add(1, Ask(scripted, std::string(500, 'q'), options)).ok());
    while (!runner.idle()) {
      for (auto& finished : runner.Step()) states.push_back(finished.answer->pooled_state);
    }
  }
  ASSERT_EQ(states.size(), 5U);
  for (const auto& state : states) EXPECT_EQ(state, states[0]);
  EXPECT_EQ(states[0].size(), 4U);
}

// --- budget ---

TEST(AnswerTest, TheBudgetMakesEveryStreamAnswer) {
  ScriptedModel scripted;
  scripted.responses = {"<think>\n" + std::string(500, 'x')};
  AnswerOptions options = Sampled(4);
  options.mode = ReasonMode::kOn;
  options.budget = 100;
  const AnswerResult answer = Solve(scripted, Ask(scripted, "q", options));
  for (const auto& stream : answer.streams) {
    EXPECT_LE(stream.tokens.size(), 100U);
    EXPECT_EQ(stream.text, "The final answer is \\boxed{7}");
    EXPECT_TRUE(stream.answer_forced);
    EXPECT_FALSE(stream.truncated);
    EXPECT_EQ(stream.finish, FinishReason::kLength);
    ASSERT_TRUE(stream.answer);
    EXPECT_EQ(stream.answer->text, "7");
    EXPECT_EQ(stream.reasoning_tokens + stream.answer_tokens(), static_cast<int64_t>(stream.tokens.size()));
  }
  EXPECT_EQ(answer.answer, "7");
}

TEST(AnswerTest, TheBudgetIsExactInABatch) {
  ScriptedModel scripted;
  scripted.responses = {std::string(500, 'x')};
  scripted.after_forced = std::string(500, 'y');
  for (const int64_t budget : {0, 1, 2, 33, 64, 65}) {
    AnswerOptions options = Sampled(3);
    options.budget = budget;
    const AnswerResult answer = Solve(scripted, Ask(scripted, "q", options));
    for (const auto& stream : answer.streams) {
      EXPECT_EQ(static_cast<int64_t>(stream.tokens.size()), budget);
      EXPECT_TRUE(stream.truncated);
      EXPECT_FALSE(stream.answer);
    }
    EXPECT_FALSE(answer.answer);
  }
}

TEST(AnswerTest, AFullContextIsABudgetToo) {
  ScriptedModel scripted;
  scripted.engine.context_limit = 120;
  scripted.responses = {std::string(500, 'x')};
  const AnswerResult answer = Solve(scripted, Ask(scripted, "q", Greedy()));
  EXPECT_LE(answer.prompt_tokens + static_cast<int64_t>(answer.best().tokens.size()), 120);
  EXPECT_EQ(answer.best().finish, FinishReason::kContext);
  EXPECT_EQ(answer.answer, "7");
  const auto too_long = AnswerQuestion(scripted.model, Ask(scripted, std::string(200, 'q'), Greedy()));
  ASSERT_FALSE(too_long.ok());
  EXPECT_EQ(too_long.error().code, ErrorCode::kContextOverflow);
  const AnswerResult brim = Solve(scripted, Ask(scripted, std::string(119, 'q'), Greedy()));
  EXPECT_TRUE(brim.best().tokens.empty());
  EXPECT_EQ(brim.best().finish, FinishReason::kContext);
}

TEST(AnswerTest, ForcedTokensAreNotPenalized) {
  ScriptedModel scripted;
  scripted.responses = {std::string(500, 'x')};
  AnswerOptions options = Sampled(1);
  options.budget = 80;
  options.sampling.repetition_penalty = 1.5;
  const AnswerResult answer = Solve(scripted, Ask(scripted, "q", options));
  EXPECT_TRUE(answer.best().text.ends_with("\n\nThe final answer is \\boxed{7}"));
}

// --- edges ---

TEST(AnswerTest, BadOptionsAreNamed) {
  ScriptedModel scripted;
  scripted.responses = {"x"};
  const auto refuses = [&](const std::function<void(Question&)>& change, const std::string& word) {
    Question question = Ask(scripted, "q", Sampled(1));
    change(question);
    const auto answer = AnswerQuestion(scripted.model, question);
    ASSERT_FALSE(answer.ok()) << word;
    EXPECT_EQ(answer.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(answer.error().message.find(word), std::string::npos) << answer.error().message;
  };
  refuses([](Question& q) { q.options.mode = ReasonMode::kAuto; }, "switcher");
  refuses([](Question& q) { q.prompt.clear(); }, "prompt");
  refuses([](Question& q) { q.options.parallel = 0; }, "parallel");
  refuses([](Question& q) { q.options.parallel = -1; }, "parallel");
  refuses([](Question& q) { q.options.parallel = INT64_MAX; }, "parallel");
  refuses([](Question& q) { q.options.budget = -1; }, "budget");
  refuses([](Question& q) { q.options.budget = INT64_MAX; }, "budget");
  refuses([](Question& q) { q.options.threshold = 1.5; }, "threshold");
  refuses([](Question& q) { q.options.threshold = std::nan(""); }, "threshold");
  refuses([](Question& q) { q.options.sampling.temperature = -1; }, "temperature");
  refuses(
      [](Question& q) {
        q.options.parallel = 2;
        q.options.sampling.temperature = 0;
      },
      "temperature");
}

TEST(AnswerTest, CancelKeepsWhatWasGenerated) {
  ScriptedModel scripted;
  scripted.responses = {std::string(500, 'x')};
  std::atomic<bool> cancel{false};
  AnswerOptions options = Sampled(3);
  options.cancel = &cancel;
  options.on_progress = [&](std::span<const StreamProgress> streams) { cancel = streams[0].tokens >= 10; };
  const AnswerResult answer = Solve(scripted, Ask(scripted, "q", options));
  for (const auto& stream : answer.streams) {
    EXPECT_EQ(stream.finish, FinishReason::kCancelled);
    EXPECT_EQ(stream.text.size(), stream.tokens.size());
    EXPECT_GE(stream.tokens.size(), 10U);
    EXPECT_LE(stream.tokens.size(), 12U);
  }
  EXPECT_FALSE(answer.answer);
  // Before the prompt is done.
  cancel = true;
  const AnswerResult early = Solve(scripted, Ask(scripted, std::string(1000, 'q'), options));
  EXPECT_EQ(early.best().finish, FinishReason::kCancelled);
  EXPECT_TRUE(early.best().tokens.empty());
  EXPECT_EQ(scripted.engine.blocks_in_use(), 0);
}

TEST(AnswerTest, AConversationKeepsItsSequence) {
  Verified scripted;
  Sequence sequence = scripted.engine.NewSequence();
  Question question = Ask(scripted, "first", Sampled(4));
  question.sequence = &sequence;
  const AnswerResult first = Solve(scripted, question);
  // Prompt and chosen response, without the verification.
  std::vector<int32_t> held = question.prompt;
  held.insert(held.end(), first.best().tokens.begin(), first.best().tokens.end());
  ASSERT_EQ(sequence.length(), static_cast<int64_t>(held.size()));
  EXPECT_EQ(sequence.CommonPrefix(held, 0, sequence.length()), sequence.length());
  Question next = question;
  next.prompt = held;
  for (const int32_t id : scripted.Prompt(" second")) next.prompt.push_back(id);
  const AnswerResult second = Solve(scripted, next);
  EXPECT_EQ(second.cached_tokens, static_cast<int64_t>(held.size()));
  EXPECT_EQ(second.prefill_tokens, 8);
}

TEST(AnswerTest, APromptThatOpensTheThoughts) {
  ScriptedModel scripted;
  scripted.responses = {"hm</think>\\boxed{4}"};
  const auto end = std::string(1, ScriptedModel::kPromptEnd);
  Question question = Ask(scripted, "", Greedy());
  question.prompt = Ids(*scripted.tokenizer, "q" + end + "<think>\n");
  // The script begins after kPromptEnd, so the tag is part of it.
  scripted.responses = {"<think>\nhm</think>\\boxed{4}"};
  question.options.mode = ReasonMode::kOn;
  const AnswerResult answer = Solve(scripted, question);
  EXPECT_EQ(answer.best().reasoning, "hm");
  EXPECT_EQ(answer.best().text, "\\boxed{4}");
  EXPECT_EQ(answer.best().tokens.front(), 'h');  // nothing was forced
}

}  // namespace
}  // namespace pith
