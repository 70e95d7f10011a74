#include "eval/training_report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/json.h"
#include "drawn_report.h"
#include "support/data.h"

namespace pith {
namespace {

constexpr const char* kHostile = "</script><script>alert(1)</script>";

std::string Metrics() {
  std::string lines;
  for (int step = 1; step <= 200; ++step) {
    Json json{{"step", step},
              {"epoch", step / 100.0},
              {"loss", 3.0 / step},
              {"reward", step / 200.0},
              {"accuracy", step / 250.0},
              {"mean_length", 300 - step},
              {"odd one", 7}};
    if (step == 150) json["warnings"] = {std::string("careful ") + kHostile};
    lines += json.dump() + "\n";
    if (step % 50 == 0) lines += Json{{"step", step}, {"eval_loss", 4.0 / step}, {"best", true}}.dump() + "\n";
  }
  return lines;
}

std::string Samples() {
  return Json{{"step", 200},        {"id", "q1"},  {"budget", 100},      {"length", 80},
              {"verdict", "equal"}, {"reward", 1}, {"prompt", "1 + 1?"}, {"completion", std::string("2 ") + kHostile}}
             .dump() +
         "\n";
}

TEST(TrainingReportTest, HoldsTheNumbersAndNoMarkupOfOthers) {
  const auto page = RenderTrainingReport("run <1>", Metrics(), Samples());
  ASSERT_TRUE(page.ok()) << page.error().message;
  EXPECT_EQ(page->find(kHostile), std::string::npos);
  EXPECT_NE(page->find("run &lt;1&gt;"), std::string::npos);
  EXPECT_EQ(page->find("http://"), page->find("http://www.w3.org"));  // nothing is loaded
}

TEST(TrainingReportTest, CutLinesAreLeftOutAndBrokenOnesNamed) {
  EXPECT_TRUE(RenderTrainingReport("run", "{\"step\":1,\"loss\":2}\n{\"step\":2,\"lo", "").ok());
  const auto broken = RenderTrainingReport("run", "{\"step\":1}\n{\"step\":2,\"lo\n{\"step\":3}\n", "");
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code, ErrorCode::kMalformed);
  EXPECT_NE(broken.error().message.find("metrics.jsonl, line 2"), std::string::npos);
  EXPECT_TRUE(RenderTrainingReport("run", "", "").ok());
}

TEST(TrainingReportTest, IsWrittenBesideTheMetrics) {
  const std::string folder = testing::TempDir() + "/training_report";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder + "/metrics.jsonl");
  EXPECT_EQ(WriteTrainingReport(folder).error().code, ErrorCode::kNotFound);
  std::ofstream(folder + "/metrics.jsonl") << Metrics();
  std::ofstream(folder + "/samples.jsonl") << Samples();
  const auto path = WriteTrainingReport(folder);
  ASSERT_TRUE(path.ok()) << path.error().message;
  EXPECT_TRUE(std::filesystem::exists(*path));

  if (!testing::HasNode()) {
    GTEST_SKIP() << "SKIPPED LOUDLY: no node; the scripts of the report were not run";
  }
  const Json drawn = testing::DrawnReport(*path, folder);
  ASSERT_TRUE(drawn.is_object());
  EXPECT_EQ(drawn["charts"], Json({"Loss", "Reward and accuracy", "Tokens of a response", "odd one"}));
  EXPECT_EQ(drawn["failed"], Json::array());
  EXPECT_NE(drawn["text"].get<std::string>().find(kHostile), std::string::npos);  // as text
  EXPECT_NE(drawn["text"].get<std::string>().find("verdict equal"), std::string::npos);
}

}  // namespace
}  // namespace pith
