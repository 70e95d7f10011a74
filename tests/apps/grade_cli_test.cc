// pith grade as scripts see it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "support/data.h"
#include "support/shell.h"

namespace pith {
namespace {

using ::pith::testing::TempDir;

using ::pith::testing::Outcome;

// Runs `pith grade` with these arguments as a shell reads them.
Outcome RunGrade(const std::string& arguments) { return testing::Shell("$PITH grade " + arguments); }

std::vector<Json> Lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    auto json = ParseJson(line, "output");
    EXPECT_TRUE(json.ok()) << line;
    lines.push_back(json.ok() ? *json : Json());
  }
  return lines;
}

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(GradeCliTest, OnePair) {
  const Outcome outcome = RunGrade(R"(--json --gold '\frac{1}{2}' --pred 'The answer is 0.5')");
  EXPECT_EQ(outcome.status, 0);
  const auto lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["equal"], true);
  EXPECT_EQ(lines[0]["verdict"], "equal");
  EXPECT_EQ(lines[0]["gold_answer"]["text"], "\\frac{1}{2}");
  EXPECT_EQ(lines[0]["gold_answer"]["source"], "whole");
  EXPECT_EQ(lines[0]["pred_answer"]["text"], "0.5");
  EXPECT_EQ(lines[0]["pred_answer"]["source"], "stated");
  EXPECT_GT(lines[0]["microseconds"].get<double>(), 0.0);
  EXPECT_NE(RunGrade("--gold 5 --pred 6").out.find("different"), std::string::npos);
}

TEST(GradeCliTest, PairsInTheirOrder) {
  const std::string path = WriteFile("pairs.jsonl",
                                     "{\"id\":\"a\",\"gold\":\"5\",\"pred\":\"\\\\boxed{5}\"}\n\n"
                                     "{\"id\":2,\"gold\":\"5\",\"pred\":\"6\"}\n"
                                     "{\"gold\":\"5\",\"pred\":\"<think> 5\"}\n"
                                     "{\"gold\":\"9^{9^{9^9}}\",\"pred\":\"9^{9^{9^9}}+1\"}\n"
                                     "{\"gold\":\"5\",\"pred\":\"so there are 5 and\",\"truncated\":true}\n");
  const Outcome outcome = RunGrade("--json --pairs " + path);
  EXPECT_EQ(outcome.status, 0);
  const auto lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0]["id"], "a");
  EXPECT_EQ(lines[0]["verdict"], "equal");
  EXPECT_EQ(lines[1]["id"], 2);
  EXPECT_EQ(lines[1]["verdict"], "different");
  EXPECT_EQ(lines[1]["equal"], false);
  EXPECT_EQ(lines[2]["verdict"], "no_answer");
  EXPECT_TRUE(lines[2]["pred_answer"].is_null());
  EXPECT_EQ(lines[2]["truncated"], true);
  EXPECT_EQ(lines[3]["verdict"], "too_hard");
  EXPECT_EQ(lines[3]["equal"], false);
  EXPECT_EQ(lines[4]["verdict"], "no_answer");
  const std::string plain = RunGrade("--pairs " + path).out;
  EXPECT_NE(plain.find("1 of 5 equal"), std::string::npos) << plain;
}

TEST(GradeCliTest, Errors) {
  EXPECT_EQ(RunGrade("--json").status, ExitCode(ErrorCode::kInvalidArgument));
  EXPECT_EQ(RunGrade("--json --gold 5").status, ExitCode(ErrorCode::kInvalidArgument));
  EXPECT_EQ(RunGrade("--json --pairs /no/such/file").status, ExitCode(ErrorCode::kNotFound));
  EXPECT_EQ(RunGrade("--json --pairs " + WriteFile("bad.jsonl", "{\"gold\":\n")).status,
            ExitCode(ErrorCode::kMalformed));
  EXPECT_EQ(RunGrade("--json --pairs " + WriteFile("number.jsonl", "{\"gold\":5,\"pred\":\"5\"}\n")).status,
            ExitCode(ErrorCode::kMalformed));
  EXPECT_EQ(RunGrade("--json --pairs " + WriteFile("list.jsonl", "[1]\n")).status, ExitCode(ErrorCode::kMalformed));
}

}  // namespace
}  // namespace pith
