#include <gtest/gtest.h>

#include "answer_pairs.h"
#include "grade/grade.h"

namespace pith {
namespace {

using testing::AnswerPair;
using testing::AnswerPairs;
using testing::Expected;

TEST(GradeCompareTest, EveryRule) {
  for (const AnswerPair& pair : AnswerPairs()) {
    const Verdict forward = CompareAnswers(pair.gold, pair.predicted);
    const Verdict backward = CompareAnswers(pair.predicted, pair.gold);
    if (pair.expected == Expected::kNotEqual) {
      EXPECT_NE(forward, Verdict::kEqual) << pair.rule << ": " << pair.gold << "  |  " << pair.predicted;
      EXPECT_NE(backward, Verdict::kEqual) << pair.rule << ": " << pair.gold << "  |  " << pair.predicted;
      continue;
    }
    const Verdict want = pair.expected == Expected::kDifferent ? Verdict::kDifferent : Verdict::kEqual;
    const Verdict want_backward = pair.expected == Expected::kEqual ? Verdict::kEqual : Verdict::kDifferent;
    EXPECT_STREQ(VerdictName(forward), VerdictName(want))
        << pair.rule << ": " << pair.gold << "  |  " << pair.predicted;
    EXPECT_STREQ(VerdictName(backward), VerdictName(want_backward))
        << pair.rule << " backward: " << pair.gold << "  |  " << pair.predicted;
  }
}

// A parsed answer gives what the texts give.
TEST(GradeCompareTest, ParsedOnce) {
  for (const AnswerPair& pair : AnswerPairs()) {
    const Answer gold(pair.gold);
    const Answer predicted(pair.predicted);
    EXPECT_EQ(gold.text(), pair.gold);
    EXPECT_EQ(CompareAnswers(gold, predicted), CompareAnswers(pair.gold, pair.predicted)) << pair.gold;
  }
}

TEST(GradeCompareTest, NoAnswer) {
  EXPECT_TRUE(Answer().empty());
  EXPECT_TRUE(Answer(" ").empty());
  EXPECT_TRUE(Answer("$ $").empty());
  EXPECT_EQ(CompareAnswers("5", ""), Verdict::kNoAnswer);
  EXPECT_EQ(CompareAnswers("", ""), Verdict::kNoAnswer);
  EXPECT_EQ(Answer().text(), "");
}

}  // namespace
}  // namespace pith
