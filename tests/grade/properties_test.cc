// What must hold for any answers: reflexive, symmetric but for the directed rules, stable under markup.
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>
#include <vector>

#include "answer_pairs.h"
#include "base/random.h"
#include "grade/grade.h"

namespace pith {
namespace {

std::vector<std::string> AllAnswers() {
  std::set<std::string> texts;
  for (const auto& pair : testing::AnswerPairs()) {
    texts.emplace(pair.gold);
    texts.emplace(pair.predicted);
  }
  return {texts.begin(), texts.end()};
}

// Only comparisons are directed.
bool MayBeDirected(const std::string& text) {
  static const std::regex relation(R"([<>]|!=|≤|≥|≠|\\(l|g|n)(e|eq|eqslant|eqq|t)?(?![a-zA-Z]))");
  return std::regex_search(text, relation);
}

TEST(GradePropertiesTest, Reflexive) {
  for (const std::string& text : AllAnswers()) {
    EXPECT_EQ(CompareAnswers(text, text), Verdict::kEqual) << text;
    EXPECT_TRUE(SameAnswer(Answer(text), Answer(text))) << text;
  }
}

TEST(GradePropertiesTest, SymmetricOverAllPairs) {
  std::vector<Answer> answers;
  const auto texts = AllAnswers();
  for (const std::string& text : texts) answers.emplace_back(text);
  for (size_t i = 0; i < answers.size(); ++i) {
    for (size_t j = i + 1; j < answers.size(); ++j) {
      EXPECT_EQ(SameAnswer(answers[i], answers[j]), SameAnswer(answers[j], answers[i]))
          << texts[i] << " | " << texts[j];
      if (MayBeDirected(texts[i]) || MayBeDirected(texts[j])) continue;
      EXPECT_EQ(CompareAnswers(answers[i], answers[j]), CompareAnswers(answers[j], answers[i]))
          << texts[i] << " | " << texts[j];
    }
  }
}

// Random edits of answers: still reflexive and symmetric, also where they are nonsense.
TEST(GradePropertiesTest, RandomEdits) {
  const auto texts = AllAnswers();
  const std::string alphabet = "0123456789.,+-*/^_(){}[]|=<>!%$\\ xyzabein:;";
  for (uint64_t run = 0; run < 20000; ++run) {
    uint64_t position = 0;
    const auto below = [&](size_t end) { return static_cast<size_t>(RandomBits(7, run, position++) % end); };
    std::string a = texts[below(texts.size())];
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      const size_t at = below(a.size() + 1);
      switch (below(3)) {
        case 0: a.insert(at, 1, alphabet[below(alphabet.size())]); break;
        case 1: a.erase(at, 1 + below(3)); break;
        case 2: {
          const std::string& other = texts[below(texts.size())];
          a.insert(at, other.substr(below(other.size()), below(8)));
          break;
        }
      }
    }
    const std::string& b = texts[below(texts.size())];
    const Answer first(a);
    const Answer second(b);
    if (first.empty()) continue;
    ASSERT_EQ(CompareAnswers(first, first), Verdict::kEqual) << a;
    ASSERT_EQ(SameAnswer(first, second), SameAnswer(second, first)) << a << " | " << b;
    if (!MayBeDirected(a) && !MayBeDirected(b)) {
      ASSERT_EQ(CompareAnswers(first, second), CompareAnswers(second, first)) << a << " | " << b;
    }
  }
}

TEST(GradePropertiesTest, MarkupChangesNothing) {
  for (const auto& pair : testing::AnswerPairs()) {
    const Verdict plain = CompareAnswers(pair.gold, pair.predicted);
    const std::string inside(pair.predicted);
    if (inside.find('$') != std::string::npos || inside.find("boxed") != std::string::npos) continue;
    for (const auto& [front, back] :
         {std::pair{"$", "$"}, {"\\(", "\\)"}, {"  ", " \n"}, {"\\boxed{", "}"}, {"$\\boxed{", "}$"}}) {
      EXPECT_EQ(CompareAnswers(pair.gold, front + inside + back), plain) << pair.gold << " | " << front + inside + back;
    }
  }
}

}  // namespace
}  // namespace pith
