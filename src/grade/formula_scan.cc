#include "grade/formula_scan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "grade/answer_form.h"
#include "grade/number_context.h"

namespace pith::grade {

namespace {

constexpr size_t kMaxInlineFormula = 2000;
constexpr size_t kMaxNumbers = 64;  // whose surroundings are read, from the last one back
constexpr size_t kMaxTries = 6;     // formulas that are parsed, from the last one back

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool StartsWith(std::string_view text, std::string_view what) { return text.substr(0, what.size()) == what; }

// The text between two dollar signs is prose or the start of a sum of money, not a formula.
bool IsMoney(std::string_view inside) {
  size_t first = 0;
  while (first < inside.size() && inside[first] == ' ') ++first;
  if (first >= inside.size()) return true;
  size_t last = inside.size();
  while (last > 0 && IsBlank(inside[last - 1])) --last;
  if (last == 0 || std::string_view("+-=*/").find(inside[last - 1]) != std::string_view::npos) return true;
  if (inside.size() >= 3 && inside.substr(0, last).size() >= 3 &&
      StartsWith(inside.substr(last >= 3 ? last - 3 : 0), "−"))
    return true;
  for (size_t i = 0; i < inside.size();) {
    if (inside[i] == '\\') {
      const size_t begin = ++i;
      while (i < inside.size() && IsLetter(inside[i])) ++i;
      const std::string_view command = inside.substr(begin, i - begin);
      if (StartsWith(command, "text") || command == "mbox" || command == "mathrm" || command == "begin" ||
          command == "end" || command == "operatorname") {
        i = std::min(inside.find('}', i), inside.size());
      }
      continue;
    }
    if (!IsLetter(inside[i])) {
      ++i;
      continue;
    }
    const size_t begin = i;
    while (i < inside.size() && IsLetter(inside[i])) ++i;
    const std::string_view word = inside.substr(begin, i - begin);
    const bool spoken = std::any_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    // Words beside a digit at the start: money. "$Even$" alone is a formula.
    if (word.size() >= 3 && spoken && IsDigit(inside[first]) && word != "sin" && word != "cos" && word != "sqrt")
      return true;
    if (word.size() >= 3 && spoken && inside.find(' ') != std::string_view::npos && word != "and") {
      const size_t blanks = static_cast<size_t>(std::count(inside.begin(), inside.end(), ' '));
      if (blanks >= 3 && inside.find('\\') == std::string_view::npos) return true;
    }
  }
  return false;
}

}  // namespace

namespace {

// A formula without marks around it, from the command at `at`: "(\\frac{2}{5})", "x=3\\sqrt{2}+1". `from` is where it
// may begin at the earliest.
std::optional<FormulaSpan> BareFormula(std::string_view text, size_t at, size_t from) {
  constexpr std::string_view kSigns = "0123456789.+-*/^_()[]=<>!'|,";
  const std::string_view rest = text.substr(at, 8);
  bool begins = false;
  for (const std::string_view command : {"\\frac", "\\dfrac", "\\tfrac", "\\cfrac", "\\sqrt"})
    begins |= StartsWith(rest, command);
  if (!begins) return std::nullopt;
  size_t begin = at;
  while (begin > from && (kSigns.find(text[begin - 1]) != std::string_view::npos)) --begin;
  if (begin > from && IsLetter(text[begin - 1]) && (begin < 2 || !IsLetter(text[begin - 2])) && begin < at &&
      text[begin] == '=')
    --begin;
  size_t end = at;
  const size_t stop = std::min(text.size(), at + 400);
  while (end < stop) {
    const char c = text[end];
    if (c == '{') {
      int depth = 0;
      size_t close = end;
      for (; close < stop; ++close) {
        if (text[close] == '{') ++depth;
        if (text[close] == '}' && --depth == 0) break;
      }
      if (close >= stop) return std::nullopt;
      end = close + 1;
    } else if (c == '\\' && end + 1 < stop && IsLetter(text[end + 1])) {
      ++end;
      while (end < stop && IsLetter(text[end])) ++end;
    } else if (kSigns.find(c) != std::string_view::npos ||
               (IsLetter(c) && (end + 1 >= text.size() || !IsLetter(text[end + 1])) && !IsBlank(text[end - 1])) ||
               (c == ' ' && end + 1 < stop &&
                std::string_view("+-*/=^\\").find(text[end + 1]) != std::string_view::npos) ||
               (c == ' ' && end > at && std::string_view("+-*/=").find(text[end - 1]) != std::string_view::npos)) {
      ++end;
    } else {
      break;
    }
  }
  while (end > at && std::string_view(".,=+-*/").find(text[end - 1]) != std::string_view::npos) --end;
  return FormulaSpan{begin, end, text.substr(begin, end - begin)};
}

}  // namespace

std::vector<FormulaSpan> FindFormulas(std::string_view text) {
  std::vector<FormulaSpan> spans;
  // Where no closing mark was found once, none follows.
  std::array<bool, 3> exhausted = {};
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    size_t which = exhausted.size();
    constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kMarks = {
        {{"$$", "$$"}, {"\\[", "\\]"}, {"\\(", "\\)"}}};
    for (size_t i = 0; i < kMarks.size(); ++i) {
      if (StartsWith(rest, kMarks[i].first)) which = i;
    }
    if (which < kMarks.size() && !exhausted[which]) {
      const size_t close = text.find(kMarks[which].second, at + 2);
      if (close == std::string_view::npos) {
        exhausted[which] = true;
      } else {
        const std::string_view inside = text.substr(at + 2, close - at - 2);
        // Inline mathematics ends on its line.
        if (!(which == 2 && inside.find('\n') != std::string_view::npos)) spans.push_back({at, close + 2, inside});
        at = close + 2;
        continue;
      }
    }
    if (rest[0] == '\\') {
      if (StartsWith(rest, "\\begin{")) {
        const size_t brace = rest.substr(0, 40).find('}');
        if (brace != std::string_view::npos) {
          const std::string end = "\\end{" + std::string(rest.substr(7, brace - 7)) + "}";
          const size_t close = text.substr(0, std::min(text.size(), at + kMaxInlineFormula)).find(end, at);
          if (close != std::string_view::npos) {
            spans.push_back({at, close + end.size(), text.substr(at, close + end.size() - at)});
            at = close + end.size();
            continue;
          }
        }
      }
      if (const auto bare = BareFormula(text, at, spans.empty() ? 0 : spans.back().end)) {
        spans.push_back(*bare);
        at = bare->end;
        continue;
      }
      at += 2;
      continue;
    }
    if (rest[0] == '$') {
      const std::string_view line = rest.substr(1, kMaxInlineFormula);
      const size_t stop = line.find_first_of("$\n");
      size_t close = stop != std::string_view::npos && line[stop] == '$' ? stop : std::string_view::npos;
      if (close != std::string_view::npos && close > 0 && line[close - 1] == '\\') close = std::string_view::npos;
      if (close != std::string_view::npos && !IsMoney(line.substr(0, close))) {
        spans.push_back({at, at + close + 2, line.substr(0, close)});
        at += close + 2;
        continue;
      }
    }
    ++at;
  }
  return spans;
}

