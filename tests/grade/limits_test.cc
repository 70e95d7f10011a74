// Whatever the input, the work is bounded; a limit gives "too_hard", not "different".
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "answer_pairs.h"
#include "grade/grade.h"

namespace pith {
namespace {

std::string Repeat(const std::string& part, size_t times) {
  std::string text;
  for (size_t i = 0; i < times; ++i) text += part;
  return text;
}

// CPU time of this thread in milliseconds: other programs on the machine do not count.
double CpuMilliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

void ExpectFast(const std::string& gold, const std::string& predicted) {
  const double begin = CpuMilliseconds();
  const GradeResult result = Grade(gold, predicted);
  const double spent = CpuMilliseconds() - begin;
  EXPECT_LT(spent, 50.0) << gold.substr(0, 80) << " | " << predicted.substr(0, 80) << " "
                         << VerdictName(result.verdict);
}

TEST(GradeLimitsTest, TooHardIsNotDifferent) {
  EXPECT_EQ(CompareAnswers("9^{9^{9^9}}", "9^{9^{9^9}}+1"), Verdict::kTooHard);
  EXPECT_EQ(CompareAnswers("1000000000!", "1000000001!"), Verdict::kTooHard);
  EXPECT_EQ(CompareAnswers("2^{10^{30}}", "2^{10^{30}} + 1"), Verdict::kTooHard);
  // Known to be equal or different without working it out.
  EXPECT_EQ(CompareAnswers("9^{9^{9^9}}", "9^{9^{9^{9}}}"), Verdict::kEqual);
  EXPECT_EQ(CompareAnswers("2^{100000}", "3^{100000}"), Verdict::kDifferent);
  // Too large to write down, too close to tell apart by their leading digits.
  EXPECT_EQ(CompareAnswers("2^{100000}", "2^{100000}+1"), Verdict::kTooHard);
}

TEST(GradeLimitsTest, HostileTexts) {
  const std::vector<std::string> texts = {
      "9^{9^{9^{9^9}}}",
      Repeat("9^", 500) + "9",
      Repeat("(", 5000) + "1" + Repeat(")", 5000),
      Repeat("{", 100000),
      Repeat("\\frac{1}{", 3000) + "2" + Repeat("}", 3000),
      Repeat("\\sqrt{", 200) + "2" + Repeat("}", 200),
      Repeat("\\boxed{", 20000),
      Repeat("\\boxed{1}", 20000),
      Repeat("\\boxed{1} and ", 20000),
      Repeat("$", 100000),
      Repeat("$1", 50000),
      Repeat("\\(", 50000),
      Repeat("\\[ 5 ", 50000),
      Repeat("the answer is ", 20000),
      Repeat("the answer is 5. ", 10000),
      Repeat("1,", 2000) + "1",
      Repeat("1+", 2000) + "1",
      Repeat("x!", 40),
      "x" + Repeat("!", 3000),
      Repeat("(x+y)^{1/3}+", 300) + "1",
      Repeat("\\sin(", 90) + "x" + Repeat(")", 90),
      Repeat("\\pm ", 200) + "1",
      Repeat("1 \\pm ", 20) + "1",
      Repeat("(1,2)\\cup ", 200) + "(3,4)",
      Repeat("\\begin{pmatrix}", 200),
      "\\begin{pmatrix}" + Repeat("1 & ", 2000) + "1\\end{pmatrix}",
      Repeat("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", 40),
      "10000000000000000000!",
      "4000!+3999!",
      "(4000!)^2/(3999!)^2",
      "1e999999999",
      "0." + std::string(8000, '3'),
      std::string(200000, '7'),
      "\\binom{4000}{2000}\\binom{4000}{1999}",
      "\\gcd(" + Repeat("4000!,", 30) + "3)",
      Repeat("\\text{", 1000) + "a" + Repeat("}", 1000),
      Repeat("a and ", 2000) + "b",
      Repeat("x_", 1000) + "1",
      Repeat("|", 3000),
      "e^{e^{e^{e^{e^{e}}}}}",
      "\\sin(10^{300})",
      "\\tan(\\frac{\\pi}{2})",
      "\\log_{1} 5",
      "(-1)^{1/2^{100}}",
      std::string("\0\xff\xfe 5 \x80", 7),
      "\\",
      "\\frac",
      "\\frac1",
      "^^^___",
      "\\begin{",
      "\\begin{array}{",
  };
  for (const std::string& text : texts) {
    ExpectFast("1", text);
    ExpectFast(text, "x+1");
    ExpectFast("\\boxed{" + text + "}", "\\boxed{" + text + "+1}");
    (void)LooksTruncated(text);
    (void)SameAnswer(Answer(text), Answer("5"));
    if (!Answer(text).empty()) {
      EXPECT_EQ(CompareAnswers(text, text), Verdict::kEqual) << text.substr(0, 60);
    }
  }
}

// A response that runs in circles: it says "answer" all the time and never states one.
TEST(GradeLimitsTest, StatementsWithoutAnswers) {
  std::string ending;
  for (int i = 0; i < 60; ++i) ending += "word ";
  for (const std::string piece : {"answer: ww xx ", "answer: \\[ xx ", "the answer is {ww xx "}) {
    std::string text;
    while (text.size() < size_t{1} << 20) text += piece;
    const std::clock_t begin = std::clock();
    (void)ExtractAnswer(text + ending, {});
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    // 3 s before the number of statements was bounded; the rest is a few passes over a MiB.
    EXPECT_LT(seconds, 0.5) << piece;
  }
}

TEST(GradeLimitsTest, Threads) {
  std::vector<Verdict> expected;
  for (const auto& pair : testing::AnswerPairs()) expected.push_back(CompareAnswers(pair.gold, pair.predicted));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 3; ++round) {
        size_t i = 0;
        for (const auto& pair : testing::AnswerPairs()) {
          if (CompareAnswers(pair.gold, pair.predicted) != expected[i++]) ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

}  // namespace
}  // namespace pith
