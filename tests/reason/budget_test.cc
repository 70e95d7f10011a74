#include "reason/budget.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "support/scripted_engine.h"

namespace pith {
namespace {

using testing::Ids;
using testing::PieceTokenizer;
using testing::ScriptedModel;

constexpr const char* kPrefix = "The final answer is \\boxed{";

class BudgetTest : public ::testing::Test {
 protected:
  BudgetTest() { Use(ScriptedModel::DefaultPieces()); }
  void Use(std::vector<std::string> pieces) {
    tokenizer_ = std::make_shared<PieceTokenizer>(std::move(pieces));
    ReasonModel model;
    model.tokenizer = tokenizer_;
    EXPECT_TRUE(model.Finish().ok());
    forced_ = model.forced;
  }
  ResponseOptions Options(int64_t cap) const {
    ResponseOptions options;
    options.tokenizer = tokenizer_;
    options.forced = forced_;
    options.plan = {.cap = cap, .force_answer = true, .reserve = 8};
    options.stop_ids = {PieceTokenizer::kEnd};
    return options;
  }

  // A model that says `text`, and after something was forced `rest`; its tokens are offered in chunks of these sizes,
  // the last one over and over.
  struct Trace {
    std::vector<int32_t> tokens;
    std::string text, reasoning, streamed_text, streamed_reasoning;
    int64_t reasoning_tokens = 0;
    FinishReason finish = FinishReason::kStop;
    bool forced = false, truncated = false;
    bool operator==(const Trace&) const = default;
  };
  Trace Run(ResponseOptions options, std::string_view text, std::string_view rest,
            std::vector<size_t> chunks = {1}) const {
    Trace trace;
    options.on_text = [&](std::string_view piece, bool thought) {
      (thought ? trace.streamed_reasoning : trace.streamed_text) += piece;
    };
    Response response(std::move(options));
    std::vector<int32_t> script = Ids(*tokenizer_, text);
    size_t at = 0;
    size_t chunk = 0;
    while (!response.done()) {
      if (!response.forced().empty()) {
        const std::vector<int32_t> announced(response.forced().begin(), response.forced().end());
        EXPECT_EQ(response.TakeForced(), announced);
        if (response.answer_forced()) {
          script = Ids(*tokenizer_, rest);
          at = 0;
        }
        continue;
      }
      const int32_t end = PieceTokenizer::kEnd;
      std::span<const int32_t> offer = std::span(script).subspan(at, std::min(script.size() - at, chunks[chunk]));
      if (offer.empty()) offer = {&end, 1};
      const size_t taken = response.Push(offer);
      EXPECT_LE(taken, offer.size());
      EXPECT_GT(taken, 0U);
      at += taken;
      if (chunk + 1 < chunks.size()) ++chunk;
    }
    EXPECT_EQ(response.Push(script), 0U);  // nothing is taken any more
    trace.tokens = response.tokens();
    trace.text = response.text();
    trace.reasoning = response.reasoning();
    trace.reasoning_tokens = response.reasoning_tokens();
    trace.finish = response.finish();
    trace.forced = response.answer_forced();
    trace.truncated = response.truncated();
    EXPECT_EQ(trace.text, trace.streamed_text);
    EXPECT_EQ(trace.reasoning, trace.streamed_reasoning);
    return trace;
  }
  std::string Text(const std::vector<int32_t>& tokens) const { return tokenizer_->Decode(tokens, false); }
  int64_t Count(std::string_view text) const { return static_cast<int64_t>(Ids(*tokenizer_, text).size()); }

