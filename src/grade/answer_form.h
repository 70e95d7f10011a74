// An answer as it is compared: its readings, parsed once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grade/compare.h"
#include "grade/expression.h"
#include "grade/grade.h"
#include "grade/work_budget.h"

namespace pith {

// One way to read an answer.
struct AnswerReading {
  grade::ExprPtr tree;  // null: words, or too hard
  bool too_large = false;
  // Names that were read as functions but may be factors (`a` in a(b + c), which does not stand alone here), the
  // reading in which they are, and whether an argument is more than a number.
  std::vector<std::string> heads;
  grade::ExprPtr products;
  bool doubtful = false;
  int letter_unit = 0;  // as in grade::ParseOutcome
};

struct AnswerForm {
  std::string text;       // as given
  std::string key;        // the text without markup and blanks: equal keys are equal answers
  bool is_words = false;  // not an expression
  bool is_prose = false;  // is_words: letters, integers and marks of a sentence only
  std::string words;      // is_words: of prose grade::WordsKey, of unreadable mathematics its tokens
  bool too_hard = false;
  AnswerReading reading;
  std::optional<AnswerReading> other;             // "1,22": the reading that is less likely
  bool list_first = false;                        // `reading` is the list, `other` the decimal
  std::optional<AnswerReading> quantity;          // "5 m" as a length
  char choice = '\0';                             // "(C) 12", "C.": the letter ...
  std::shared_ptr<const AnswerForm> choice_body;  // ... and what is written behind it
};

std::shared_ptr<const AnswerForm> MakeAnswerForm(std::string_view text, bool with_choice = true);

// Whether two answers are the same; not symmetric where `options.directed`.
grade::Sameness CompareForms(const AnswerForm& gold, const AnswerForm& predicted, const grade::CompareOptions& options,
                             grade::WorkBudget* budget);

// The text without what surrounds an answer: blanks, $ signs, bold, a box around all of it, the end of a sentence.
std::string_view TrimAnswer(std::string_view text);

// Whether a text is one expression, or words of at most `max_words` words, rather than prose.
bool IsWholeAnswer(std::string_view text, size_t max_words);

}  // namespace pith
