// The whole policy on a scripted engine.
#include "reason/answer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <set>

#include "reason/batch_runner.h"
#include "support/scripted_engine.h"

namespace pith {
namespace {

using testing::Ids;
using testing::PieceTokenizer;
using testing::ScriptedModel;

ModelConfig TinyConfig() {
  ModelConfig config;
  config.hidden = 32;
  config.intermediate = 32;
  config.layers = 1;
  config.heads = 1;
  config.kv_heads = 1;
  config.head_dim = 32;
  config.vocab = 32;
  return config;
}

Question Ask(const ScriptedModel& scripted, std::string_view text, AnswerOptions options) {
  Question question;
  question.prompt = scripted.Prompt(text);
  question.options = std::move(options);
  return question;
}

AnswerOptions Sampled(int64_t parallel, uint64_t seed = 1) {
  AnswerOptions options;
  options.parallel = parallel;
  options.sampling.temperature = 1.0;
  options.sampling.seed = seed;
  return options;
}

AnswerOptions Greedy() {
  AnswerOptions options;
  options.sampling.temperature = 0;
  return options;
}

AnswerResult Solve(const ScriptedModel& scripted, Question question) {
  auto answer = AnswerQuestion(scripted.model, std::move(question));
  EXPECT_TRUE(answer.ok()) << answer.error().message;
  return answer.ok() ? std::move(*answer) : AnswerResult{};
}

// From now on `origins` is what the last logits were computed from.
void RecordOrigins(ScriptedModel& scripted, std::vector<KvOrigin>* origins) {
  scripted.engine.next = [next = scripted.engine.next, origins](std::span<const KvOrigin> so_far) {
    origins->assign(so_far.begin(), so_far.end());
    return next(so_far);
  };
}

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

// --- verifier ---

struct Verified : ScriptedModel {
  Verified() {
    model.verifier.emplace();
    model.verifier->hidden = 4;
    model.verifier->w = {1, 0, 0, 0};
    model.verification = Ids(*tokenizer, "\nright?");
    // The state says what the response began with: 'a' is trusted.
    engine.state = [](std::span<const KvOrigin> so_far) {
      size_t begin = so_far.size();
      while (begin > 0 && so_far[begin - 1].token != kPromptEnd) --begin;
      const float trust = begin < so_far.size() && so_far[begin].token == 'a' ? 3.0F : -3.0F;
      return std::vector<float>{trust, 0, 0, 0};
    };
    responses = {"a \\boxed{1}", "b \\boxed{2}", "c \\boxed{2}", "d \\boxed{2}"};
  }
};

TEST(AnswerTest, TheVerifierOutvotesTheMajority) {
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

TEST(AnswerTest, VerificationReadsTheStreamsOwnCache) {
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

TEST(AnswerTest, OneStreamIsVerifiedOnlyWhenAsked) {
  Verified scripted;
  EXPECT_FALSE(Solve(scripted, Ask(scripted, "q", Greedy())).best().verifier_score);
  AnswerOptions options = Greedy();
  options.verify = AnswerOptions::Verify::kAlways;
  EXPECT_TRUE(Solve(scripted, Ask(scripted, "q", options)).best().verifier_score);
}

// --- early stop ---

TEST(AnswerTest, EarlyStopChangesNoWinner) {
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
TEST(AnswerTest, EarlyStopWaitsWhileTheOthersMayBeOne) {
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
TEST(AnswerTest, EarlyStopVotesOnlyWhenAStreamEnds) {
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

// --- many questions ---

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
