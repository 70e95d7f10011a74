// pith eval as scripts see it.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "support/data.h"
#include "support/shell.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using ::pith::testing::ExpectError;
using ::pith::testing::Outcome;
using ::pith::testing::ReadFile;
using ::pith::testing::Shell;
using ::pith::testing::TempDir;

class EvalCliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(suite_) << R"({"id":"one","problem":"What is 1+1?","answer":"2"})"
                          << "\n"
                          << R"({"id":"two","problem":"What is 2+2?","answer":"4"})"
                          << "\n"
                          << R"({"id":"three","problem":"What is 3+3?","answer":"6"})"
                          << "\n";
  }
  const std::string folder_ = TempDir();
  const std::string suite_ = folder_ + "/sums.jsonl";
};

TEST_F(EvalCliTest, Errors) {
  ExpectError("$PITH eval", ErrorCode::kInvalidArgument, "which suite");
  ExpectError("env -u PITH_DATA $PITH eval math500", ErrorCode::kNotFound, "PITH_DATA");
  ExpectError("$PITH eval no-such-suite --data " + folder_, ErrorCode::kNotFound, "no-such-suite");
  ExpectError("$PITH eval hf:datasets/org/name:test.parquet", ErrorCode::kUnsupported, "Parquet");
  ExpectError("$PITH eval hf:datasets/org:a.jsonl", ErrorCode::kInvalidArgument, "hf:datasets/");
  ExpectError("$PITH eval " + suite_ + " --fields text=q", ErrorCode::kInvalidArgument, "text=q");
  ExpectError("$PITH eval " + suite_ + " --fields problem=question", ErrorCode::kMalformed, "sums.jsonl:1: ");
  ExpectError("$PITH eval " + suite_ + " --threshold 2", ErrorCode::kInvalidArgument, "threshold");
  ExpectError("$PITH eval " + suite_ + " --parallel 0", ErrorCode::kInvalidArgument, "--parallel");
  ExpectError("$PITH eval " + suite_ + " --reason maybe", ErrorCode::kInvalidArgument, "--reason");
  ExpectError("$PITH eval " + suite_ + " -m /no/such/model", ErrorCode::kNotFound, "/no/such/model");
  ExpectError("$PITH eval --report " + folder_, ErrorCode::kNotFound, "run.json");
}

// An option that would have no effect is an error.
TEST_F(EvalCliTest, NothingIsIgnored) {
  for (const char* mode : {"on", "off"}) {
    ExpectError("$PITH eval " + suite_ + " --threshold 0.5 --reason " + mode, ErrorCode::kInvalidArgument,
                "--threshold would be ignored");
  }
  for (const char* more : {"--limit 3", "--parallel 2", "--seed 1", "--temp 0", "--prompt plain", "--reason both",
                           "--budget 8", "-m x", "--out y", "--list"}) {
    ExpectError("$PITH eval --report " + folder_ + " " + more, ErrorCode::kInvalidArgument, "would be ignored");
  }
  ExpectError("$PITH eval " + suite_ + " --report " + folder_, ErrorCode::kInvalidArgument, "the suite would be");
  ExpectError("$PITH eval " + suite_ + " --list", ErrorCode::kInvalidArgument, "the suite would be");
}

TEST_F(EvalCliTest, List) {
  const Outcome outcome = Shell("$PITH eval --list --json --data " + folder_);
  EXPECT_EQ(outcome.status, 0);
  bool sums = false;
  bool math = false;
  for (const Json& suite : outcome.json["suites"]) {
    if (suite["name"] == "sums") sums = suite["path"] == suite_;
    if (suite["name"] == "math500") math = suite["path"].is_null();
  }
  EXPECT_TRUE(sums && math) << outcome.out;
}

// The summary of a folder, without what depends on time and on where it was interrupted.
std::string Timeless(const std::string& folder) {
  auto json = ParseJson(ReadFile(folder + "/summary.json"), "summary");
  EXPECT_TRUE(json.ok());
  json->erase("timing");
  return json->dump(1);
}

