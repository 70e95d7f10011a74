#include "eval/settings.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "support/data.h"

namespace pith {
namespace {

EvalSettings Valid() {
  EvalSettings settings;
  settings.model = {{"name", "m"}};
  settings.suite = "s";
  settings.suite_sha256 = "00";
  settings.problems = 3;
  return settings;
}

TEST(EvalSettingsTest, DefaultsAreTheProtocol) {
  const EvalSettings settings;
  EXPECT_EQ(settings.sampling.temperature, 0.6);
  EXPECT_EQ(settings.sampling.top_p, 0.95);
  EXPECT_EQ(settings.sampling.top_k, 0);
  EXPECT_EQ(settings.caps, (std::vector<int64_t>{1024, 2048, 4096, 6144}));
  EXPECT_EQ(FindKnownSuite("aime24")->repeats, 10);
  EXPECT_EQ(FindKnownSuite("aime25")->repeats, 10);
  EXPECT_EQ(FindKnownSuite("amc23")->repeats, 10);
  EXPECT_EQ(FindKnownSuite("math500")->repeats, 1);
}

TEST(EvalSettingsTest, Caps) {
  EXPECT_EQ(*ParseCaps("2K,512,1k,512"), (std::vector<int64_t>{512, 1024, 2048}));
  EXPECT_EQ(*ParseCaps("1024K"), std::vector<int64_t>{1048576});
  for (const char* bad : {"", "0", "-1", "1.5K", "K", "1M", "512,", "1025K", "1048577", "99999999999999999999"}) {
    EXPECT_EQ(ParseCaps(bad).error().code, ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(EvalSettingsTest, Thresholds) {
  EXPECT_EQ(*ParseThresholds("0.5,0,1,0.5"), (std::vector<double>{0, 0.5, 1}));
  for (const char* bad : {"", "-0.1", "1.1", "nan", "0.5;0.6", "0.5,"}) {
    EXPECT_EQ(ParseThresholds(bad).error().code, ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(EvalSettingsTest, WhatDoesNotGoTogetherIsRefused) {
  EXPECT_TRUE(ValidateSettings(Valid()).ok());
  const auto refused = [](auto change) {
    EvalSettings settings = Valid();
    change(settings);
    const Status status = ValidateSettings(settings);
    return !status.ok() && status.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](EvalSettings& s) { s.problems = 0; }));
  EXPECT_TRUE(refused([](EvalSettings& s) { s.parallel = 257; }));
  EXPECT_TRUE(refused([](EvalSettings& s) { s.repeats = 0; }));
  EXPECT_TRUE(refused([](EvalSettings& s) { s.caps.clear(); }));
  EXPECT_TRUE(refused([](EvalSettings& s) { s.modes.clear(); }));
  EXPECT_TRUE(refused([](EvalSettings& s) { s.threshold = 1.5; }));
  EXPECT_TRUE(refused([](EvalSettings& s) { s.sampling.top_p = 2; }));
  EXPECT_TRUE(refused([](EvalSettings& s) { s.sampling.temperature = 0, s.parallel = 2; }));
  EXPECT_TRUE(refused([](EvalSettings& s) { s.sampling.temperature = 0, s.repeats = 2; }));
  EXPECT_TRUE(refused([](EvalSettings& s) { s.adapter_on_prompt = true; }));
  EXPECT_FALSE(refused([](EvalSettings& s) { s.adapter_on_prompt = true, s.modes = {ReasonMode::kOn}; }));
  EXPECT_FALSE(refused([](EvalSettings& s) { s.sampling.temperature = 0; }));
}

TEST(EvalSettingsTest, DifferencesAreNamed) {
  const std::string stored = SettingsJson(Valid());
  EXPECT_TRUE(SettingsDifferences(stored, stored, "run.json")->empty());
  EvalSettings other = Valid();
  other.sampling.temperature = 0.7;
  other.caps = {512};
  other.model.emplace_back("adapter", "x");
  const auto differences = SettingsDifferences(stored, SettingsJson(other), "run.json");
  ASSERT_TRUE(differences.ok());
  const std::set<std::string> set(differences->begin(), differences->end());
  EXPECT_EQ(set, (std::set<std::string>{"sampling.temperature: 0.6 there, 0.7 here",
                                        "budgets: [1024,2048,4096,6144] there, [512] here",
                                        "model.adapter: nothing there, \"x\" here"}));
  EXPECT_EQ(SettingsDifferences("{", stored, "run.json").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(SettingsDifferences("[]", stored, "run.json").error().code, ErrorCode::kMalformed);
}

// One configuration drives prompt and extractor: a format whose ends disagree cannot be made.
TEST(EvalSettingsTest, PromptAndExtractorAgree) {
  const auto code = [](const std::string& json) {
    const auto format = ParsePromptFormat(json, "p");
    return format.ok() ? "ok" : ErrorCodeName(format.error().code);
  };
  EXPECT_STREQ(code(R"({"user":"{problem} Put it in \\boxed{}.","accept":["box"]})"), "ok");
  EXPECT_STREQ(code(R"({"user":"{problem}","system":"Use \\boxed{}.","accept":["box"]})"), "ok");
  EXPECT_STREQ(code(R"({"user":"{problem} Put it in <answer> tags.","accept":["stated","last"]})"), "ok");
  EXPECT_STREQ(code(R"({"user":"{problem}","accept":["box"]})"), "invalid_argument");
  EXPECT_STREQ(code(R"({"user":"{problem} Put it in \\boxed{}.","accept":["stated"]})"), "invalid_argument");
  EXPECT_STREQ(code(R"({"user":"no place for it"})"), "invalid_argument");
  EXPECT_STREQ(code(R"({"user":"{problem}{problem}"})"), "invalid_argument");
  EXPECT_STREQ(code(R"({"user":"{problem}","accept":[]})"), "invalid_argument");
  EXPECT_STREQ(code(R"({"user":"{problem}","accept":["boxes"]})"), "malformed");
  EXPECT_STREQ(code(R"({"user":"{problem}","extract":"box"})"), "malformed");
  EXPECT_STREQ(code(R"({"user":5})"), "malformed");
  EXPECT_STREQ(code("[]"), "malformed");

  const auto boxes = ParsePromptFormat(R"({"user":"{problem} Put it in \\boxed{}.","accept":["box"]})", "p");
  EXPECT_EQ(boxes->Extract("So it is \\boxed{42}.", false)->text, "42");
  EXPECT_FALSE(boxes->Extract("42", false).has_value());
  EXPECT_EQ(LoadPromptFormat("boxed")->Extract("42", false)->text, "42");
}

// The shape of the report that motivates the rule: a box inside tags that another extractor looks for.
TEST(EvalSettingsTest, BoxInsideAnswerTags) {
  EXPECT_EQ(PromptFormat().Extract("<answer>\\boxed{42}</answer>", false)->text, "42");
}

TEST(EvalSettingsTest, MessagesAndRoundTrip) {
  PromptFormat format;
  format.user = "Q: {problem}!\\boxed{}";
  EXPECT_EQ(format.Messages("what is {problem}?").back().content, "Q: what is {problem}?!\\boxed{}");
  EXPECT_EQ(format.Messages("x").size(), 1U);
  format.system = "be brief";
  EXPECT_EQ(format.Messages("x").front().role, "system");
  EXPECT_EQ(PromptFormat().Messages("1+1?").back().content,
            "1+1?\n\nPlease reason step by step, and put your final answer within \\boxed{}.");

  EvalSettings settings = Valid();
  format.accept = {AnswerSource::kBox, AnswerSource::kLast};
  settings.prompt = format;
  const auto again = PromptFormatOfSettings(SettingsJson(settings));
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->user, format.user);
  EXPECT_EQ(again->system, format.system);
  EXPECT_EQ(again->accept, format.accept);

  EXPECT_EQ(LoadPromptFormat("plain")->user, "{problem}");
  EXPECT_EQ(LoadPromptFormat("other").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(LoadPromptFormat("/no/such.json").error().code, ErrorCode::kNotFound);
  const std::string path = testing::TempDir() + "/mine.json";
  std::ofstream(path) << R"({"user":"{problem}"})";
  EXPECT_EQ(LoadPromptFormat(path)->name, "mine");
}

TEST(EvalSettingsTest, SeedsDifferByProblemAndRepeat) {
  std::set<uint64_t> seeds;
  for (const char* id : {"a", "b", "ab", ""}) {
    for (int64_t repeat = 0; repeat < 10; ++repeat) {
      seeds.insert(QuestionSeed(1, id, repeat));
      seeds.insert(QuestionSeed(2, id, repeat));
    }
  }
  EXPECT_EQ(seeds.size(), 80U);
  EXPECT_EQ(QuestionSeed(1, "a", 0), QuestionSeed(1, "a", 0));
}

}  // namespace
}  // namespace pith
