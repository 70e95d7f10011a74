#include "eval/generations.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "eval/settings.h"
#include "support/data.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using testing::ReadFile;
using testing::TempDir;

Generation Stream(const std::string& id, int64_t stream, int64_t streams) {
  Generation generation;
  generation.key = {id, 1, 512, ReasonMode::kOn};
  generation.stream = stream;
  generation.streams = streams;
  generation.route = Route::kReason;
  generation.text = "so \"\\boxed{4}\"\n</script> \xF0\x9F\x98\x80";
  generation.reasoning = "hm";
  generation.tokens = 30;
  generation.reasoning_tokens = 10;
  generation.prompt_tokens = 7;
  generation.finish = FinishReason::kLength;
  generation.forced = true;
  generation.truncated = true;
  generation.answer = ExtractedAnswer{"4", AnswerSource::kBox};
  generation.verdict = Verdict::kTooHard;
  generation.verifier_score = 0.1;
  generation.switcher_score = 0.7;
  generation.seconds = 1.25;
  generation.reused_from = 1024;
  return generation;
}

std::vector<Problem> Problems() { return {{"a", "1+1?", "2"}, {"b", "2+2?", "4"}}; }

std::string Settings(double temperature = 0.6) {
  EvalSettings settings;
  settings.suite = "s";
  settings.problems = 2;
  settings.sampling.temperature = temperature;
  return SettingsJson(settings);
}

void ExpectSame(const Generation& a, const Generation& b) {
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(WriteGeneration(a), WriteGeneration(b));
}

TEST(GenerationsTest, RoundTrip) {
  const Generation full = Stream("x/\xC3\xA9", 2, 8);
  const auto again = ParseGeneration(WriteGeneration(full), "w");
  ASSERT_TRUE(again.ok()) << again.error().message;
  ExpectSame(full, *again);
  EXPECT_EQ(again->text, full.text);
  EXPECT_EQ(again->reasoning, "hm");
  EXPECT_EQ(again->finish, FinishReason::kLength);
  EXPECT_EQ(again->verdict, Verdict::kTooHard);
  EXPECT_EQ(again->answer->text, "4");
  EXPECT_EQ(again->reused_from, 1024);
  EXPECT_TRUE(again->forced && again->truncated);

  Generation failed;
  failed.key = {"b", 0, 1, ReasonMode::kAuto};
  failed.error = Error{ErrorCode::kContextOverflow, "too long"};
  const auto failed_again = ParseGeneration(WriteGeneration(failed), "w");
  ASSERT_TRUE(failed_again.ok());
  EXPECT_EQ(failed_again->error->code, ErrorCode::kContextOverflow);
  EXPECT_EQ(failed_again->error->message, "too long");
  EXPECT_FALSE(failed_again->answer || failed_again->verifier_score || failed_again->switcher_score);

  // Text that is no UTF-8 is still one valid line.
  Generation broken = full;
  broken.text = "\xff\n";
  EXPECT_TRUE(ParseGeneration(WriteGeneration(broken), "w").ok());
  EXPECT_EQ(WriteGeneration(broken).find('\n'), std::string::npos);
}

TEST(GenerationsTest, EveryFieldIsChecked) {
  const std::string line = WriteGeneration(Stream("a", 0, 1));
  for (const char* field : {"id",
                            "repeat",
                            "cap",
                            "mode",
                            "stream",
                            "streams",
                            "route",
                            "tokens",
                            "reasoning_tokens",
                            "prompt_tokens",
                            "finish",
                            "forced",
                            "truncated",
                            "source",
                            "verdict",
                            "verifier_score",
                            "switcher_score",
                            "seconds",
                            "reused_from",
                            "reasoning",
                            "text"}) {
    const std::string name = std::string("\"") + field + "\":";
    const size_t at = line.find(name);
    ASSERT_NE(at, std::string::npos) << field;
    std::string wrong = line;
    wrong.insert(at + name.size(), "[");
    // The value as an array: find where it ends by trying.
    bool refused = false;
    for (size_t end = at + name.size() + 1; end <= wrong.size() && !refused; ++end) {
      std::string closed = wrong;
      closed.insert(end, "]");
      const auto parsed = ParseGeneration(closed, "file:3");
      if (parsed.ok()) break;
      refused = parsed.error().message.find(std::string("'") + field + "'") != std::string::npos;
      if (refused) {
        EXPECT_EQ(parsed.error().message.rfind("file:3: ", 0), 0U);
      }
    }
    EXPECT_TRUE(refused) << field;
  }
  for (const char* bad : {"", "5", "{}", "{\"id\":\"a\"}", "{"}) {
    EXPECT_EQ(ParseGeneration(bad, "w").error().code, ErrorCode::kMalformed) << bad;
  }
}