TEST_F(EvalCliTest, RunsKillsGoesOn) {
  PITH_REQUIRE_MODEL(model, "smollm2-135m");
  const std::string common = "$PITH eval " + suite_ + " -m " + model + " -w stored -t 1 --parallel 2 --seed 5";
  const std::string command = common + " --budget 8,16 --temp 0.7 --top-p 1 --max-streams 2";
  const std::string wider = common + " --budget 8,16 --temp 0.7 --top-p 1 --max-streams 6";
  const std::string whole = folder_ + "/whole";
  const Outcome first = Shell(command + " --json -o " + whole);
  ASSERT_EQ(first.status, 0) << first.out;
  EXPECT_EQ(first.json["folder"], whole);
  EXPECT_TRUE(first.json["summary"]["complete"].get<bool>());
  EXPECT_EQ(first.json["summary"]["questions"]["total"], 6);
  EXPECT_GT(fs::file_size(whole + "/report.html"), 100000U);
  const std::string expected = Timeless(whole);

  // Killed as soon as there is a generation, then resumed; other settings are refused in between.
  const std::string killed = folder_ + "/killed";
  Shell(command + " -o " + killed + " > /dev/null 2>&1 & pid=$!; while ! [ -s " + killed +
        "/generations.jsonl ]; do sleep 0.01; kill -0 $pid || break; done; kill -9 $pid; wait $pid");
  EXPECT_FALSE(fs::exists(killed + "/summary.json"));
  ExpectError(command + " --limit 2 -o " + killed, ErrorCode::kMismatch, "suite.problems: 3 there, 2 here");
  ASSERT_EQ(Shell(wider + " -o " + killed + " > /dev/null").status, 0);
  EXPECT_EQ(Timeless(killed), expected);

  // What is done is not run again: no time at all is added, and the report can be made without the model.
  ASSERT_EQ(Shell(command + " -o " + killed + " > /dev/null").status, 0);
  EXPECT_EQ(Timeless(killed), expected);
  fs::remove(killed + "/summary.json");
  const Outcome again = Shell("$PITH eval --report " + killed + " --json");
  ASSERT_EQ(again.status, 0) << again.out;
  EXPECT_EQ(Timeless(killed), expected);

  ExpectError("$PITH eval --threshold 0.5 --report " + killed, ErrorCode::kInvalidArgument, "--reason both");

  // Interrupted, with --json: one object, the error; summary and report are there all the same.
  const std::string stopped = folder_ + "/stopped";
  const Outcome interrupted =
      Shell(command + " --json -o " + stopped + " & pid=$!; while ! [ -s " + stopped +
            "/generations.jsonl ]; do sleep 0.01; kill -0 $pid || break; done; kill -INT $pid; wait $pid");
  ExpectError(interrupted, ErrorCode::kCancelled, "interrupted");
  ASSERT_TRUE(fs::exists(stopped + "/summary.json"));
  EXPECT_GT(fs::file_size(stopped + "/report.html"), 100000U);
  EXPECT_FALSE((*ParseJson(ReadFile(stopped + "/summary.json"), "summary"))["complete"].get<bool>());
  ASSERT_EQ(Shell(command + " -o " + stopped + " > /dev/null").status, 0);
  EXPECT_EQ(Timeless(stopped), expected);

  ExpectError(command + " --reason auto -o " + folder_ + "/auto", ErrorCode::kInvalidArgument, "switcher");
  ExpectError(command + " --threshold 0.5 -o " + folder_ + "/plain", ErrorCode::kInvalidArgument, "no switcher");
  ExpectError(command + " --threshold 0.5 --reason both -o " + folder_ + "/plain", ErrorCode::kInvalidArgument,
              "no switcher");
  ExpectError(common + " --temp 0 -o " + folder_ + "/greedy", ErrorCode::kInvalidArgument, "temperature 0");
}

}  // namespace
}  // namespace pith
