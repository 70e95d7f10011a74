// What must hold for any answers: reflexive, symmetric but for the directed rules, stable under markup.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "answer_pairs.h"
#include "base/random.h"
#include "grade/answer_form.h"
#include "grade/grade.h"
#include "grade/work_budget.h"

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

// SameAnswer orders its two answers, so both of its results would be one; what it is made of must give the same in both
// orders. Only the rule that has a direction is left out, for every text.
void ExpectSymmetric(const AnswerForm& a, const AnswerForm& b) {
  for (const bool plain_percent : {false, true}) {
    grade::CompareOptions options;
    options.plain_percent = plain_percent;
    grade::WorkBudget there(grade::kCompareUnits), back(grade::kCompareUnits);
    EXPECT_EQ(CompareForms(a, b, options, &there), CompareForms(b, a, options, &back)) << a.text << " | " << b.text;
  }
}

TEST(GradePropertiesTest, Reflexive) {
  for (const std::string& text : AllAnswers()) {
    EXPECT_EQ(CompareAnswers(text, text), Verdict::kEqual) << text;
    EXPECT_TRUE(SameAnswer(Answer(text), Answer(text))) << text;
  }
}

TEST(GradePropertiesTest, SymmetricOverAllPairs) {
  std::vector<std::shared_ptr<const AnswerForm>> forms;
  for (const std::string& text : AllAnswers()) forms.push_back(MakeAnswerForm(text));
  for (size_t i = 0; i < forms.size(); ++i) {
    for (size_t j = i + 1; j < forms.size(); ++j) {
      if (forms[i] != nullptr && forms[j] != nullptr) ExpectSymmetric(*forms[i], *forms[j]);
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
    const auto first = MakeAnswerForm(a);
    const auto second = MakeAnswerForm(b);
    if (first == nullptr || second == nullptr) continue;
    ASSERT_EQ(CompareAnswers(a, a), Verdict::kEqual) << a;
    ExpectSymmetric(*first, *second);
    if (HasFailure()) return;
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
