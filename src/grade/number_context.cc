#include "grade/number_context.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace pith::grade {

namespace {

constexpr size_t kMostWords = 6;  // before the number
constexpr size_t kFarthest = 80;  // bytes that are looked at on either side
constexpr size_t kMostBehind = 40;

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

struct Word {
  size_t begin = 0;
  std::string lower;
};

using Words = std::span<const std::string_view>;

bool IsOneOf(std::string_view word, Words words) { return std::find(words.begin(), words.end(), word) != words.end(); }

constexpr std::array<std::string_view, 32> kFillers = {
    "exactly",  "precisely", "only",   "just", "about",      "approximately", "roughly", "around",
    "nearly",   "almost",    "the",    "a",    "an",         "some",          "simply",  "be",
    "is",       "are",       "was",    "were", "definitely", "really",        "even",    "certainly",
    "actually", "equal",     "equals", "to",   "value",      "number",        "usd",     "clearly"};
constexpr std::array<std::string_view, 3> kDenials = {"not", "never", "cannot"};
constexpr std::array<std::string_view, 2> kSigns = {"negative", "minus"};
constexpr std::array<std::string_view, 26> kParts = {
    "third",    "thirds",     "quarter", "quarters", "fifth",   "tenth",    "square",  "cube",      "root",
    "multiple", "multiples",  "factor",  "factors",  "divisor", "divisors", "power",   "powers",    "logarithm",
    "log",      "reciprocal", "inverse", "opposite", "instead", "fraction", "percent", "percentage"};
constexpr std::array<std::string_view, 14> kComparatives = {"more",    "less",   "fewer",   "greater", "larger",
                                                            "smaller", "higher", "lower",   "bigger",  "longer",
                                                            "shorter", "older",  "younger", "better"};
constexpr std::array<std::string_view, 3> kOperators = {"times", "plus", "minus"};
constexpr std::array<std::string_view, 7> kMultipliers = {"hundred",  "thousand", "million", "billion",
                                                          "trillion", "dozen",    "dozens"};

// The words that end right before `at`, the nearest first; a mark of punctuation ends the clause.
std::vector<Word> WordsBefore(std::string_view text, size_t at) {
  std::vector<Word> words;
  const size_t first = at > kFarthest ? at - kFarthest : 0;
  while (at > first && words.size() < kMostWords) {
    const char c = text[at - 1];
    if (c == ' ' || c == '*' || c == '_' || c == '"' || c == '`' || c == '$') {
      --at;
      continue;
    }
    if (!IsLetter(c) && c != '\'') break;
    const size_t end = at;
    while (at > first && (IsLetter(text[at - 1]) || text[at - 1] == '\'')) --at;
    Word word{at, std::string(text.substr(at, end - at))};
    for (char& letter : word.lower) letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + 32) : letter;
    words.push_back(std::move(word));
  }
  return words;
}

// The word behind `at`, and where it ends; empty where something else stands there.
std::string_view WordBehind(std::string_view text, size_t at, size_t* end) {
  const size_t limit = std::min(text.size(), at + kMostBehind);
  while (at < limit && (text[at] == ' ' || text[at] == '*')) ++at;
  const size_t begin = at;
  while (at < limit && IsLetter(text[at])) ++at;
  *end = at;
  return text.substr(begin, at - begin);
}

// Whether a number stands at `at`, blanks and signs aside; where it ends.
bool NumberAt(std::string_view text, size_t at, size_t* end) {
  const size_t limit = std::min(text.size(), at + kMostBehind);
  while (at < limit && (text[at] == ' ' || text[at] == '$' || text[at] == '*')) ++at;
  if (at < limit && text[at] == '-') ++at;
  if (at >= limit || !IsDigit(text[at])) return false;
  while (at < text.size() && (IsDigit(text[at]) || ((text[at] == '.' || text[at] == ',' || text[at] == '/') &&
                                                    at + 1 < text.size() && IsDigit(text[at + 1])))) {
    ++at;
  }
  *end = at;
  return true;
}

bool EndsInNumber(std::string_view text, size_t at) {
  while (at > 0 && (text[at - 1] == ' ' || text[at - 1] == '*')) --at;
  return at > 0 && IsDigit(text[at - 1]);
}

bool EndsInPercent(std::string_view text, size_t at) {
  while (at > 0 && text[at - 1] == ' ') --at;
  return at > 0 && text[at - 1] == '%';
}

NumberContext Phrase(NumberUse use, std::string_view text, size_t begin, size_t end) {
  std::string phrase(text.substr(begin, end - begin));
  phrase.erase(std::remove(phrase.begin(), phrase.end(), '*'), phrase.end());
  return {use, phrase, end};
}

bool IsDenial(const std::string& word) { return IsOneOf(word, kDenials) || word.ends_with("n't"); }

}  // namespace

