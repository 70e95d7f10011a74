// Support for the tests of the policy: questions and options for the scripted engine.
#pragma once

#include <gtest/gtest.h>

#include <string_view>
#include <utility>
#include <vector>

#include "reason/answer.h"
#include "support/scripted_engine.h"

namespace pith::testing {

inline ModelConfig TinyConfig() {
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

inline Question Ask(const ScriptedModel& scripted, std::string_view text, AnswerOptions options) {
  Question question;
  question.prompt = scripted.Prompt(text);
  question.options = std::move(options);
  return question;
}

inline AnswerOptions Sampled(int64_t parallel, uint64_t seed = 1) {
  AnswerOptions options;
  options.parallel = parallel;
  options.sampling.temperature = 1.0;
  options.sampling.seed = seed;
  return options;
}

inline AnswerOptions Greedy() {
  AnswerOptions options;
  options.sampling.temperature = 0;
  return options;
}

inline AnswerResult Solve(const ScriptedModel& scripted, Question question) {
  auto answer = AnswerQuestion(scripted.model, std::move(question));
  EXPECT_TRUE(answer.ok()) << answer.error().message;
  return answer.ok() ? std::move(*answer) : AnswerResult{};
}

// From now on `origins` is what the last logits were computed from.
inline void RecordOrigins(ScriptedModel& scripted, std::vector<KvOrigin>* origins) {
  scripted.engine.next = [next = scripted.engine.next, origins](std::span<const KvOrigin> so_far) {
    origins->assign(so_far.begin(), so_far.end());
    return next(so_far);
  };
}

// A model with a verifier that trusts responses which begin with 'a'.
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

}  // namespace pith::testing
