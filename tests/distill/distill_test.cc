// Rows of traces: their form, what they say, and that they depend on nothing but their inputs; a whole run on a
// scripted engine, stopped at any byte.
#include "distill/distill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "base/json.h"
#include "distill/recheck.h"
#include "eval/run_eval.h"
#include "grade/grade.h"
#include "reason/budget.h"
#include "samples.h"
#include "support/data.h"
#include "support/scripted_engine.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using testing::PieceTokenizer;
using testing::ReadFile;
using testing::ScriptedModel;
using testing::TempDir;

std::vector<Json> Rows(const std::string& path) {
  std::vector<Json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    auto json = ParseJson(line, path);
    EXPECT_TRUE(json.ok()) << json.error().message;
    rows.push_back(*json);
  }
  return rows;
}

const std::shared_ptr<const PieceTokenizer>& ByteTokenizer() {
  static const auto tokenizer = std::make_shared<const PieceTokenizer>(ScriptedModel::DefaultPieces());
  return tokenizer;
}

// Three problems: solved in two ways and missed once; solved once in one line; never solved.
struct Record {
  std::vector<Problem> problems = {
      {"one", "What is 2 * 5?", "10"}, {"two", "What is 1 + 1?", "2"}, {"three", "?", "9"}};
  std::vector<Generation> generations = {
      Sample("one", "We add 5 + 5 = 10.\nSo it is \\boxed{10}.", "10", true, 30),
      Sample("one", "Five pairs: 2 * 5 = 10.\nThe result is 10.\n\\boxed{10}", "10", true, 34),
      Sample("one", "2 + 5 = 7.\n\\boxed{7}", "7", false, 12),
      Sample("two", "That is two", "2", true, 9),
      Sample("three", "No idea, 4?", "4", false, 8),
  };
  DistillOptions options;

  Result<DistillReport> Write(const std::string& path) const {
    return WriteTraces(problems, generations, options, *ByteTokenizer(), path);
  }
  // The rows, after checking what holds for all of them.
  std::vector<Json> Checked(DistillReport* report = nullptr) const {
    const std::string path = TempDir() + "/traces.jsonl";
    const auto written = Write(path);
    EXPECT_TRUE(written.ok()) << written.error().message;
    if (report != nullptr) *report = *written;
    const auto rows = Rows(path);
    for (const Json& row : rows) {
      const auto response = row["messages"].back()["content"].get<std::string>();
      EXPECT_EQ(row["messages"].back()["role"], "assistant");
      const auto problem =
          std::find_if(problems.begin(), problems.end(), [&](const Problem& p) { return p.id == row["id"]; });
      // The runtime's own machine reads thoughts and answer out of it, the grader finds the answer, and it is right.
      const auto tokens = testing::Ids(*ByteTokenizer(), response);
      EXPECT_EQ(static_cast<int64_t>(tokens.size()), row["tokens"]);
      const ParsedResponse parsed = ParseResponse(ByteTokenizer(), tokens);
      EXPECT_FALSE(parsed.thinking);
      EXPECT_EQ(parsed.text, "The final answer is \\boxed{" + row["answer"].get<std::string>() + "}");
      EXPECT_EQ(response, "<think>\n" + parsed.reasoning + "</think>\n\n" + parsed.text);
      EXPECT_EQ(parsed.reasoning.find("\\boxed"), std::string::npos);
      EXPECT_TRUE(Grade(problem->answer, response).correct()) << response;
    }
    return rows;
  }
};

std::string ThoughtsOf(const Json& row) {
  const auto response = row["messages"].back()["content"].get<std::string>();
  const size_t end = response.find("\n</think>");
  return response.substr(8, end - 8);
}