TEST(GenerationsTest, WholeQuestionsAreKeptAndTornOnesDropped) {
  std::string text;
  for (int64_t i = 0; i < 2; ++i) text += WriteGeneration(Stream("a", i, 2)) + "\n";
  const size_t whole = text.size();
  for (int64_t i = 0; i < 3; ++i) text += WriteGeneration(Stream("b", i, 3)) + "\n";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const auto read = ParseGenerations(text.substr(0, cut), "g");
    ASSERT_TRUE(read.ok()) << cut << ": " << read.error().message;
    const size_t expected = cut == text.size() ? text.size() : cut >= whole ? whole : 0;
    ASSERT_EQ(read->complete_bytes, expected) << cut;
    ASSERT_EQ(read->generations.size(), expected == text.size() ? 5U : expected == whole ? 2U : 0U);
  }
}

TEST(GenerationsTest, WhatNoKillLeavesIsMalformed) {
  const auto line = [](const std::string& id, int64_t stream, int64_t streams) {
    return WriteGeneration(Stream(id, stream, streams)) + "\n";
  };
  const struct {
    std::string text;
    std::string where;
  } cases[] = {
      {"nonsense\n" + line("a", 0, 1), "g:1: "},
      {line("a", 0, 1) + "\n", "g:2: "},
      {line("a", 1, 2), "g:1: "},
      {line("a", 0, 2) + line("b", 0, 1), "g:2: "},
      {line("a", 0, 2) + line("a", 1, 3), "g:2: "},
      {line("a", 0, 0), "g:1: "},
  };
  for (const auto& test : cases) {
    const auto read = ParseGenerations(test.text, "g");
    ASSERT_FALSE(read.ok()) << test.text;
    EXPECT_EQ(read.error().code, ErrorCode::kMalformed);
    EXPECT_EQ(read.error().message.rfind(test.where, 0), 0U) << read.error().message;
  }
}

// Times that a program wrote which did not count steps.
TEST(EvalFolderTest, TimesOfBefore) {
  const std::string path = TempDir();
  { ASSERT_TRUE(EvalFolder::Open(path, Settings(), Problems()).ok()); }
  std::ofstream(path + "/timing.jsonl")
      << R"({"session":3,"mode":"on","cap":512,"questions":2,"tokens":30,"seconds":1.5})"
      << "\n";
  {
    const auto folder = EvalFolder::Open(path, Settings(), Problems());
    ASSERT_TRUE(folder.ok()) << folder.error().message;
    EXPECT_EQ((*folder)->session(), 4);
    ASSERT_TRUE((*folder)->AppendTiming({4, ReasonMode::kOn, 512, 10, 1, 0.5, 7, 32}).ok());
  }
  const auto folder = EvalFolder::Open(path, Settings(), Problems());
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  const auto& timings = (*folder)->timings();
  ASSERT_EQ(timings.size(), 2U);
  EXPECT_EQ(timings[0].tokens, 30);
  EXPECT_EQ(timings[0].steps, 0);
  EXPECT_EQ(timings[0].max_streams, 0);
  EXPECT_EQ(timings[1].steps, 7);
  EXPECT_EQ(timings[1].max_streams, 32);
}

