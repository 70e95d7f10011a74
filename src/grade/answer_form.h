// An answer as it is compared: its readings, parsed once.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "grade/compare.h"
#include "grade/expression.h"
#include "grade/grade.h"

namespace pith {

// One way to read an answer.
struct AnswerReading {
  grade::ExprPtr tree;  // null: words, or too hard
  bool too_large = false;
};

struct AnswerForm {
  std::string text;       // as given
  std::string key;        // the text without markup and blanks: equal keys are equal answers
  std::string words;      // grade::WordsKey of it
  bool is_words = false;  // not an expression
  bool too_hard = false;
  AnswerReading reading;
  std::optional<AnswerReading> other;             // "1,22": the reading that is less likely
  bool list_first = false;                        // `reading` is the list, `other` the decimal
  char choice = '\0';                             // "(C) 12", "C.": the letter ...
  std::shared_ptr<const AnswerForm> choice_body;  // ... and what is written behind it
};

std::shared_ptr<const AnswerForm> MakeAnswerForm(std::string_view text, bool with_choice = true);

// The text without what surrounds an answer: blanks, $ signs, bold, a box around all of it, the end of a sentence.
std::string_view TrimAnswer(std::string_view text);

// Whether a text is one expression, or words of at most `max_words` words, rather than prose.
bool IsWholeAnswer(std::string_view text, size_t max_words);

}  // namespace pith