TEST(DistillTest, TheFormIsTheOneThatIsForced) {
  ReasonModel model;
  model.tokenizer = ByteTokenizer();
  ASSERT_TRUE(model.Finish().ok());
  std::string forced;
  for (const int32_t id : model.forced->open) forced += ByteTokenizer()->TokenBytes(id);
  forced += "thoughts";
  for (const int32_t id : model.forced->close) forced += ByteTokenizer()->TokenBytes(id);
  EXPECT_EQ(TraceText("thoughts", "42", model.texts), forced + "42}");
  ReasoningTexts plain;
  plain.answer_prefix = "Answer: ";
  EXPECT_EQ(TraceText("t", "x", plain), "<think>\nt\n</think>\n\nAnswer: x");
}

TEST(DistillTest, PlainRows) {
  Record record;
  DistillReport report;
  const auto rows = record.Checked(&report);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0]["id"], "one");
  EXPECT_EQ(rows[0]["style"], "plain");
  EXPECT_EQ(rows[0]["messages"].size(), 2U);
  EXPECT_EQ(rows[0]["messages"][0]["content"], PromptFormat().Messages("What is 2 * 5?")[0].content);
  EXPECT_EQ(ThoughtsOf(rows[0]), "We add 5 + 5 = 10.\nSo it is 10.");
  EXPECT_EQ(ThoughtsOf(rows[2]), "That is two");
  EXPECT_EQ(report.problems, 3);
  EXPECT_EQ(report.solved, 2);
  EXPECT_EQ(report.used, 2);
  EXPECT_EQ(report.samples.samples, 5);
  EXPECT_EQ(report.samples.right, 3);
  EXPECT_EQ(report.plain.rows, 3);
  EXPECT_EQ(report.recheck.rows, 0);
  EXPECT_EQ(report.plain.tokens,
            rows[0]["tokens"].get<int64_t>() + rows[1]["tokens"].get<int64_t>() + rows[2]["tokens"].get<int64_t>());
  EXPECT_EQ(report.sample_tokens, 93);
  record.options.keep = 1;
  EXPECT_EQ(record.Checked().size(), 2U);
}

TEST(DistillTest, RecheckRows) {
  Record record;
  record.options.plain = false;
  record.options.recheck = true;
  DistillReport report;
  const auto rows = record.Checked(&report);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(report.wrong_attempts, 2);
  EXPECT_EQ(report.doubts, 1);
  EXPECT_EQ(report.recheck.rows, 3);
  // The wrong attempt, a correction, the right derivation, a check.
  for (size_t i = 0; i < 2; ++i) {
    const std::string thoughts = ThoughtsOf(rows[i]);
    EXPECT_TRUE(thoughts.starts_with("2 + 5 = 7.\n7\n\n")) << thoughts;
    const std::string right = i == 0 ? "We add 5 + 5 = 10.\nSo it is 10." : "Five pairs: 2 * 5 = 10.";
    const size_t at = thoughts.find(right);
    ASSERT_NE(at, std::string::npos) << thoughts;
    EXPECT_GT(at, 15U);
    EXPECT_TRUE(thoughts.ends_with(" 10.")) << thoughts;
    EXPECT_GT(thoughts.size(), at + right.size() + 20);
  }
  EXPECT_FALSE(ThoughtsOf(rows[2]).starts_with("That is two"));
  EXPECT_NE(ThoughtsOf(rows[2]).find("\n\nThat is two\n\n"), std::string::npos);
  // Without the wrong attempt, a start that breaks off.
  record.generations.erase(record.generations.begin() + 2);
  const auto others = record.Checked(&report);
  EXPECT_EQ(report.false_starts, 2);
  EXPECT_TRUE(ThoughtsOf(others[0]).starts_with("We add 5 + 5 = 10.\n\n")) << ThoughtsOf(others[0]);
}

