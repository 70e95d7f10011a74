// Candidates of a vote.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "grade/grade.h"

namespace pith {
namespace {

std::vector<Answer> Parse(const std::vector<std::string>& texts) {
  std::vector<Answer> answers;
  for (const std::string& text : texts) answers.emplace_back(text);
  return answers;
}

TEST(GradeClassesTest, EquivalentAnswersAreOne) {
  const auto classes = ClassifyAnswers(Parse({"0.5", "7", "\\frac{1}{2}", "", "7.0", "x = 1/2", "8"}));
  EXPECT_EQ(classes.class_of, (std::vector<int>{0, 1, 0, -1, 1, 0, 2}));
  EXPECT_EQ(classes.representative, (std::vector<std::string>{"0.5", "7", "8"}));
}

TEST(GradeClassesTest, NothingAndOne) {
  EXPECT_TRUE(ClassifyAnswers({}).class_of.empty());
  const auto empty = ClassifyAnswers(Parse({"", " "}));
  EXPECT_EQ(empty.class_of, (std::vector<int>{-1, -1}));
  EXPECT_TRUE(empty.representative.empty());
}

// A percentage is the number before its sign: the two readings of a key must not merge 10 and 0.1.
TEST(GradeClassesTest, PercentJoinsOnlyOneOfItsReadings) {
  const auto classes = ClassifyAnswers(Parse({"10", "10\\%", "0.1", "10 percent"}));
  EXPECT_EQ(classes.class_of, (std::vector<int>{0, 0, 1, 0}));
  EXPECT_TRUE(SameAnswer(Answer("10%"), Answer("10")));
  EXPECT_FALSE(SameAnswer(Answer("10%"), Answer("0.1")));
  EXPECT_FALSE(SameAnswer(Answer(), Answer("0.1")));
  EXPECT_FALSE(SameAnswer(Answer(), Answer()));
}

// The direction of a key does not matter among candidates.
TEST(GradeClassesTest, SymmetricWhereGradingIsNot) {
  EXPECT_TRUE(SameAnswer(Answer("-1<x<3"), Answer("(-1,3)")));
  EXPECT_TRUE(SameAnswer(Answer("(-1,3)"), Answer("-1<x<3")));
}

// The partition and the representatives of every order of these answers are the same.
TEST(GradeClassesTest, OrderDoesNotMatter) {
  const std::vector<std::string> texts = {"0.3333", "1/3", "0.33333", "2", "\\sqrt4", ""};
  std::vector<size_t> order(texts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::set<std::set<std::set<std::string>>> partitions;
  std::set<std::set<std::string>> representatives;
  do {
    std::vector<std::string> permuted;
    for (const size_t i : order) permuted.push_back(texts[i]);
    const auto classes = ClassifyAnswers(Parse(permuted));
    std::vector<std::set<std::string>> members(classes.representative.size());
    for (size_t i = 0; i < permuted.size(); ++i) {
      if (permuted[i].empty()) {
        ASSERT_EQ(classes.class_of[i], -1);
      } else {
        ASSERT_GE(classes.class_of[i], 0);
        members[static_cast<size_t>(classes.class_of[i])].insert(permuted[i]);
      }
    }
    partitions.insert({members.begin(), members.end()});
    representatives.insert({classes.representative.begin(), classes.representative.end()});
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(partitions.size(), 1U);
  EXPECT_EQ(representatives.size(), 1U);
}

}  // namespace
}  // namespace pith