  std::shared_ptr<const PieceTokenizer> tokenizer_;
  std::shared_ptr<const ForcedTokens> forced_;
};

const std::string kLongThoughts(300, 'x');

TEST_F(BudgetTest, UnderTheBudgetNothingIsForced) {
  ResponseOptions options = Options(200);
  options.force_open = true;
  const Trace trace = Run(options, "hm\n</think>\n\nIt is 4.", "");
  EXPECT_EQ(Text(trace.tokens), "<think>\nhm\n</think>\n\nIt is 4.");
  EXPECT_EQ(trace.reasoning, "hm\n");
  EXPECT_EQ(trace.text, "It is 4.");
  EXPECT_EQ(trace.finish, FinishReason::kStop);
  EXPECT_FALSE(trace.forced);
  EXPECT_FALSE(trace.truncated);
  EXPECT_EQ(trace.reasoning_tokens, Count("<think>\nhm\n</think>\n\n"));
}

TEST_F(BudgetTest, TheCapClosesTheThoughtsAndAsksForTheAnswer) {
  ResponseOptions options = Options(100);
  options.force_open = true;
  const Trace trace = Run(options, kLongThoughts, "42}. Also");
  const std::string close = std::string("\n</think>\n\n") + kPrefix;
  const int64_t thoughts = 100 - Count("<think>\n") - Count(close) - 8;
  EXPECT_EQ(Text(trace.tokens), "<think>\n" + std::string(static_cast<size_t>(thoughts), 'x') + close + "42}");
  EXPECT_EQ(trace.text, std::string(kPrefix) + "42}");
  EXPECT_EQ(trace.reasoning, std::string(static_cast<size_t>(thoughts), 'x') + "\n");
  EXPECT_EQ(trace.finish, FinishReason::kLength);
  EXPECT_TRUE(trace.forced);
  EXPECT_FALSE(trace.truncated);  // the box was closed
}

TEST_F(BudgetTest, TheCapIsExact) {
  // The answer never ends: every cap is met to the token, whatever it is and however the tokens come.
  for (const bool open : {false, true}) {
    for (int64_t cap = 0; cap <= 120; ++cap) {
      ResponseOptions options = Options(cap);
      options.force_open = open;
      const Trace one = Run(options, kLongThoughts, kLongThoughts);
      ASSERT_EQ(static_cast<int64_t>(one.tokens.size()), cap);
      EXPECT_EQ(one.finish, FinishReason::kLength);
      EXPECT_TRUE(one.truncated);
      for (const std::vector<size_t>& chunks : std::vector<std::vector<size_t>>{{2}, {7}, {1000}, {1, 2, 3, 50}}) {
        EXPECT_EQ(Run(options, kLongThoughts, kLongThoughts, chunks), one) << cap;
      }
    }
  }
}

TEST_F(BudgetTest, AnyChunksGiveTheSameTrace) {
  std::mt19937 random(7);
  const std::string scripts[] = {
      "hm\n</think>\n\nIt is 4.",
      "a \"</think>\" b</think>c\n<think>d\n</think>\n\ne \\boxed{1}" + kLongThoughts,
      "so</think>" + kLongThoughts,
      "so</think>x\n<think>" + kLongThoughts,
      "\xF0\x9F\x98\x80\xE6\x97\xA5" + kLongThoughts,
  };
  for (const std::string& script : scripts) {
    for (const int64_t cap : {1, 9, 40, 60, 61, 62, 63, 64, 100, 1000}) {
      ResponseOptions options = Options(cap);
      options.force_open = true;
      options.stop = {"e \\b", "4."};
      const Trace one = Run(options, script, "\\frac{1}{2}}");
      for (int round = 0; round < 20; ++round) {
        std::vector<size_t> chunks;
        for (int i = 0; i < 50; ++i) chunks.push_back(1 + random() % 9);
        ASSERT_EQ(Run(options, script, "\\frac{1}{2}}", chunks), one) << script << " cap " << cap;
      }
    }
  }
}

TEST_F(BudgetTest, BudgetOfNothing) {
  ResponseOptions options = Options(0);
  options.force_open = true;
  const Trace trace = Run(options, "x", "y");
  EXPECT_TRUE(trace.tokens.empty());
  EXPECT_EQ(trace.finish, FinishReason::kLength);
  EXPECT_TRUE(trace.truncated);
}

TEST_F(BudgetTest, TheReserveShrinksWhenTheBudgetIsSmall) {
  const int64_t forced = Count(std::string("\n\n") + kPrefix);
  // A quarter of the cap, not the 8 that were asked for.
  const Trace trace = Run(Options(forced + 9), kLongThoughts, "7}");
  const int64_t reserve = std::min<int64_t>(8, (forced + 9) / 4);
  EXPECT_EQ(Text(trace.tokens), std::string(static_cast<size_t>(9 - reserve), 'x') + "\n\n" + kPrefix + "7}");
  // Too small for what is forced: cut at the cap.
  const Trace cut = Run(Options(forced - 2), kLongThoughts, "7}");
  std::vector<int32_t> most = forced_->answer;
  most.resize(most.size() - 2);
  EXPECT_EQ(cut.tokens, most);
  EXPECT_TRUE(cut.truncated);
}

TEST_F(BudgetTest, WithoutForcingTheCapJustCuts) {
  ResponseOptions options = Options(20);
  options.plan.force_answer = false;
  options.plan.at_cap = FinishReason::kContext;
  options.force_open = true;
  const Trace trace = Run(options, kLongThoughts, "");
  EXPECT_EQ(Text(trace.tokens), "<think>\n" + std::string(static_cast<size_t>(20 - Count("<think>\n")), 'x'));
  EXPECT_EQ(trace.finish, FinishReason::kContext);
  EXPECT_FALSE(trace.forced);
  EXPECT_EQ(trace.text, "");
}

TEST_F(BudgetTest, PlainModelWithoutTags) {
  const Trace trace = Run(Options(80), kLongThoughts, "\\frac{1}{2}} and more");
  const int64_t free = 80 - Count(std::string("\n\n") + kPrefix) - 8;
  EXPECT_EQ(trace.text, std::string(static_cast<size_t>(free), 'x') + "\n\n" + kPrefix + "\\frac{1}");  // 8 more tokens
  EXPECT_TRUE(trace.truncated);
  ResponseOptions options = Options(80);
  options.plan.reserve = 20;
  EXPECT_TRUE(Run(options, kLongThoughts, "\\frac{1}{2}} and more").text.ends_with("\\boxed{\\frac{1}{2}}"));
  EXPECT_EQ(trace.reasoning_tokens, 0);
}

TEST_F(BudgetTest, AnAnswerUnderWayIsNotDisturbed) {
  ResponseOptions options = Options(80);
  options.force_open = true;
  const int64_t free = 80 - Count(std::string("\n\n") + kPrefix) - 8;
  std::string start = "</think>So \\boxed{1";
  const int64_t used = Count("<think>\n" + start);
  ASSERT_LT(used, free);
  const std::string digits(static_cast<size_t>(free - used + 3), '2');
  const Trace trace = Run(options, start + digits + "}.", "unused");
  EXPECT_EQ(trace.text, "So \\boxed{1" + digits + "}.");
  EXPECT_FALSE(trace.forced);
  EXPECT_EQ(trace.finish, FinishReason::kStop);
  // It still ends at the cap.
  const Trace endless = Run(options, start + kLongThoughts, "unused");
  EXPECT_EQ(endless.tokens.size(), 80U);
  EXPECT_FALSE(endless.forced);
  EXPECT_TRUE(endless.truncated);
}

TEST_F(BudgetTest, AnEmptyBoxIsNoAnswer) {
  const Trace trace = Run(Options(90), "I put it in \\boxed{}. " + kLongThoughts, "5}");
  EXPECT_TRUE(trace.forced);
  EXPECT_TRUE(trace.text.ends_with(std::string(kPrefix) + "5}"));
}

TEST_F(BudgetTest, CapInsideTheAnswer) {
  ResponseOptions options = Options(80);
  options.force_open = true;
  const Trace trace = Run(options, "hm</think>Then " + kLongThoughts, "5}");
  EXPECT_TRUE(trace.text.ends_with(std::string("xxx\n\n") + kPrefix + "5}"));
  EXPECT_EQ(trace.reasoning, "hm");
  EXPECT_EQ(Text(trace.tokens).find("</think>"), Text(trace.tokens).rfind("</think>"));  // closed once
}

TEST_F(BudgetTest, ThoughtsThatWereOpenedAgainAreClosedAgain) {
  ResponseOptions options = Options(90);
  options.force_open = true;
  const Trace trace = Run(options, "hm</think>maybe\n<think>" + kLongThoughts, "5}");
  EXPECT_EQ(trace.text, std::string("maybe\n") + kPrefix + "5}");
  EXPECT_TRUE(trace.reasoning.starts_with("hmxxx"));
  EXPECT_TRUE(Text(trace.tokens).ends_with(std::string("x\n</think>\n\n") + kPrefix + "5}"));
}

TEST_F(BudgetTest, QuotedTagsCloseNothing) {
  ResponseOptions options = Options(90);
  options.force_open = true;
  const Trace trace = Run(options, "the `</think>` tag " + kLongThoughts, "5}");
  EXPECT_EQ(trace.text, std::string(kPrefix) + "5}");
  EXPECT_TRUE(trace.reasoning.starts_with("the `</think>` tag xxx"));
}

TEST_F(BudgetTest, AClosingTagAfterAQuoteAtTheCap) {
  // The cap comes right after `"</think>`: what follows is the forced text, so it was a tag.
  for (int64_t cap = 40; cap < 110; ++cap) {
    ResponseOptions options = Options(cap);
    options.force_open = true;
    const Trace trace = Run(options, std::string(30, 'x') + "\"</think>" + std::string(300, 'y'), "5}");
    const ParsedResponse parsed = ParseResponse(tokenizer_, trace.tokens);
    EXPECT_EQ(parsed.text, trace.text) << cap;
    EXPECT_EQ(parsed.reasoning, trace.reasoning) << cap;
    EXPECT_EQ(parsed.reasoning_tokens, trace.reasoning_tokens) << cap;
    if (trace.forced && !trace.truncated) {
      EXPECT_TRUE(trace.text.ends_with(std::string(kPrefix) + "5}")) << cap;
    }
  }
}

TEST_F(BudgetTest, AStreamThatEndsInItsThoughtsIsMadeToAnswer) {
  ResponseOptions options = Options(200);
  options.force_open = true;
  const Trace trace = Run(options, "hm", "5}");
  EXPECT_EQ(Text(trace.tokens), std::string("<think>\nhm\n</think>\n\n") + kPrefix + "5}");
  EXPECT_EQ(trace.finish, FinishReason::kStop);  // the budget was not reached
  EXPECT_TRUE(trace.forced);
  options.plan.force_answer = false;
  const Trace ended = Run(options, "hm", "5}");
  EXPECT_EQ(ended.finish, FinishReason::kStop);
  EXPECT_TRUE(ended.truncated);
  EXPECT_EQ(ended.text, "");
}

TEST_F(BudgetTest, StopStringsActOnTheVisibleAnswerOnly) {
  ResponseOptions options = Options(100);
  options.force_open = true;
  options.stop = {"\n\n", "STOP"};
  const Trace trace = Run(options, "a\n\nb STOP c</think>yes STOP no", "");
  EXPECT_EQ(trace.reasoning, "a\n\nb STOP c");
  EXPECT_EQ(trace.text, "yes ");
  EXPECT_EQ(trace.finish, FinishReason::kStop);
  // What is forced is not searched, though it has a blank line and the answer is cut by it.
  const Trace forced = Run(options, "hm</think>" + kLongThoughts, "5}");
  EXPECT_TRUE(forced.text.ends_with(std::string("x\n\n") + kPrefix + "5}"));
  // A part of a stop string that was held back is not lost when something is forced.
  ResponseOptions held = Options(60);
  held.stop = {"xz"};
  const Trace kept = Run(held, kLongThoughts, "5}");
  EXPECT_EQ(kept.text, Text(kept.tokens));
}

TEST_F(BudgetTest, TagsAsTokens) {
  auto pieces = ScriptedModel::DefaultPieces();
  pieces.emplace_back("<think>");
  pieces.emplace_back("</think>");
  Use(pieces);
  ResponseOptions options = Options(90);
  options.force_open = true;
  const Trace trace = Run(options, kLongThoughts, "5}");
  EXPECT_EQ(trace.text, std::string(kPrefix) + "5}");
  EXPECT_EQ(trace.tokens.front(), tokenizer_->FindToken("<think>"));
  // Spelled out, the tag is text: the id is what counts.
  Response response(options);
  response.TakeForced();
  for (const char c : std::string("</think>")) {
    const auto token = static_cast<int32_t>(static_cast<unsigned char>(c));
    response.Push({&token, 1});
  }
  EXPECT_TRUE(response.thinking());
  const int32_t close = tokenizer_->FindToken("</think>");
  response.Push({&close, 1});
  EXPECT_FALSE(response.thinking());
}

TEST_F(BudgetTest, EverySplitParsesAsItStreamed) {
  for (const char* script : {"hm\n</think>\n\nIt is 4.", "a \"</think>\" b</think>c\n<think>d", "x</think>\n<thi"}) {
    ResponseOptions options = Options(500);
    options.plan.force_answer = false;
    options.force_open = true;
    const Trace trace = Run(options, script, "");
    const ParsedResponse parsed = ParseResponse(tokenizer_, trace.tokens);
    EXPECT_EQ(parsed.text, trace.text);
    EXPECT_EQ(parsed.reasoning, trace.reasoning);
    EXPECT_EQ(parsed.reasoning_tokens, trace.reasoning_tokens);
  }
}

TEST_F(BudgetTest, PromptsThatOpenTheThoughts) {
  EXPECT_TRUE(PromptOpensThinking(*tokenizer_, Ids(*tokenizer_, "user: hi\nassistant: <think>\n")));
  EXPECT_TRUE(PromptOpensThinking(*tokenizer_, Ids(*tokenizer_, "<think>")));
  EXPECT_FALSE(PromptOpensThinking(*tokenizer_, Ids(*tokenizer_, "<think>\n\n</think>\n\n")));
  EXPECT_FALSE(PromptOpensThinking(*tokenizer_, Ids(*tokenizer_, "what is <think>? assistant:")));
  EXPECT_FALSE(PromptOpensThinking(*tokenizer_, {}));
}

}  // namespace
}  // namespace pith