TEST(DistillTest, ChecksSayOnlyWhatIsTrue) {
  const Derivation right{.text = "A: 2 + 3 = 5. B: 5 * 4 = 20. C: 20 - 1 = 19. D: 19 + 1 = 20. E: 7 * 7 = 48.",
                         .answer = "20",
                         .tokens = 40};
  std::set<std::string> sentences;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Recheck recheck = ComposeRecheck({.right = right}, seed, "p");
    const std::string check = recheck.thoughts.substr(recheck.thoughts.rfind("\n\n") + 2);
    // The last three that are true.
    EXPECT_NE(check.find(" 5 * 4 = 20, 20 - 1 = 19, 19 + 1 = 20. "), std::string::npos) << check;
    EXPECT_EQ(check.find("48"), std::string::npos);
    EXPECT_TRUE(check.ends_with(" 20."));
    sentences.insert(check);
  }
  EXPECT_GT(sentences.size(), 8U);
  EXPECT_EQ(ComposeRecheck({.right = right}, 5, "p").thoughts, ComposeRecheck({.right = right}, 5, "p").thoughts);
  // Another way, now and then.
  const Derivation other{.text = "4 * 5 = 20", .answer = "20", .tokens = 5};
  int ways = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Recheck recheck = ComposeRecheck({.right = right, .other = &other}, seed, "p");
    ways += recheck.thoughts.find("\n\n4 * 5 = 20\n\n") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(ways, 5);
  EXPECT_LT(ways, 40);
}

TEST(DistillTest, BothStylesTakeTurns) {
  Record record;
  record.options.recheck = true;
  DistillReport report;
  const auto rows = record.Checked(&report);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_NE(rows[0]["style"], rows[1]["style"]);
  std::set<std::string> first;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    record.options.seed = seed;
    first.insert(record.Checked()[0]["style"].get<std::string>());
  }
  EXPECT_EQ(first.size(), 2U);
}

TEST(DistillTest, BudgetsAndPrompts) {
  Record record;
  record.options.texts.budget_template = "\n\nAt most {budget} tokens.";
  DistillReport report;
  const auto plain = record.Checked(&report);
  EXPECT_EQ(plain[0]["messages"][0]["content"].get<std::string>().find("At most"), std::string::npos);
  const auto first = plain[0]["tokens"].get<int64_t>();
  const auto last = plain[2]["tokens"].get<int64_t>();
  ASSERT_LT(last, first);
  record.options.budgets = {last, first};
  const auto rows = record.Checked(&report);
  EXPECT_TRUE(rows[2]["messages"][0]["content"].get<std::string>().ends_with("\n\nAt most " + std::to_string(last) +
                                                                             " tokens."));
  EXPECT_EQ(rows[0]["budget"], first);
  EXPECT_EQ(report.without_budget, 1);  // the second one is longer
  EXPECT_EQ(rows[1]["messages"][0]["content"].get<std::string>().find("At most"), std::string::npos);
  record.options.max_tokens = first;
  EXPECT_EQ(record.Checked(&report).size(), 2U);
  EXPECT_EQ(report.too_long, 1);

  // Several prompts take turns by problem, a system prompt is a message of its own.
  record.options = {};
  record.options.prompts = {*LoadPromptFormat("plain"), PromptFormat()};
  record.options.prompts[0].system = "Be brief.";
  std::set<size_t> messages;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    record.options.seed = seed;
    const auto some = record.Checked();
    EXPECT_EQ(some[0]["messages"].size(), some[1]["messages"].size());  // of one problem
    messages.insert(some[0]["messages"].size());
    if (some[0]["messages"].size() == 3) {
      EXPECT_EQ(some[0]["messages"][0]["content"], "Be brief.");
      EXPECT_EQ(some[0]["messages"][1]["content"], "What is 2 * 5?");
    }
  }
  EXPECT_EQ(messages, (std::set<size_t>{2, 3}));
}

