#include "engine/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/data.h"

namespace pith {
namespace {

class PerplexityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto checkpoint = Checkpoint::Open(testing::GoldenPath("models/llama"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EngineOptions options;
    options.weights = WeightFormat::kF32;
    options.kv = KvType::kF32;
    options.prefill_chunk = 7;  // divides nothing here
    options.threads = 2;
    auto engine = Engine::Load(*checkpoint, options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    engine_ = std::move(*engine);
    for (int32_t i = 0; i < 45; ++i) tokens_.push_back((i * 37 + 5) % static_cast<int32_t>(engine_->config().vocab));
  }

  // Negative log-likelihoods of tokens[begin + 1, end) from the logits of one step over the window, in double.
  std::vector<double> Losses(size_t begin, size_t end) {
    Sequence sequence = engine_->NewSequence();
    const StepItem item{&sequence, std::span(tokens_).subspan(begin, end - begin), nullptr, Rows::kAll, Rows::kNone};
    const auto output = engine_->Step({&item, 1});
    EXPECT_TRUE(output.ok());
    std::vector<double> losses;
    for (size_t i = begin; i + 1 < end; ++i) {
      const auto logits = output->LogitsRow(static_cast<int64_t>(i - begin));
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      losses.push_back(std::log(sum) - static_cast<double>(logits[static_cast<size_t>(tokens_[i + 1])]));
    }
    return losses;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> tokens_;
};

TEST_F(PerplexityTest, MeanOverWindowsThatSeeNothingOfEachOther) {
  std::vector<double> losses, late;
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 20}, {20, 40}, {40, 45}}) {
    const std::vector<double> window = Losses(begin, end);
    losses.insert(losses.end(), window.begin(), window.end());
    // Tokens with more than 10 before them; the first loss is that of the second token.
    if (window.size() > 10) late.insert(late.end(), window.begin() + 10, window.end());
  }
  double sum = 0, late_sum = 0;
  for (const double loss : losses) sum += loss;
  for (const double loss : late) late_sum += loss;

  const auto result = Perplexity(*engine_, tokens_, {.window = 20, .max_tokens = 0, .on_progress = {}});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->tokens, 45);
  EXPECT_EQ(result->scored, static_cast<int64_t>(losses.size()));
  EXPECT_EQ(result->late_scored, static_cast<int64_t>(late.size()));
  EXPECT_EQ(result->late_scored, 18);
  EXPECT_NEAR(result->nll, sum / static_cast<double>(losses.size()), 1e-5);
  EXPECT_NEAR(std::log(result->late_perplexity), late_sum / static_cast<double>(late.size()), 1e-5);
  EXPECT_NEAR(result->perplexity, std::exp(result->nll), 1e-9 * result->perplexity);
}

TEST_F(PerplexityTest, AWindowOfOneTokenIsLeftOutAndMaxTokensCuts) {
  const auto whole =
      Perplexity(*engine_, std::span(tokens_).first(20), {.window = 20, .max_tokens = 0, .on_progress = {}});
  const auto cut = Perplexity(*engine_, tokens_, {.window = 20, .max_tokens = 21, .on_progress = {}});
  ASSERT_TRUE(whole.ok() && cut.ok());
  EXPECT_EQ(cut->tokens, 20);
  EXPECT_EQ(cut->nll, whole->nll);
}

TEST_F(PerplexityTest, WhatCannotBeScoredIsAnError) {
  for (const size_t count : {0u, 1u}) {
    const auto result =
        Perplexity(*engine_, std::span(tokens_).first(count), {.window = 20, .max_tokens = 0, .on_progress = {}});
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  }
  for (const int64_t window : {int64_t{1}, engine_->context() + 1}) {
    const auto result = Perplexity(*engine_, tokens_, {.window = window, .max_tokens = 0, .on_progress = {}});
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace pith
