#include "base/progress.h"

#include <gtest/gtest.h>

#include <limits>

namespace pith {
namespace {

TEST(ProgressTest, Amounts) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(491400064), "468.6 MiB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<uint64_t>::max()), "16.0 EiB");
  EXPECT_EQ(HumanSeconds(0), "0 s");
  EXPECT_EQ(HumanSeconds(59.6), "1 min 0 s");
  EXPECT_EQ(HumanSeconds(7500), "2 h 5 min");
  EXPECT_EQ(HumanSeconds(-1), "0 s");
  EXPECT_EQ(HumanSeconds(std::numeric_limits<double>::infinity()), HumanSeconds(1e7));
}

TEST(ProgressTest, LineShowsShareAndTimeLeft) {
  // 400 of 1000 bytes, of which 200 came in the last 10 s: 600 more take 30 s.
  const std::string line = ProgressLine("file", 400, 200, 1000, 10, ProgressUnit::kBytes, 100);
  EXPECT_NE(line.find("40 %"), std::string::npos) << line;
  EXPECT_NE(line.find("400 B of 1000 B"), std::string::npos) << line;
  EXPECT_NE(line.find("30 s left"), std::string::npos) << line;
  EXPECT_NE(line.find("####"), std::string::npos) << line;
}

TEST(ProgressTest, LineFitsTheTerminal) {
  for (int width = 2; width < 200; ++width) {
    for (const uint64_t total : {uint64_t{0}, uint64_t{1}, uint64_t{1000}, std::numeric_limits<uint64_t>::max()}) {
      for (const uint64_t done : {uint64_t{0}, uint64_t{500}, std::numeric_limits<uint64_t>::max()}) {
        const std::string line = ProgressLine("a-long-file-name.gguf", done, 0, total, 3, ProgressUnit::kBytes, width);
        EXPECT_LT(line.size(), static_cast<size_t>(width));
      }
    }
  }
}

TEST(ProgressTest, FirstAndLastStateHaveNoTimeLeft) {
  EXPECT_EQ(ProgressLine("x", 0, 0, 10, 0, ProgressUnit::kItems, 80).find("left"), std::string::npos);
  EXPECT_EQ(ProgressLine("x", 10, 0, 10, 5, ProgressUnit::kItems, 80).find("left"), std::string::npos);
}

TEST(ProgressTest, SilentWithoutATerminal) {
  // Under CTest standard error is no terminal.
  ::testing::internal::CaptureStderr();
  {
    ProgressBar bar("file", 100);
    bar.Update(1);
    bar.Clear();
    bar.Update(100);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace pith