TEST(EvalFolderTest, AppendsAndReadsBack) {
  const std::string path = TempDir() + "/new/folder";
  {
    const auto folder = EvalFolder::Open(path, Settings(), Problems());
    ASSERT_TRUE(folder.ok()) << folder.error().message;
    EXPECT_EQ((*folder)->session(), 0);
    ASSERT_TRUE((*folder)->Append({Stream("a", 0, 2), Stream("a", 1, 2)}).ok());
    ASSERT_TRUE((*folder)->AppendTiming({0, ReasonMode::kOn, 512, 10, 1, 0.5}).ok());
    ASSERT_TRUE((*folder)->AppendTiming({0, ReasonMode::kOn, 512, 30, 2, 1.5}).ok());
  }
  // A torn line of each file.
  std::ofstream(path + "/generations.jsonl", std::ios::app) << WriteGeneration(Stream("b", 0, 1)).substr(0, 50);
  std::ofstream(path + "/timing.jsonl", std::ios::app) << "{\"sess";
  const auto folder = EvalFolder::Open(path, Settings(), Problems());
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  ASSERT_EQ((*folder)->generations().size(), 2U);
  ExpectSame((*folder)->generations()[1], Stream("a", 1, 2));
  EXPECT_EQ((*folder)->session(), 1);
  ASSERT_EQ((*folder)->timings().size(), 1U);
  EXPECT_EQ((*folder)->timings()[0].tokens, 30);
  ASSERT_EQ((*folder)->problems().size(), 2U);
  EXPECT_EQ((*folder)->problems()[1].problem, "2+2?");
  ASSERT_TRUE((*folder)->Append({Stream("b", 0, 1)}).ok());
  EXPECT_EQ(ParseGenerations(ReadFile(path + "/generations.jsonl"), "g")->generations.size(), 3U);

  std::vector<Generation> changed = (*folder)->generations();
  changed[0].verdict = Verdict::kEqual;
  ASSERT_TRUE((*folder)->Rewrite(changed).ok());
  ASSERT_TRUE((*folder)->Append({Stream("c", 0, 1)}).ok());
  const auto read = ParseGenerations(ReadFile(path + "/generations.jsonl"), "g");
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->generations.size(), 4U);
  EXPECT_EQ(read->generations[0].verdict, Verdict::kEqual);
}

TEST(EvalFolderTest, OtherSettingsAreRefused) {
  const std::string path = TempDir();
  ASSERT_TRUE(EvalFolder::Open(path, Settings(0.6), Problems()).ok());
  const auto other = EvalFolder::Open(path, Settings(0.7), Problems());
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kMismatch);
  EXPECT_NE(other.error().message.find("sampling.temperature: 0.6 there, 0.7 here"), std::string::npos)
      << other.error().message;
  EXPECT_TRUE(EvalFolder::Open(path, Settings(0.6), Problems()).ok());
  // Nothing was changed by the refusal.
  EXPECT_NE(ReadFile(path + "/run.json").find("0.6"), std::string::npos);

  const std::string foreign = TempDir();
  std::ofstream(foreign + "/generations.jsonl") << "mine\n";
  EXPECT_EQ(EvalFolder::Open(foreign, Settings(), Problems()).error().code, ErrorCode::kMismatch);
  EXPECT_EQ(ReadFile(foreign + "/generations.jsonl"), "mine\n");
  EXPECT_EQ(EvalFolder::OpenExisting(TempDir()).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(EvalFolder::Open("/proc/no/such", Settings(), Problems()).error().code, ErrorCode::kIo);
}

// A kill between the two files of a new folder.
TEST(EvalFolderTest, AFolderThatWasJustBegun) {
  const std::string path = TempDir();
  std::ofstream(path + "/problems.jsonl") << "{\"id\":";
  std::ofstream(path + "/run.json.part") << "{";
  const auto folder = EvalFolder::Open(path, Settings(), Problems());
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  EXPECT_EQ((*folder)->problems().size(), 2U);
}

}  // namespace
}  // namespace pith
