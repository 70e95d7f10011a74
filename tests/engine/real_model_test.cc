// A real model: against transformers, and how generation behaves with it.
#include <gtest/gtest.h>

#include "engine/generate.h"
#include "engine/greedy_check.h"
#include "support/data.h"

namespace pith {
namespace {

TEST(RealModel, SmolLm2GreedyEqualsTransformers) {
  PITH_REQUIRE_MODEL(path, "smollm2-135m");
  testing::CompareGreedy("smollm2-135m", path, KvType::kF32);
}

class SmolLm2 : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = testing::ModelPath("smollm2-135m");
    if (!path) GTEST_SKIP() << "SKIPPED LOUDLY: model smollm2-135m is not here; run 'bin/pith pull smollm2-135m'";
    TextModelOptions options;
    options.weights = "stored";
    auto loaded = TextModel::Load(*path, options);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    model_ = std::move(*loaded);
  }

  GenerateResult Run(Sequence& sequence, const std::vector<ChatMessage>& messages, GenerateOptions options) {
    options.sampling.temperature = 0;
    const auto prompt = model_->Render(messages);
    EXPECT_TRUE(prompt.ok());
    auto result = Generate(*model_, sequence, *prompt, options);
    EXPECT_TRUE(result.ok()) << result.error().message;
    return *result;
  }

  std::unique_ptr<TextModel> model_;
};

TEST_F(SmolLm2, TheNextTurnOfAChatReusesTheCache) {
  Sequence sequence = model_->engine().NewSequence();
  GenerateOptions options;
  options.max_tokens = 24;
  std::vector<ChatMessage> messages{{"user", "Name three colours."}};
  const auto first = Run(sequence, messages, options);
  EXPECT_EQ(first.cached_tokens, 0);
  messages.push_back({"assistant", first.text});
  messages.push_back({"user", "And one more?"});
  const auto second = Run(sequence, messages, options);
  // Everything up to the end of the first answer is there already (the end-of-turn token itself was never computed).
  EXPECT_GE(second.cached_tokens, first.prompt_tokens);
  Sequence cold = model_->engine().NewSequence();
  const auto alone = Run(cold, messages, options);
  EXPECT_EQ(alone.cached_tokens, 0);
  EXPECT_EQ(second.tokens, alone.tokens);
}

TEST_F(SmolLm2, ReasoningIsForcedAndCountedAndStopStringsActOnTheAnswer) {
  Sequence sequence = model_->engine().NewSequence();
  GenerateOptions options;
  options.max_tokens = 16;
  options.reason = true;
  options.ignore_eos = true;
  options.stop = {"e"};  // thoughts are full of it
  std::string streamed;
  options.on_text = [&](std::string_view text, bool thought) {
    if (thought) streamed += text;
  };
  const auto result = Run(sequence, {{"user", "What is 2+2?"}}, options);
  const auto forced = model_->tokenizer()->Encode(kThinkOpen, {.parse_special = true, .special_ranges = {}});
  ASSERT_TRUE(forced.ok());
  ASSERT_GE(result.tokens.size(), forced->size());
  EXPECT_TRUE(std::equal(forced->begin(), forced->end(), result.tokens.begin()));
  EXPECT_LE(result.tokens.size(), 16U);  // forced tokens count
  EXPECT_EQ(result.finish, FinishReason::kLength);
  EXPECT_EQ(result.reasoning, streamed);
  EXPECT_FALSE(result.reasoning.empty());
  EXPECT_TRUE(result.text.empty());
}

TEST_F(SmolLm2, CancelKeepsWhatWasGenerated) {
  std::atomic<bool> cancel{false};
  GenerateOptions options;
  options.max_tokens = 200;
  options.cancel = &cancel;
  int pieces = 0;
  options.on_text = [&](std::string_view, bool) { cancel = ++pieces == 3; };
  Sequence sequence = model_->engine().NewSequence();
  const auto result = Run(sequence, {{"user", "Tell me a long story."}}, options);
  EXPECT_EQ(result.finish, FinishReason::kCancelled);
  EXPECT_FALSE(result.text.empty());
  EXPECT_LT(result.tokens.size(), 20U);
}

TEST_F(SmolLm2, SampledStreamsDifferAndRepeat) {
  const auto prompt = model_->Render({{"user", "Write a sentence about the sea."}});
  ASSERT_TRUE(prompt.ok());
  const auto run = [&](uint64_t seed, uint64_t stream) {
    GenerateOptions options;
    options.max_tokens = 16;
    options.sampling.temperature = 1.0;
    options.sampling.seed = seed;
    options.stream = stream;
    Sequence sequence = model_->engine().NewSequence();
    return Generate(*model_, sequence, *prompt, options)->tokens;
  };
  const uint64_t last = ~uint64_t{0};
  EXPECT_EQ(run(last, 0), run(last, 0));
  EXPECT_NE(run(last, 0), run(last, 1));
  EXPECT_NE(run(last, 0), run(0, 0));
}

}  // namespace
}  // namespace pith