TEST(DistillTest, DependsOnItsInputsAlone) {
  Record record;
  record.options.recheck = true;
  const std::string folder = TempDir();
  ASSERT_TRUE(record.Write(folder + "/a").ok());
  const std::string expected = ReadFile(folder + "/a");
  std::mt19937 random(3);
  for (int i = 0; i < 10; ++i) {
    std::shuffle(record.generations.begin(), record.generations.end(), random);
    ASSERT_TRUE(record.Write(folder + "/b").ok());
    EXPECT_EQ(ReadFile(folder + "/b"), expected);
  }
  record.options.seed = 1;
  ASSERT_TRUE(record.Write(folder + "/b").ok());
  EXPECT_NE(ReadFile(folder + "/b"), expected);
  for (const auto& entry : fs::directory_iterator(folder)) EXPECT_NE(entry.path().extension(), ".partial");
}

TEST(DistillTest, Errors) {
  Record record;
  const auto expect = [&](ErrorCode code, const std::string& part, const std::string& path) {
    const auto written = record.Write(path);
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, code);
    EXPECT_NE(written.error().message.find(part), std::string::npos) << written.error().message;
  };
  const std::string path = TempDir() + "/x";
  record.options.plain = false;
  expect(ErrorCode::kInvalidArgument, "style", path);
  record.options = {};
  record.options.keep = 0;
  expect(ErrorCode::kInvalidArgument, "derivations", path);
  record.options = {};
  record.options.budgets = {100};
  expect(ErrorCode::kInvalidArgument, "template", path);
  record.options = {};
  record.options.prompts.clear();
  expect(ErrorCode::kInvalidArgument, "prompt", path);
  record.options = {};
  expect(ErrorCode::kIo, "/no/such", "/no/such/folder/x");
  EXPECT_FALSE(fs::exists(path));
}

// From a scripted model to rows, killed at any byte of the samples.
TEST(DistillTest, ResumesAfterAKillAtAnyByte) {
  ScriptedModel scripted;
  scripted.responses = {"Sum: 2 + 2 = 4.\nThus \\boxed{4}.", "Half of 8: 8 / 2 = 4.\nOr \\boxed{4}",
                        "Maybe \\boxed{5}?"};
  const std::vector<Problem> problems = {{"a", "2+2?", "4"}, {"b", "2+3?", "5"}};
  EvalSettings settings;
  settings.suite = "tiny";
  settings.problems = 2;
  settings.sampling = {.temperature = 1, .seed = 3};
  settings.caps = {200};
  settings.parallel = 6;
  settings.force_answer = false;
  const EvalBackend backend{scripted.model, [&](const std::vector<ChatMessage>& messages, int64_t) -> Result<Prompts> {
                              Prompts prompts;
                              prompts.direct = prompts.reason = scripted.Prompt(messages.back().content);
                              return prompts;
                            }};
  DistillOptions options;
  options.recheck = true;
  const auto run = [&](const std::string& path, int64_t streams) {
    const auto folder = EvalFolder::Open(path, SettingsJson(settings), problems);
    EXPECT_TRUE(folder.ok()) << folder.error().message;
    EXPECT_TRUE(RunEval(backend, settings, {.max_streams = streams}, **folder).ok());
    const auto report = WriteTraces((*folder)->problems(), (*folder)->generations(), options, *scripted.tokenizer,
                                    path + "/traces.jsonl");
    EXPECT_TRUE(report.ok()) << report.error().message;
    return DistillReportJson(*report) + ReadFile(path + "/traces.jsonl");
  };
  const std::string whole = TempDir();
  const std::string expected = run(whole, 32);
  EXPECT_EQ(Rows(whole + "/traces.jsonl").size(), 3U) << expected;
  const std::string text = ReadFile(whole + "/generations.jsonl");
  const std::string path = TempDir();
  for (const char* name : {"run.json", "problems.jsonl"}) fs::copy_file(whole + "/" + name, path + "/" + name);
  for (size_t cut = 0; cut <= text.size(); cut += 41) {
    std::ofstream(path + "/generations.jsonl", std::ios::binary | std::ios::trunc) << text.substr(0, cut);
    ASSERT_EQ(run(path, 4), expected) << cut;
  }
}

}  // namespace
}  // namespace pith