NumberContext ReadNumberContext(std::string_view text, size_t begin, size_t end, const std::string& number) {
  NumberContext context{NumberUse::kValue, number, end};
  const std::vector<Word> before = WordsBefore(text, begin);
  const auto word = [&](size_t i) -> std::string_view {
    return i < before.size() ? before[i].lower : std::string_view();
  };
  size_t behind_end = end;
  std::string_view behind = WordBehind(text, end, &behind_end);
  size_t behind_number = end;
  if (IsOneOf(behind, kMultipliers)) {
    context.text += " " + std::string(behind);
    context.end = end = behind_end;
    behind = WordBehind(text, end, &behind_end);
  }

  // A term of a computation in words.
  if (IsOneOf(behind, kOperators) && NumberAt(text, behind_end, &behind_number)) return {NumberUse::kPart, {}, end};
  if (behind == "divided" || behind == "multiplied") return {NumberUse::kPart, {}, end};
  if (word(0) == "times" || word(0) == "plus") return {NumberUse::kPart, {}, end};
  if (word(0) == "by" && (word(1) == "divided" || word(1) == "multiplied")) return {NumberUse::kPart, {}, end};
  if (word(0) == "minus" && EndsInNumber(text, before[0].begin)) return {NumberUse::kPart, {}, end};

  // "5 percent of 20", "5% of 20"
  size_t of_end = end;
  const bool percent = number.ends_with('%') || behind == "percent";
  if (percent && WordBehind(text, behind == "percent" ? behind_end : end, &of_end) == "of" &&
      NumberAt(text, of_end, &behind_number)) {
    return {NumberUse::kPart, {}, end};
  }
  if (word(0) == "of" && EndsInPercent(text, before[0].begin)) return {NumberUse::kPart, {}, end};
  // "5 squared"
  if (behind == "squared") return {NumberUse::kValue, "(" + context.text + ")^2", behind_end};
  if (behind == "cubed") return {NumberUse::kValue, "(" + context.text + ")^3", behind_end};
  if (behind == "factorial") return {NumberUse::kValue, "(" + context.text + ")!", behind_end};

  // Two numbers that belong together.
  if (behind == "to" && NumberAt(text, behind_end, &behind_number)) {
    return Phrase(NumberUse::kRange, text, word(0) == "from" ? before[0].begin : begin, behind_number);
  }
  if (behind == "out" && WordBehind(text, behind_end, &of_end) == "of" && NumberAt(text, of_end, &behind_number)) {
    return Phrase(NumberUse::kRange, text, begin, behind_number);
  }
  if (word(0) == "between" && behind == "and" && NumberAt(text, behind_end, &behind_number)) {
    return Phrase(NumberUse::kRange, text, before[0].begin, behind_number);
  }
  if (word(0) == "either" && behind == "or" && NumberAt(text, behind_end, &behind_number)) {
    return Phrase(NumberUse::kRange, text, begin, behind_number);
  }

  size_t at = 0;
  while (at < before.size() && (IsOneOf(word(at), kFillers))) {
    if (word(at) == "to" && word(at + 1) == "up") break;
    ++at;
  }
  if (at == before.size()) return context;
  const std::string_view next = word(at);
  const std::string& next_word = before[at].lower;
  if (IsOneOf(next, kSigns)) {
    if (number.empty() || number[0] == '-') return context;
    context.text = "-" + context.text;
    // "not negative 5"
    for (size_t i = at + 1; i < before.size(); ++i) {
      if (IsDenial(before[i].lower)) return {NumberUse::kDenied, {}, end};
      if (!IsOneOf(word(i), kFillers)) break;
    }
    return context;
  }
  if (IsDenial(next_word)) return {NumberUse::kDenied, {}, end};
  if (next == "but" && (word(at + 1) == "anything" || word(at + 1) == "everything" || word(at + 1) == "all")) {
    return {NumberUse::kDenied, {}, end};
  }
  if (next == "except" || next == "besides") return {NumberUse::kDenied, {}, end};
  if (next == "of" && word(at + 1) == "negative") {
    context.text = number.starts_with('-') ? context.text.substr(1) : "-" + context.text;
    return context;
  }
  if (next == "than") {
    if (word(at + 1) == "rather" || word(at + 1) == "other") return {NumberUse::kDenied, {}, end};
    if (!IsOneOf(word(at + 1), kComparatives)) return context;
    size_t first = at + 1;
    if (word(first + 1) == "no" || word(first + 1) == "not") ++first;
    return Phrase(NumberUse::kComparison, text, before[first].begin, end);
  }
  if ((next == "least" || next == "most") && word(at + 1) == "at") {
    return Phrase(NumberUse::kComparison, text, before[at + 1].begin, end);
  }
  if (next == "to" && word(at + 1) == "up") return Phrase(NumberUse::kComparison, text, before[at + 1].begin, end);
  if (next == "over" || next == "under" || next == "above" || next == "below" || next == "exceeds") {
    return Phrase(NumberUse::kComparison, text, before[at].begin, end);
  }
  if (next == "half" || (next == "of" && word(at + 1) == "half"))
    return {NumberUse::kValue, "(" + context.text + ")/2", end};
  if (next == "twice" || next == "double") return {NumberUse::kValue, "2*(" + context.text + ")", end};
  if (next == "thrice" || next == "triple") return {NumberUse::kValue, "3*(" + context.text + ")", end};
  if (next == "of" && IsOneOf(word(at + 1), kParts)) return {NumberUse::kPart, {}, end};
  return context;
}

}  // namespace pith::grade
