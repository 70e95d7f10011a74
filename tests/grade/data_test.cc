// The public collections: verdicts of other graders' test suites, and marked solutions of GSM8K.
#include "support/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "grade/grade.h"

namespace pith {
namespace {

double CpuMicroseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

std::vector<Json> ReadLines(const std::string& path) {
  std::vector<Json> rows;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    auto row = ParseJson(line, path);
    if (row.ok()) rows.push_back(std::move(*row));
  }
  return rows;
}

TEST(GradeDataTest, PairsOfOtherSuites) {
  PITH_REQUIRE_DATA(path, "grading/grading_pairs_dev.jsonl");  // NOLINT(performance-unnecessary-copy-initialization)
  int rows = 0;
  int agreed = 0;
  int false_positives = 0;
  std::vector<double> times;
  for (const Json& row : ReadLines(path)) {
    const auto& tags = row["tags"];
    if (std::find(tags.begin(), tags.end(), "silver") != tags.end()) continue;
    const double begin = CpuMicroseconds();
    const GradeResult result = Grade(row["gold"].get<std::string>(), row["pred"].get<std::string>());
    times.push_back(CpuMicroseconds() - begin);
    const bool expected = row["expect"].get<bool>();
    ++rows;
    if (result.correct() == expected) ++agreed;
    if (result.correct() && !expected) ++false_positives;
    if (result.correct() != expected) std::printf("disagrees: %s\n", row["id"].get<std::string>().c_str());
  }
  std::sort(times.begin(), times.end());
  std::printf("%d of %d agree, %d false positives; median %.1f us, max %.1f us\n", agreed, rows, false_positives,
              times[times.size() / 2], times.back());
  EXPECT_EQ(rows, 460);
  EXPECT_GE(agreed * 100, rows * 97);
  EXPECT_EQ(false_positives, 0);
  EXPECT_LT(times[times.size() / 2], 1000.0);
  EXPECT_LT(times.back(), 50000.0);
}

TEST(GradeDataTest, MarkedSolutionsOfGsm8k) {
  PITH_REQUIRE_DATA(path,
                    "grading/gsm8k_model_solutions.jsonl");  // NOLINT(performance-unnecessary-copy-initialization)
  int rows = 0;
  int agreed = 0;
  int shown = 0;
  for (const Json& row : ReadLines(path)) {
    const std::string gold = row["ground_truth"].get<std::string>();
    for (const char* setup : {"6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"}) {
      const std::string solution = row[setup]["solution"].get<std::string>();
      const GradeResult result = Grade(gold, solution);
      ++rows;
      if (result.correct() == row[setup]["is_correct"].get<bool>()) {
        ++agreed;
      } else if (++shown <= 40) {
        std::printf("%s marked %s: gold '%s', answer '%s' (%s)\n", setup,
                    row[setup]["is_correct"].get<bool>() ? "right" : "wrong",
                    result.gold ? result.gold->text.c_str() : "",
                    result.predicted ? result.predicted->text.c_str() : "", VerdictName(result.verdict));
      }
    }
  }
  std::printf("%d of %d marks agree\n", agreed, rows);
  EXPECT_EQ(rows, 1319 * 4);
  EXPECT_GE(agreed * 1000, rows * 995);
}

}  // namespace
}  // namespace pith
