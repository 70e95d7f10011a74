// Running the program as scripts do. The test that includes this is compiled with PITH_BINARY, the path of the program.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "support/data.h"

namespace pith::testing {

struct Outcome {
  int status = -1;    // exit status; -1 when it did not exit by itself
  std::string out;    // standard output
  std::string error;  // standard error, where the line does not send it elsewhere
  Json json;          // of standard output, when that is JSON
};

// Runs a line of sh in which $PITH is the program.
inline Outcome Shell(const std::string& line) {
  const std::string error_path = TempDir() + "/stderr";
  ::setenv("PITH", PITH_BINARY, 1);
  std::FILE* pipe = ::popen(("{ " + line + "\n} 2> " + error_path).c_str(), "r");
  Outcome outcome;
  char buffer[4096];
  size_t count;
  while ((count = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0) outcome.out.append(buffer, count);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) outcome.status = WEXITSTATUS(status);
  outcome.error = ReadFile(error_path);
  if (const auto json = ParseJson(outcome.out, "output"); json.ok()) outcome.json = *json;
  return outcome;
}

// The outcome of a run with --json is this error, and its message holds `part`.
inline void ExpectError(const Outcome& outcome, ErrorCode code, const std::string& part) {
  EXPECT_EQ(outcome.status, ExitCode(code)) << outcome.out << outcome.error;
  ASSERT_TRUE(outcome.json.is_object() && outcome.json.contains("error")) << outcome.out << outcome.error;
  EXPECT_EQ(outcome.json["error"]["code"], ErrorCodeName(code)) << outcome.out;
  EXPECT_NE(outcome.json["error"]["message"].get<std::string>().find(part), std::string::npos) << outcome.out;
}
inline void ExpectError(const std::string& line, ErrorCode code, const std::string& part) {
  SCOPED_TRACE(line);
  ExpectError(Shell(line + " --json"), code, part);
}

}  // namespace pith::testing
