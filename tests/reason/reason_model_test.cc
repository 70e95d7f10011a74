// The policy on real engines: the tiny models of tests/golden, and a real model where there is one.
#include "reason/reason_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "reason/answer.h"
#include "reason/batch_runner.h"
#include "support/data.h"

namespace pith {
namespace {

using testing::GoldenPath;

TEST(ReasoningTextsTest, RoundTrip) {
  ReasoningTexts texts;
  texts.budget_template = "\n\nAnswer within {budget} tokens.";
  texts.answer_prefix = "Final Answer: ";
  texts.answer_reserve = 48;
  texts.default_budget = 3000;
  const auto read = ParseReasoningTexts(WriteReasoningTexts(texts), "x");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->budget_template, texts.budget_template);
  EXPECT_EQ(read->answer_prefix, texts.answer_prefix);
  EXPECT_EQ(read->answer_reserve, 48);
  EXPECT_EQ(read->default_budget, 3000);
  EXPECT_EQ(read->BudgetText(1024), "\n\nAnswer within 1024 tokens.");
  const auto defaults = ParseReasoningTexts("{}", "x");
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(defaults->BudgetText(1024), "");
  EXPECT_EQ(defaults->answer_prefix, "The final answer is \\boxed{");
}

TEST(ReasoningTextsTest, MalformedFieldsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "object"},
      {"{", "x"},
      {R"({"budget":1})", "\"budget\""},
      {R"({"budget_template":"no place"})", "budget_template"},
      {R"({"budget_template":"{budget} {budget}"})", "budget_template"},
      {R"({"budget_template":7})", "budget_template"},
      {R"({"answer_prefix":""})", "answer_prefix"},
      {R"({"answer_reserve":0})", "answer_reserve"},
      {R"({"answer_reserve":1.5})", "answer_reserve"},
      {R"({"default_budget":18446744073709551615})", "default_budget"},
      {R"({"default_budget":-1})", "default_budget"},
  };
  for (const auto& [json, word] : cases) {
    const auto texts = ParseReasoningTexts(json, "x");
    ASSERT_FALSE(texts.ok()) << json;
    EXPECT_EQ(texts.error().code, ErrorCode::kMalformed);
    EXPECT_NE(texts.error().message.find(word), std::string::npos) << texts.error().message;
  }
}

// Token i of the tiny models' 96 is the i-th printable character; the last one is a line break.
class CharTokenizer final : public Tokenizer {
 public:
  CharTokenizer() {
    for (int i = 0; i < 96; ++i) bytes_ += i == 95 ? '\n' : static_cast<char>(' ' + i);
  }
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions&) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<int32_t>(bytes_.find(c)));
    return ids;
  }
  std::string_view TokenBytes(int32_t id) const override {
    return id >= 0 && id < 96 ? std::string_view(bytes_).substr(static_cast<size_t>(id), 1) : std::string_view();
  }
  bool IsSpecial(int32_t) const override { return false; }
  int32_t FindToken(std::string_view) const override { return -1; }
  int32_t size() const override { return 96; }
  int32_t bos_id() const override { return -1; }

 private:
  std::string bytes_;
};

