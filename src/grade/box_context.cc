#include "grade/box_context.h"

#include <algorithm>
#include <array>

namespace pith::grade {

namespace {

constexpr size_t kFarthest = 200;  // bytes of a formula on either side of the box
constexpr size_t kParagraph = 2000;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool StartsWith(std::string_view text, std::string_view what) { return text.substr(0, what.size()) == what; }
bool EndsWith(std::string_view text, std::string_view what) {
  return text.size() >= what.size() && text.substr(text.size() - what.size()) == what;
}

// Commands that part a formula as a relation or a comma does.
constexpr std::array<std::string_view, 27> kPartings = {
    "approx",     "le",         "leq",     "ge",        "geq",     "ne",    "neq",    "in",     "to",
    "rightarrow", "Rightarrow", "implies", "iff",       "quad",    "qquad", "lt",     "gt",     "equiv",
    "cong",       "sim",        "text",    "therefore", "because", "colon", "mathrm", "textbf", "mbox"};
// Commands that only change how a thing looks.
constexpr std::array<std::string_view, 8> kStyles = {"mathbf",       "boldsymbol", "bm",    "mathit",
                                                     "displaystyle", "large",      "Large", "left"};

// Whether mathematics is open at `at`: \( or \[ without its end, or an odd number of dollar signs in the paragraph.
bool InMathematics(std::string_view text, size_t at) {
  const size_t first = at > kParagraph ? at - kParagraph : 0;
  const std::string_view before = text.substr(first, at - first);
  const size_t paragraph = before.rfind("\n\n");
  const std::string_view near = paragraph == std::string_view::npos ? before : before.substr(paragraph);
  for (const auto& [open, close] :
       std::array<std::pair<std::string_view, std::string_view>, 2>{{{"\\(", "\\)"}, {"\\[", "\\]"}}}) {
    const size_t opened = near.rfind(open), closed = near.rfind(close);
    if (opened != std::string_view::npos && (closed == std::string_view::npos || closed < opened)) return true;
  }
  size_t dollars = 0, opened = 0;
  for (size_t i = 0; i < near.size(); ++i) {
    if (near[i] == '$' && (i == 0 || near[i - 1] != '\\')) {
      if (i + 1 < near.size() && near[i + 1] == '$') ++i;  // $$ is one mark
      ++dollars;
      opened = i + 1;
    }
  }
  if (dollars % 2 == 0) return false;
  // Words since then: it was an amount of money.
  for (size_t i = opened; i + 1 < near.size(); ++i) {
    if (near[i] == '\\') {
      while (i + 1 < near.size() && IsLetter(near[i + 1])) ++i;
    } else if (IsLetter(near[i]) && IsLetter(near[i + 1])) {
      return false;
    }
  }
  return true;
}

bool IsRelation(char c) {
  return c == '=' || c == '<' || c == '>' || c == ',' || c == ';' || c == ':' || c == '&' || c == '\n' || c == '$';
}

// Where the part of the formula begins that ends at `at`.
size_t PartBegin(std::string_view text, size_t at) {
  const size_t first = at > kFarthest ? at - kFarthest : 0;
  size_t begin = at;
  while (begin > first) {
    const char c = text[begin - 1];
    if (IsRelation(c)) break;
    if ((c == '(' || c == '[' || c == '\\' || c == ')' || c == ']') && begin >= 2 && text[begin - 2] == '\\') break;
    if (IsLetter(c)) {
      size_t word = begin;
      while (word > first && IsLetter(text[word - 1])) --word;
      const std::string_view name = text.substr(word, begin - word);
      const bool command = word > first && text[word - 1] == '\\';
      if (command ? std::find(kPartings.begin(), kPartings.end(), name) != kPartings.end() : name.size() > 1) break;
      begin = command ? word - 1 : word;
      continue;
    }
    if (static_cast<unsigned char>(c) >= 0x80) {
      // A minus sign, or something that is no mathematics.
      if (begin >= 3 && text.substr(begin - 3, 3) == "−") {
        begin -= 3;
        continue;
      }
      break;
    }
    --begin;
  }
  return begin;
}

size_t PartEnd(std::string_view text, size_t at) {
  const size_t last = std::min(text.size(), at + kFarthest);
  size_t end = at;
  while (end < last) {
    const char c = text[end];
    if (IsRelation(c) || static_cast<unsigned char>(c) >= 0x80) break;
    if (c == '.' && (end + 1 >= text.size() || !IsDigit(text[end + 1]))) break;
    if (c == '\\' && end + 1 < text.size()) {
      const char next = text[end + 1];
      if (next == '(' || next == '[' || next == ')' || next == ']' || next == '\\') break;
      size_t word = end + 1;
      while (word < last && IsLetter(text[word])) ++word;
      const std::string_view name = text.substr(end + 1, word - end - 1);
      if (std::find(kPartings.begin(), kPartings.end(), name) != kPartings.end()) break;
      end = std::max(word, end + 2);
      continue;
    }
    if (IsLetter(c)) {
      size_t word = end;
      while (word < last && IsLetter(text[word])) ++word;
      if (word - end > 1) break;
    }
    ++end;
  }
  return std::min(end, last);
}

// Without blanks, thin spaces and empty groups at its end (or its beginning).
std::string_view TrimRight(std::string_view text) {
  while (true) {
    if (!text.empty() && (text.back() == ' ' || text.back() == '~' || text.back() == '\t')) {
      text.remove_suffix(1);
    } else if (EndsWith(text, "\\,") || EndsWith(text, "\\;") || EndsWith(text, "\\!") || EndsWith(text, "{}")) {
      text.remove_suffix(2);
    } else {
      return text;
    }
  }
}
std::string_view TrimLeft(std::string_view text) {
  while (true) {
    if (!text.empty() && (text.front() == ' ' || text.front() == '~' || text.front() == '\t')) {
      text.remove_prefix(1);
    } else if (StartsWith(text, "\\,") || StartsWith(text, "\\;") || StartsWith(text, "\\!") ||
               StartsWith(text, "{}") || StartsWith(text, "\\ ")) {
      text.remove_prefix(2);
    } else {
      return text;
    }
  }
}

// Takes one pair of brackets off that encloses no more than the box, with a command of style before it.
bool TakeEnclosure(std::string_view* before, std::string_view* behind) {
  const std::string_view left = TrimRight(*before), right = TrimLeft(*behind);
  if (left.empty() || right.empty()) return false;
  if (left.back() == '{' && right.front() == '}') {
    std::string_view rest = left.substr(0, left.size() - 1);
    size_t word = rest.size();
    while (word > 0 && IsLetter(rest[word - 1])) --word;
    if (word > 0 && rest[word - 1] == '\\') {
      if (std::find(kStyles.begin(), kStyles.end(), rest.substr(word)) == kStyles.end()) return false;
      rest = rest.substr(0, word - 1);
    } else if (!rest.empty() && (rest.back() == '}' || rest.back() == '^' || rest.back() == '_')) {
      return false;  // an argument
    }
    *before = rest;
    *behind = right.substr(1);
    return true;
  }
  if (left.back() == '(' && (right.front() == ')' || StartsWith(right, "\\right)"))) {
    std::string_view rest = left.substr(0, left.size() - 1);
    if (EndsWith(rest, "\\left")) rest.remove_suffix(5);
    *before = rest;
    *behind = right.substr(right.front() == ')' ? 1 : 7);
    return true;
  }
  return false;
}

int Balance(std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\')
      ++i;
    else if (text[i] == '{')
      ++depth;
    else if (text[i] == '}')
      --depth;
  }
  return depth;
}

// Whether what stands right before the box works on it.
bool ActsFromLeft(std::string_view before, bool mathematics) {
  const std::string_view tight = mathematics ? TrimRight(before) : before;
  if (tight.empty()) return false;
  const char last = tight.back();
  if (EndsWith(tight, "−") || last == '-') {
    // A dash between words, or of a list, is no sign.
    const std::string_view rest = TrimRight(tight.substr(0, tight.size() - (last == '-' ? 1 : 3)));
    return mathematics || rest.empty() || rest.back() == '(';
  }
  if (mathematics && std::string_view("+*/^_|").find(last) != std::string_view::npos) return true;
  if (last == '{') return true;  // an argument of something
  for (const std::string_view command : {"\\pm", "\\mp", "\\cdot", "\\times", "\\div", "\\sqrt", "\\ln", "\\log"}) {
    if (EndsWith(tight, command)) return true;
  }
  // A factor has nothing between.
  return tight.size() == before.size() && (IsDigit(last) || (mathematics && (last == ')' || last == '}')));
}

bool ActsFromRight(std::string_view behind, bool mathematics) {
  const std::string_view tight = mathematics ? TrimLeft(behind) : behind;
  if (tight.empty()) return false;
  if (tight[0] == '^')
    return !StartsWith(tight, "^\\circ") && !StartsWith(tight, "^{\\circ") && !StartsWith(tight, "^{\\prime");
  const char next = tight.size() > 1 ? tight[1] : ' ';
  if (tight[0] == '/') return IsDigit(next) || (mathematics && next != ' ');
  if (!mathematics) return false;
  if (tight[0] == '}') return true;  // the box is in an argument
  if (tight[0] == '+' || tight[0] == '-' || tight[0] == '*')
    return tight.find_first_not_of(" +-*") != std::string_view::npos;
  for (const std::string_view command : {"\\pm", "\\mp", "\\cdot", "\\times", "\\div"}) {
    if (StartsWith(tight, command)) return true;
  }
  return false;
}

// Whether the part [from, to) is one side of an equation whose other side is known: 12 + \boxed{8} = 20.
bool FillsBlank(std::string_view text, size_t from, size_t to) {
  if (to < text.size() && text[to] == '=') return true;
  if (from == 0 || text[from - 1] != '=') return false;
  const size_t left = PartBegin(text, from - 1);
  const std::string_view side = text.substr(left, from - 1 - left);
  bool digit = false;
  for (size_t i = 0; i < side.size(); ++i) {
    if (side[i] == '\\') {
      while (i + 1 < side.size() && IsLetter(side[i + 1])) ++i;
    } else if (IsLetter(side[i])) {
      return false;  // a name: what follows is its value
    } else {
      digit = digit || IsDigit(side[i]);
    }
  }
  return digit;
}

}  // namespace