bool HoldsValue(std::string_view formula) {
  for (const char c : formula) {
    if (IsDigit(c) || c == '=' || c == '<' || c == '>' || c == ',') return true;
  }
  for (const std::string_view command :
       {"\\le", "\\ge", "\\ne", "\\frac", "\\dfrac", "\\sqrt", "\\begin", "\\in", "\\cup", "\\pi", "\\text", "\\pm",
        "\\infty", "\\lt", "\\gt", "\\emptyset", "^", "+"}) {
    if (formula.find(command) != std::string_view::npos) return true;
  }
  return false;
}

bool IsFormulaOnly(std::string_view text) {
  if (text.empty() || text.size() > 1024 || text.find('\n') != std::string_view::npos) return false;
  if (text.find_first_of("\\{}|=<>()[]") == std::string_view::npos) return false;
  // A sum of money or a percentage between words has them beside it, separated by blanks.
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" ,.;:", begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const bool letters = word.size() >= 2 && std::all_of(word.begin(), word.end(), IsLetter);
    const bool differential = word.size() == 2 && word[0] == 'd';
    if (letters && !differential && word != "and" && word != "or") return false;
    if (std::any_of(word.begin(), word.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xC4; }))
      return false;
    begin = end + 1;
  }
  return true;
}

namespace {

// The number at `at`, where a digit or a point with a digit stands: where it ends.
size_t NumberEnd(std::string_view text, size_t at) {
  const auto digits = [&](size_t from) {
    size_t end = from;
    while (end < text.size() && IsDigit(text[end])) ++end;
    return end;
  };
  size_t end = at;
  while (true) {
    end = digits(end);
    if (end + 1 >= text.size() || !IsDigit(text[end + 1])) break;
    if (text[end] != ',' && text[end] != '.') break;
    ++end;
  }
  // "1 000 000"
  while (digits(at) - at <= 3 && end + 3 < text.size() && text[end] == ' ' && digits(end + 1) == end + 4 &&
         end - at <= 15 && (end + 4 >= text.size() || (text[end + 4] != '/'))) {
    end += 4;
  }
  // A fraction, or the fraction of a mixed number.
  if (end + 1 < text.size() && text[end] == '/' && IsDigit(text[end + 1])) return digits(end + 1);
  if (end + 3 < text.size() && text[end] == ' ' && IsDigit(text[end + 1])) {
    const size_t slash = digits(end + 1);
    if (slash + 1 < text.size() && text[slash] == '/' && IsDigit(text[slash + 1])) return digits(slash + 1);
  }
  return end;
}

struct NumberSpan {
  size_t begin = 0;
  size_t end = 0;
  bool percent = false;
};

// The next number at or behind `from`.
std::optional<NumberSpan> NextNumber(std::string_view text, size_t from) {
  for (size_t at = from; at < text.size(); ++at) {
    const bool point =
        text[at] == '.' && at + 1 < text.size() && IsDigit(text[at + 1]) && (at == 0 || !IsDigit(text[at - 1]));
    if (!IsDigit(text[at]) && !point) continue;
    const size_t begin = at;
    const size_t end = NumberEnd(text, point ? at + 1 : at);
    const bool in_word = begin > 0 && (IsLetter(text[begin - 1]) || text[begin - 1] == '_');
    const bool word_follows = end + 1 < text.size() && text[end] >= 'A' && text[end] <= 'Z' && IsLetter(text[end + 1]);
    if (in_word || word_follows) {
      at = end - 1;
      continue;
    }
    NumberSpan span{begin, end, false};
    std::string_view sign;
    if (begin >= 1 && text[begin - 1] == '-') sign = "-";
    if (begin >= 3 && text.substr(begin - 3, 3) == "−") sign = "−";
    if (begin >= 2 && text[begin - 1] == '$' && text[begin - 2] == '-') sign = "-$";
    if (!sign.empty()) {
      const size_t mark = begin - sign.size();
      const char before = mark > 0 ? text[mark - 1] : ' ';
      if (!IsDigit(before) && !IsLetter(before) && before != ')' && before != '}') span.begin = mark;
    }
    std::string_view behind = text.substr(end, 12);
    while (!behind.empty() && (behind[0] == ' ' || behind[0] == '\\')) behind.remove_prefix(1);
    span.percent = StartsWith(behind, "%") || StartsWith(behind, "percent") || StartsWith(behind, "pct");
    return span;
  }
  return std::nullopt;
}

std::string TextOf(std::string_view text, const NumberSpan& span) {
  std::string number(text.substr(span.begin, span.end - span.begin));
  number.erase(std::remove(number.begin(), number.end(), '$'), number.end());
  return span.percent ? number + "%" : number;
}

}  // namespace

