// Runs the scripts of a report's page on a stand-in for the browser (run_report.js) that tells what was drawn.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/json.h"
#include "support/data.h"

namespace pith::testing {

inline bool HasNode() { return std::system("command -v node > /dev/null 2>&1") == 0; }

// What run_report.js prints; null, with a failure, when a script threw. `folder` takes the output.
inline Json DrawnReport(const std::string& page, const std::string& folder) {
  const std::string command = "node '" + std::string(PITH_SOURCE_DIR) + "/tests/eval/run_report.js' '" + page +
                              "' > '" + folder + "/out.json' 2> '" + folder + "/err.txt'";
  if (std::system(command.c_str()) != 0) {
    ADD_FAILURE() << ReadFile(folder + "/err.txt");
    return {};
  }
  const auto drawn = ParseJson(ReadFile(folder + "/out.json"), "drawn");
  if (drawn.ok()) return *drawn;
  ADD_FAILURE() << drawn.error().message;
  return {};
}

}  // namespace pith::testing