struct TinyReasoner {
  explicit TinyReasoner(const EngineOptions& options = {.weights = WeightFormat::kF32, .threads = 2}) {
    auto checkpoint = Checkpoint::Open(GoldenPath("models/qwen2_untied"));
    EXPECT_TRUE(checkpoint.ok());
    auto loaded = Engine::Load(*checkpoint, options);
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    engine = std::move(*loaded);
    step_engine = std::make_unique<ModelStepEngine>(*engine);
    auto adapter = engine->LoadAdapter(GoldenPath("models/qwen2_untied/adapters/all"));
    EXPECT_TRUE(adapter.ok());
    model.engine = step_engine.get();
    model.tokenizer = std::make_shared<CharTokenizer>();
    model.adapter = *adapter;
    EXPECT_TRUE(model.Finish().ok());
  }
  Question Ask(std::string_view text, AnswerOptions options) const {
    Question question;
    question.prompt = *model.tokenizer->Encode(text, {});
    question.options = std::move(options);
    return question;
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<ModelStepEngine> step_engine;
  ReasonModel model;
};

AnswerOptions Sampled(int64_t parallel, ReasonMode mode) {
  AnswerOptions options;
  options.mode = mode;
  options.parallel = parallel;
  options.budget = 60;
  options.sampling.temperature = 0.8;
  options.sampling.seed = 11;
  return options;
}

// The response of the policy is the one of a cold masked run: base on the prompt, adapter on the response.
TEST(ReasonEngineTest, AStreamIsTheColdMaskedRun) {
  TinyReasoner tiny;
  AnswerOptions options = Sampled(3, ReasonMode::kOn);
  options.force_answer = false;
  const auto question = tiny.Ask("Some question of a certain length, a little more than one block of 64?", options);
  const auto answer = AnswerQuestion(tiny.model, question);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  auto sampler = Sampler::Create(question.options.sampling);
  for (size_t i = 0; i < 3; ++i) {
    const auto& tokens = answer->streams[i].tokens;
    ASSERT_EQ(tokens.size(), 60U);
    Sequence cold = tiny.engine->NewSequence();
    std::vector<StepItem> items{{&cold, question.prompt, nullptr, Rows::kLast, Rows::kNone}};
    ASSERT_TRUE(tiny.engine->Step(items).ok());
    int sampled = 0;
    for (size_t t = 0; t < tokens.size(); ++t) {
      items[0] = {&cold, {&tokens[t], 1}, tiny.model.adapter.get(), Rows::kLast, Rows::kNone};
      const auto position = static_cast<uint64_t>(cold.length());
      const auto output = tiny.engine->Step(items);
      ASSERT_TRUE(output.ok());
      // After the forced tag every token is the sampler's.
      if (t + 1 >= tiny.model.forced->open.size() && t + 1 < tokens.size()) {
        const auto next = sampler->Sample(output->LogitsRow(0), {}, i, position + 1);
        ASSERT_TRUE(next.ok());
        EXPECT_EQ(next->token, tokens[t + 1]) << "stream " << i << " token " << t + 1;
        ++sampled;
      }
    }
    EXPECT_EQ(sampled, 60 - static_cast<int>(tiny.model.forced->open.size()));
  }
}

TEST(ReasonEngineTest, BatchesThreadsAndPrefillChangeNothing) {
  std::map<uint64_t, AnswerResult> want;
  for (const int threads : {1, 2}) {
    for (const BatchOptions batch : {BatchOptions{1, 1}, BatchOptions{16, 7}, BatchOptions{64, 128}}) {
      TinyReasoner tiny({.weights = WeightFormat::kF32, .threads = threads});
      tiny.model.verification = *tiny.model.tokenizer->Encode("\nIs it right?", {});
      BatchRunner runner(tiny.model, batch);
      for (uint64_t id = 0; id < 6; ++id) {
        AnswerOptions options =
            Sampled(1 + static_cast<int64_t>(id % 3), id % 2 == 0 ? ReasonMode::kOn : ReasonMode::kOff);
        options.keep_states = true;
        options.verify = AnswerOptions::Verify::kAlways;
        options.sampling.seed = id;
        ASSERT_TRUE(runner.Add(id, tiny.Ask(std::string(20 + id * 25, 'a') + "?", options)).ok());
      }
      std::map<uint64_t, AnswerResult> got;
      while (!runner.idle()) {
        for (auto& finished : runner.Step()) {
          ASSERT_TRUE(finished.answer.ok()) << finished.answer.error().message;
          got[finished.id] = std::move(*finished.answer);
        }
      }
      ASSERT_EQ(got.size(), 6U);
      if (want.empty()) {
        want = std::move(got);
        continue;
      }
      for (const auto& [id, answer] : got) {
        EXPECT_EQ(answer.pooled_state, want[id].pooled_state);
        EXPECT_EQ(answer.pooled_state.size(), 32U);
        for (size_t i = 0; i < answer.streams.size(); ++i) {
          EXPECT_EQ(answer.streams[i].tokens, want[id].streams[i].tokens);
          EXPECT_EQ(answer.streams[i].verification_state, want[id].streams[i].verification_state);
          EXPECT_EQ(answer.streams[i].verification_state.size(), 32U);
        }
      }
    }
  }
}

TEST(ReasonEngineTest, HeadsAreFoundInTheAdapterDirectory) {
  // Needs a tokenizer and a template, so a real model.
  PITH_REQUIRE_MODEL(path, "smollm2-135m");
  TextModelOptions options;
  options.weights = "stored";
  auto model = TextModel::Load(path, options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const int64_t hidden = (*model)->engine().config().hidden;
  const std::string dir = testing::TempDir();
  VerifierHead verifier;
  verifier.hidden = hidden;
  verifier.prompt = "Is this solution right?";
  verifier.w.assign(static_cast<size_t>(hidden), 0.0F);
  ASSERT_TRUE(WriteVerifier(dir + "/v", verifier).ok());
  auto loaded = LoadedReasonModel::Load(**model, {.verifier = dir + "/v"});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(DefaultMode((*loaded)->model()), ReasonMode::kOff);
  const auto& tokenizer = *(*model)->tokenizer();
  EXPECT_EQ(tokenizer.Decode((*loaded)->model().verification, false),
            "<|im_end|>\n<|im_start|>user\nIs this solution right?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ((*loaded)->model().verification.front(), tokenizer.FindToken("<|im_end|>"));
  // The turn of verification is what a conversation would hold.
  const auto conversation = (*model)->Render({{"user", "2+2?"}, {"assistant", "4"}, {"user", verifier.prompt}});
  ASSERT_TRUE(conversation.ok());
  const auto& turn = (*loaded)->model().verification;
  ASSERT_GT(conversation->size(), turn.size());
  EXPECT_TRUE(std::equal(turn.rbegin(), turn.rend(), conversation->rbegin()));

  ASSERT_TRUE(WriteVerifier(dir + "/wrong",
                            [&] {
                              VerifierHead head = verifier;
                              head.hidden = hidden + 1;
                              head.w.push_back(0);
                              return head;
                            }())
                  .ok());
  const auto wrong = LoadedReasonModel::Load(**model, {.verifier = dir + "/wrong"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().code, ErrorCode::kMismatch);
  const auto missing = LoadedReasonModel::Load(**model, {.switcher = dir + "/none"});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);

  // The budget template goes to the end of the last user message.
  ReasoningTexts texts;
  texts.budget_template = " Use {budget} tokens.";
  const auto prompts = RenderPrompts(**model, texts, {{"user", "Hi"}, {"assistant", "Yes"}, {"user", "2+2?"}}, 77);
  ASSERT_TRUE(prompts.ok());
  EXPECT_NE(tokenizer.Decode(prompts->reason, false).find("2+2? Use 77 tokens.<|im_end|>"), std::string::npos);
  EXPECT_EQ(tokenizer.Decode(prompts->direct, false).find("tokens"), std::string::npos);
  const auto without = RenderPrompts(**model, texts, {{"user", "2+2?"}}, 0);
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without->reason, without->direct);
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
    text_model_ = std::move(*loaded);
    auto reason = LoadedReasonModel::Load(*text_model_, {});
    ASSERT_TRUE(reason.ok()) << reason.error().message;
    reason_ = std::move(*reason);
  }

  AnswerResult Ask(const std::vector<ChatMessage>& messages, AnswerOptions options, Sequence* sequence = nullptr) {
    Question question;
    const auto prompt = text_model_->Render(messages);
    EXPECT_TRUE(prompt.ok());
    question.prompt = *prompt;
    question.options = std::move(options);
    question.sequence = sequence;
    auto result = AnswerQuestion(reason_->model(), std::move(question));
    EXPECT_TRUE(result.ok()) << result.error().message;
    return result.ok() ? std::move(*result) : AnswerResult{};
  }

  static AnswerOptions Cut(int64_t tokens) {
    AnswerOptions options;
    options.sampling.temperature = 0;
    options.budget = tokens;
    options.force_answer = false;
    return options;
  }

  std::unique_ptr<TextModel> text_model_;
  std::unique_ptr<LoadedReasonModel> reason_;
};

TEST_F(SmolLm2, TheNextTurnOfAChatReusesTheCache) {
  Sequence sequence = text_model_->engine().NewSequence();
  std::vector<ChatMessage> messages{{"user", "Name three colours."}};
  const auto first = Ask(messages, Cut(24), &sequence);
  EXPECT_EQ(first.cached_tokens, 0);
  messages.push_back({"assistant", first.best().text});
  messages.push_back({"user", "And one more?"});
  const auto second = Ask(messages, Cut(24), &sequence);
  // Everything up to the end of the first answer is there already (the end-of-turn token itself was never computed).
  EXPECT_GE(second.cached_tokens, first.prompt_tokens);
  const auto alone = Ask(messages, Cut(24));
  EXPECT_EQ(alone.cached_tokens, 0);
  EXPECT_EQ(second.best().tokens, alone.best().tokens);
}

TEST_F(SmolLm2, ReasoningIsForcedAndCountedAndStopStringsActOnTheAnswer) {
  AnswerOptions options = Cut(16);
  options.mode = ReasonMode::kOn;
  options.ignore_eos = true;
  options.stop = {"e"};  // thoughts are full of it
  std::string streamed;
  options.on_text = [&](int64_t, std::string_view text, bool thought) {
    if (thought) streamed += text;
  };
  const auto result = Ask({{"user", "What is 2+2?"}}, options);
  const auto& best = result.best();
  const auto& forced = reason_->model().forced->open;
  ASSERT_GE(best.tokens.size(), forced.size());
  EXPECT_TRUE(std::equal(forced.begin(), forced.end(), best.tokens.begin()));
  EXPECT_EQ(best.tokens.size(), 16U);  // forced tokens count
  EXPECT_EQ(best.finish, FinishReason::kLength);
  EXPECT_EQ(best.reasoning, streamed);
  EXPECT_FALSE(best.reasoning.empty());
  EXPECT_TRUE(best.text.empty());
  EXPECT_EQ(best.reasoning_tokens, 16);
}

TEST_F(SmolLm2, TheBudgetGetsAnAnswer) {
  for (const ReasonMode mode : {ReasonMode::kOff, ReasonMode::kOn}) {
    AnswerOptions options = Cut(80);
    options.mode = mode;
    options.force_answer = true;
    options.ignore_eos = true;
    const auto result =
        Ask({{"user", "What is 12 * 12? Think step by step and tell me a long story about it."}}, options);
    EXPECT_LE(result.best().tokens.size(), 80U);
    EXPECT_TRUE(result.best().answer_forced);
    EXPECT_NE(result.best().text.find("The final answer is \\boxed{"), std::string::npos) << result.best().text;
    EXPECT_EQ(result.best().text.find("think>"), std::string::npos);
    EXPECT_EQ(result.best().reasoning.empty(), mode == ReasonMode::kOff);
  }
}

TEST_F(SmolLm2, CancelKeepsWhatWasGenerated) {
  std::atomic<bool> cancel{false};
  AnswerOptions options = Cut(200);
  options.cancel = &cancel;
  int pieces = 0;
  options.on_text = [&](int64_t, std::string_view, bool) { cancel = ++pieces == 3; };
  const auto result = Ask({{"user", "Tell me a long story."}}, options);
  EXPECT_EQ(result.best().finish, FinishReason::kCancelled);
  EXPECT_FALSE(result.best().text.empty());
  EXPECT_LT(result.best().tokens.size(), 20U);
}

TEST_F(SmolLm2, SampledStreamsDifferAndRepeat) {
  const auto run = [&](uint64_t seed, uint64_t stream) {
    AnswerOptions options = Cut(16);
    options.sampling.temperature = 1.0;
    options.sampling.seed = seed;
    options.first_stream = stream;
    return Ask({{"user", "Write a sentence about the sea."}}, options).best().tokens;
  };
  const uint64_t last = ~uint64_t{0};
  EXPECT_EQ(run(last, 0), run(last, 0));
  EXPECT_NE(run(last, 0), run(last, 1));
  EXPECT_NE(run(last, 0), run(0, 0));
}

}  // namespace
}  // namespace pith
