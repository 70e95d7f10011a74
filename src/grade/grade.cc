#include "grade/grade.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "grade/answer_form.h"
#include "grade/compare.h"
#include "grade/work_budget.h"

namespace pith {

namespace {

using grade::Sameness;

Verdict VerdictOf(Sameness same) {
  switch (same) {
    case Sameness::kSame: return Verdict::kEqual;
    case Sameness::kDifferent: return Verdict::kDifferent;
    case Sameness::kUnknown: break;
  }
  return Verdict::kTooHard;
}

Sameness CompareReadings(const AnswerReading& g, const AnswerReading& p, grade::CompareOptions options,
                         grade::WorkBudget* budget) {
  if (g.tree == nullptr || p.tree == nullptr) return Sameness::kDifferent;
  options.too_large = g.too_large || p.too_large;
  return grade::CompareTrees(g.tree, p.tree, options, budget);
}

// Different only when both say so.
Sameness Best(Sameness a, Sameness b) {
  if (a == Sameness::kSame || b == Sameness::kSame) return Sameness::kSame;
  return a == Sameness::kUnknown || b == Sameness::kUnknown ? Sameness::kUnknown : Sameness::kDifferent;
}

Sameness CompareForms(const AnswerForm& g, const AnswerForm& p, const grade::CompareOptions& options,
                      grade::WorkBudget* budget) {
  if ((!g.key.empty() && g.key == p.key) || g.text == p.text) return Sameness::kSame;
  if (g.choice != '\0' && p.choice != '\0') {
    return g.choice == p.choice ? Sameness::kSame : Sameness::kDifferent;
  }
  if (g.choice_body != nullptr && p.choice == '\0') return CompareForms(*g.choice_body, p, options, budget);
  if (p.choice_body != nullptr && g.choice == '\0') return CompareForms(g, *p.choice_body, options, budget);
  if (g.too_hard || p.too_hard) return Sameness::kUnknown;
  if (g.is_words && p.is_words) return !g.words.empty() && g.words == p.words ? Sameness::kSame : Sameness::kDifferent;
  if (g.is_words || p.is_words) return Sameness::kDifferent;
  // Two answers with the same doubt about a comma are both lists; otherwise either reading will do.
  if (g.other && p.other) {
    const AnswerReading& g_list = g.list_first ? g.reading : *g.other;
    const AnswerReading& p_list = p.list_first ? p.reading : *p.other;
    if (g.list_first == p.list_first) return CompareReadings(g.reading, p.reading, options, budget);
    return CompareReadings(g_list, p_list, options, budget);
  }
  Sameness same = CompareReadings(g.reading, p.reading, options, budget);
  if (same == Sameness::kSame || options.plain_percent) return same;
  if (g.other) same = Best(same, CompareReadings(*g.other, p.reading, options, budget));
  if (p.other) same = Best(same, CompareReadings(g.reading, *p.other, options, budget));
  return same;
}

// Nothing may leave the functions of this room; what is left to be thrown is a failed allocation.
template <class T, class Function>
T Guarded(T fallback, const Function& function) {
  try {
    return function();
  } catch (const std::exception&) {
    return fallback;
  }
}

}  // namespace

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kEqual: return "equal";
    case Verdict::kDifferent: return "different";
    case Verdict::kTooHard: return "too_hard";
    case Verdict::kNoAnswer: return "no_answer";
  }
  return "unknown";
}

const char* AnswerSourceName(AnswerSource source) {
  switch (source) {
    case AnswerSource::kBox: return "box";
    case AnswerSource::kStated: return "stated";
    case AnswerSource::kWhole: return "whole";
    case AnswerSource::kLast: return "last";
  }
  return "unknown";
}

Answer::Answer(std::string_view text)
    : form_(Guarded(std::shared_ptr<const AnswerForm>(), [&] { return MakeAnswerForm(text); })) {}

const std::string& Answer::text() const {
  static const std::string& nothing = *new std::string;
  return form_ == nullptr ? nothing : form_->text;
}

Verdict CompareAnswers(const Answer& gold, const Answer& predicted) {
  if (gold.empty() || predicted.empty()) return Verdict::kNoAnswer;
  return Guarded(Verdict::kTooHard, [&] {
    grade::WorkBudget budget(grade::kCompareUnits);
    grade::CompareOptions options;
    options.directed = true;
    return VerdictOf(CompareForms(*gold.form_, *predicted.form_, options, &budget));
  });
}

Verdict CompareAnswers(std::string_view gold, std::string_view predicted) {
  return CompareAnswers(Answer(gold), Answer(predicted));
}

bool SameAnswer(const Answer& a, const Answer& b) {
  if (a.empty() || b.empty()) return false;
  return Guarded(false, [&] {
    // One order of the two, so that the result cannot depend on it.
    const bool swap = b.form_->text < a.form_->text;
    const AnswerForm& first = swap ? *b.form_ : *a.form_;
    const AnswerForm& second = swap ? *a.form_ : *b.form_;
    grade::WorkBudget budget(grade::kCompareUnits);
    grade::CompareOptions options;
    options.plain_percent = true;
    return CompareForms(first, second, options, &budget) == Sameness::kSame;
  });
}

AnswerClasses ClassifyAnswers(std::span<const Answer> answers) {
  return Guarded(AnswerClasses{std::vector<int>(answers.size(), -1), {}}, [&] {
    const size_t count = answers.size();
    std::vector<size_t> root(count);
    std::iota(root.begin(), root.end(), size_t{0});
    const auto find = [&](size_t i) {
      while (root[i] != i) i = root[i] = root[root[i]];
      return i;
    };
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = i + 1; j < count; ++j) {
        const size_t a = find(i);
        const size_t b = find(j);
        if (a != b && SameAnswer(answers[i], answers[j])) root[b] = a;
      }
    }
    AnswerClasses classes;
    classes.class_of.assign(count, -1);
    std::vector<int> number(count, -1);
    const auto before = [](const std::string& x, const std::string& y) {
      return x.size() != y.size() ? x.size() < y.size() : x < y;
    };
    for (size_t i = 0; i < count; ++i) {
      if (answers[i].empty()) continue;
      int& mine = number[find(i)];
      if (mine < 0) {
        mine = static_cast<int>(classes.representative.size());
        classes.representative.push_back(answers[i].text());
      }
      std::string& text = classes.representative[static_cast<size_t>(mine)];
      if (before(answers[i].text(), text)) text = answers[i].text();
      classes.class_of[i] = mine;
    }
    return classes;
  });
}

GradeResult Grade(std::string_view gold, std::string_view response, const ExtractOptions& options) {
  return Guarded(GradeResult{Verdict::kTooHard, {}, {}, options.truncated}, [&] {
    GradeResult result;
    result.gold = ExtractAnswer(gold);
    // A key that no rule finds an answer in is the answer itself.
    if (!result.gold && !TrimAnswer(gold).empty()) {
      result.gold = ExtractedAnswer{std::string(TrimAnswer(gold)), AnswerSource::kWhole};
    }
    result.predicted = ExtractAnswer(response, options);
    result.truncated = options.truncated || LooksTruncated(response);
    if (result.gold && result.predicted) {
      result.verdict = CompareAnswers(Answer(result.gold->text), Answer(result.predicted->text));
    }
    return result;
  });
}

}  // namespace pith
