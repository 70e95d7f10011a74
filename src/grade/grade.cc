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

namespace {

Sameness CompareTrees(const grade::ExprPtr& g, const grade::ExprPtr& p, bool too_large, grade::CompareOptions options,
                      grade::WorkBudget* budget) {
  if (g == nullptr || p == nullptr) return Sameness::kDifferent;
  options.too_large = too_large;
  return grade::CompareTrees(g, p, options, budget);
}

// Whether every name that may be a function in one reading stands alone in the other: then it is a factor.
bool AreFactors(const AnswerReading& reading, const AnswerReading& other) {
  if (reading.heads.empty() || other.tree == nullptr) return false;
  const std::vector<std::string> names = grade::FreeSymbols(*other.tree);
  return std::all_of(reading.heads.begin(), reading.heads.end(),
                     [&](const std::string& head) { return std::binary_search(names.begin(), names.end(), head); });
}

Sameness CompareReadings(const AnswerReading& g, const AnswerReading& p, const grade::CompareOptions& options,
                         grade::WorkBudget* budget) {
  const bool too_large = g.too_large || p.too_large;
  const Sameness same = CompareTrees(AreFactors(g, p) ? g.products : g.tree, AreFactors(p, g) ? p.products : p.tree,
                                     too_large, options, budget);
  if (same != Sameness::kDifferent || !(g.doubtful || p.doubtful)) return same;
  // a(2b + 2c) and 2a(b + c) are the same if a is a number, and it cannot be told whether it is one.
  const Sameness products = CompareTrees(g.heads.empty() ? g.tree : g.products, p.heads.empty() ? p.tree : p.products,
                                         too_large, options, budget);
  return products == Sameness::kSame ? Sameness::kUnknown : same;
}

// Different only when both say so.
Sameness Best(Sameness a, Sameness b) {
  if (a == Sameness::kSame || b == Sameness::kSame) return Sameness::kSame;
  return a == Sameness::kUnknown || b == Sameness::kUnknown ? Sameness::kUnknown : Sameness::kDifferent;
}

// "5 m" as a length, where the other side has a unit too, or \text says that it is one.
Sameness CompareQuantities(const AnswerForm& g, const AnswerForm& p, const grade::CompareOptions& options,
                           grade::WorkBudget* budget) {
  const auto measured = [](const AnswerForm& form, const AnswerForm& other) {
    return form.quantity && (form.reading.letter_unit > 1 || other.quantity ||
                             (other.reading.tree != nullptr && other.reading.tree->kind == grade::ExprKind::kQuantity));
  };
  const bool measured_g = measured(g, p);
  const bool measured_p = measured(p, g);
  if (!measured_g && !measured_p) return Sameness::kDifferent;
  return CompareReadings(measured_g ? *g.quantity : g.reading, measured_p ? *p.quantity : p.reading, options, budget);
}

}  // namespace

Sameness CompareForms(const AnswerForm& g, const AnswerForm& p, const grade::CompareOptions& options,
                      grade::WorkBudget* budget) {
  if ((!g.key.empty() && g.key == p.key) || g.text == p.text) return Sameness::kSame;
  if (g.choice != '\0' && p.choice != '\0') {
    return g.choice == p.choice ? Sameness::kSame : Sameness::kDifferent;
  }
  if (g.choice_body != nullptr && p.choice == '\0') return CompareForms(*g.choice_body, p, options, budget);
  if (p.choice_body != nullptr && g.choice == '\0') return CompareForms(g, *p.choice_body, options, budget);
  if (g.too_hard || p.too_hard) return Sameness::kUnknown;
  if (g.is_words && p.is_words) {
    if (g.is_prose == p.is_prose && !g.words.empty() && g.words == p.words) return Sameness::kSame;
    // What two formulas that cannot be read say is not known.
    return g.is_prose || p.is_prose ? Sameness::kDifferent : Sameness::kUnknown;
  }
  if (g.is_words || p.is_words) return Sameness::kDifferent;
  // Two answers with the same doubt about a comma are both lists; otherwise either reading will do.
  if (g.other && p.other) {
    const AnswerReading& g_list = g.list_first ? g.reading : *g.other;
    const AnswerReading& p_list = p.list_first ? p.reading : *p.other;
    if (g.list_first == p.list_first) return CompareReadings(g.reading, p.reading, options, budget);
    return CompareReadings(g_list, p_list, options, budget);
  }
  Sameness same = CompareReadings(g.reading, p.reading, options, budget);
  if (same != Sameness::kSame) same = Best(same, CompareQuantities(g, p, options, budget));
  if (same == Sameness::kSame || options.plain_percent) return same;
  if (g.other) same = Best(same, CompareReadings(*g.other, p.reading, options, budget));
  if (p.other) same = Best(same, CompareReadings(g.reading, *p.other, options, budget));
  return same;
}

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

std::optional<ExtractedAnswer> GoldAnswer(std::string_view gold) {
  return Guarded(std::optional<ExtractedAnswer>(), [&]() -> std::optional<ExtractedAnswer> {
    if (auto found = ExtractAnswer(gold); found && found->source != AnswerSource::kLast) return found;
    const std::string_view whole = TrimAnswer(gold);
    if (whole.empty()) return std::nullopt;
    return ExtractedAnswer{std::string(whole), AnswerSource::kWhole};
  });
}

GradeResult Grade(std::string_view gold, std::string_view response, const ExtractOptions& options) {
  return Guarded(GradeResult{Verdict::kTooHard, {}, {}, options.truncated}, [&] {
    GradeResult result;
    result.gold = GoldAnswer(gold);
    result.predicted = ExtractAnswer(response, options);
    result.truncated = options.truncated || LooksTruncated(response);
    if (result.gold && result.predicted) {
      result.verdict = CompareAnswers(Answer(result.gold->text), Answer(result.predicted->text));
    }
    return result;
  });
}

}  // namespace pith