std::optional<std::string> AroundBox(std::string_view text, size_t begin, size_t end, std::string_view inside) {
  // A box with a relation, or with words, is an answer by itself.
  if (inside.empty() || inside.find_first_of("=<>") != std::string_view::npos ||
      inside.find("\\text") != std::string_view::npos) {
    return std::nullopt;
  }
  const bool mathematics = InMathematics(text, begin);
  const size_t from = PartBegin(text, begin);
  const size_t to = PartEnd(text, end);
  std::string_view before = text.substr(from, begin - from);
  std::string_view behind = text.substr(end, to - end);
  while (TakeEnclosure(&before, &behind)) {
  }
  if (!ActsFromLeft(before, mathematics) && !ActsFromRight(behind, mathematics)) return std::nullopt;
  const std::string_view sign = TrimRight(before);
  const bool negated = (sign == "-" || sign == "−" || TrimLeft(sign) == "-") && !ActsFromRight(behind, mathematics);
  if (!negated && FillsBlank(text, from, to)) return std::nullopt;
  if (!mathematics) {
    // Only what touches the box belongs to it.
    const size_t gap = before.find_last_of(" \t");
    if (gap != std::string_view::npos) before = before.substr(gap + 1);
    behind = behind.substr(0, std::min(behind.find_first_of(" \t!?"), behind.size()));
  }
  if (Balance(before) + Balance(behind) != 0) return std::nullopt;
  return std::string(before) + "(" + std::string(inside) + ")" + std::string(behind);
}

}  // namespace pith::grade