std::optional<std::string> FirstNumber(std::string_view text) {
  for (auto span = NextNumber(text, 0); span; span = NextNumber(text, span->end)) {
    NumberContext context = ReadNumberContext(text, span->begin, span->end, TextOf(text, *span));
    if (context.use != NumberUse::kPart && context.use != NumberUse::kDenied) return std::move(context.text);
  }
  return std::nullopt;
}

std::optional<std::string> LastFormulaOrNumber(std::string_view text) {
  const std::vector<FormulaSpan> spans = FindFormulas(text);
  // The last number outside of all formulas that is a value of its own.
  std::vector<NumberSpan> outside, all;
  size_t next_span = 0;
  for (auto found = NextNumber(text, 0); found; found = NextNumber(text, found->end)) {
    while (next_span < spans.size() && spans[next_span].end <= found->begin) ++next_span;
    const bool inside = next_span < spans.size() && spans[next_span].begin < found->begin;
    all.push_back(*found);
    if (!inside) outside.push_back(*found);
  }
  const auto context_of = [text](const NumberSpan& span) {
    return ReadNumberContext(text, span.begin, span.end, TextOf(text, span));
  };
  std::optional<NumberSpan> number;
  std::string number_text;
  for (size_t i = outside.size(); i-- > 0 && outside.size() - i <= kMaxNumbers && !number;) {
    NumberContext context = context_of(outside[i]);
    if (context.use == NumberUse::kPart || context.use == NumberUse::kDenied) continue;
    number = outside[i];
    // "It is at least 5": the last number of a text is 5. A statement of the answer is read as it stands (FirstNumber).
    number_text = context.use == NumberUse::kComparison ? TextOf(text, *number) : std::move(context.text);
    if (i == 0) break;
    // "between 5 and 6" begins with the number before.
    context = context_of(outside[i - 1]);
    if (context.use == NumberUse::kRange && context.end >= number->end) number_text = std::move(context.text);
  }
  size_t tries = 0;
  for (size_t i = spans.size(); i-- > 0 && tries < kMaxTries;) {
    if (number && number->begin >= spans[i].end) break;
    if (!HoldsValue(spans[i].inside)) continue;
    ++tries;
    if (IsWholeAnswer(spans[i].inside, 8)) {
      const size_t end = spans[i].end;
      const std::string_view behind =
          text.substr(std::min(end + (end < text.size() && text[end] == ' ' ? 1 : 0), text.size()));
      const bool percent = StartsWith(behind, "%") || StartsWith(behind, "percent");
      return std::string(spans[i].inside) + (percent ? " percent" : "");
    }
  }
  if (number) return number_text;
  // No formula could be read: the last number of any.
  std::optional<NumberSpan> any;
  for (size_t i = all.size(); i-- > 0 && all.size() - i <= kMaxNumbers && !any;) {
    if (context_of(all[i]).use != NumberUse::kDenied) any = all[i];
  }
  if (any) return TextOf(text, *any);
  if (!spans.empty()) return std::string(spans.back().inside);
  return std::nullopt;
}

}  // namespace pith::grade
