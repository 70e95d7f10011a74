// Where the answer stands in a response. docs/grading.md describes the rules in the order in which they are tried here.
#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "grade/answer_form.h"
#include "grade/box_context.h"
#include "grade/formula_scan.h"
#include "grade/grade.h"

namespace pith {

namespace {

using grade::FormulaSpan;

constexpr size_t kMaxClause = 600;    // bytes of a stated answer
constexpr size_t kMaxJoiner = 80;     // bytes between two boxes that are one answer
constexpr size_t kMaxShortWords = 8;  // an answer in words
constexpr size_t kMaxResponse = 1 << 20;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || IsUpper(c); }

std::string Lowered(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = IsUpper(c) ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

bool StartsWith(std::string_view text, std::string_view what) { return text.substr(0, what.size()) == what; }

std::string_view SkipBlanks(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  return text;
}

// Whether something stands in a text that can be an answer: "Sure!" before a problem that is said again is none.
bool MayHoldAnswer(std::string_view text) {
  const std::string_view trimmed = TrimAnswer(text);
  if (trimmed.size() == 1) return true;
  const std::string lower = Lowered(trimmed);
  for (const std::string_view word : {"yes", "no", "true", "false", "none"}) {
    if (lower == word) return true;
  }
  return lower.find_first_of("0123456789") != std::string::npos || lower.find("boxed") != std::string::npos ||
         lower.find("answer") != std::string::npos;
}

// What may hold an answer: after the last closed think block, before a reopened one, and before the tokens that end a
// turn.
std::string_view Readable(std::string_view response) {
  // Thoughts first: what is cut off a long response may hold the tag that opens them.
  constexpr std::string_view kClose = "</think>";
  if (const size_t close = response.rfind(kClose); close != std::string_view::npos) {
    response.remove_prefix(close + kClose.size());
  }
  if (const size_t open = response.find("<think>"); open != std::string_view::npos) response = response.substr(0, open);
  if (response.size() > kMaxResponse) response.remove_prefix(response.size() - kMaxResponse);
  for (const std::string_view end : {"<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "</s>"}) {
    if (const size_t at = response.find(end); at != std::string_view::npos && at > 0) response = response.substr(0, at);
  }
  // A model that ran on into the next problem.
  for (const std::string_view next : {"\nQuestion:", "\nProblem:", "\nQ:", "\nHuman:", "\nUser:"}) {
    const size_t at = response.find(next);
    if (at != std::string_view::npos && MayHoldAnswer(response.substr(0, at))) response = response.substr(0, at);
  }
  if (const size_t open = response.rfind("<answer>"); open != std::string_view::npos) {
    std::string_view inside = response.substr(open + 8);
    if (const size_t close = inside.find("</answer>"); close != std::string_view::npos) {
      inside = inside.substr(0, close);
      if (!TrimAnswer(inside).empty()) response = inside;
    }
  }
  return response;
}

// GSM8K's calculator notes, <<3*4=12>>, are no text.
std::string WithoutNotes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    if (StartsWith(text.substr(at), "<<")) {
      const size_t close = text.substr(at, 256).find(">>");
      if (close != std::string_view::npos) {
        at += close + 2;
        continue;
      }
    }
    out += text[at++];
  }
  return out;
}

struct Box {
  size_t begin = 0;  // of the command
  size_t end = 0;    // behind the closing brace
  std::string_view inside;
};

// Every closed box that is in no other box, in order. `open` is set when one is never closed.
std::vector<Box> FindBoxes(std::string_view text, bool* open) {
  // The partner of every brace, in one pass.
  std::vector<size_t> partner(text.size(), std::string_view::npos);
  std::vector<size_t> stack;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == '{' || text[i + 1] == '}' || text[i + 1] == '\\')) {
      ++i;
    } else if (text[i] == '{') {
      stack.push_back(i);
    } else if (text[i] == '}' && !stack.empty()) {
      partner[stack.back()] = i;
      stack.pop_back();
    }
  }
  std::vector<Box> boxes;
  *open = false;
  for (size_t at = 0; at < text.size(); ++at) {
    size_t length = 0;
    for (const std::string_view command : {"\\boxed", "\\fbox", "\boxed"}) {
      if (StartsWith(text.substr(at), command)) length = command.size();
    }
    if (length == 0) continue;
    size_t brace = at + length;
    while (brace < text.size() && IsBlank(text[brace])) ++brace;
    if (brace >= text.size()) {
      *open = true;
      break;
    }
    if (text[brace] != '{') {
      // \boxed 5
      size_t end = brace;
      while (end < text.size() && (IsDigit(text[end]) || IsLetter(text[end]))) ++end;
      if (end > brace && brace > at + length) {
        boxes.push_back({at, end, text.substr(brace, end - brace)});
        at = end - 1;
      }
      continue;
    }
    if (partner[brace] == std::string_view::npos) {
      *open = true;
      continue;
    }
    boxes.push_back({at, partner[brace] + 1, text.substr(brace + 1, partner[brace] - brace - 1)});
    at = partner[brace];
  }
  return boxes;
}

// Whether the text between two boxes joins them into one answer: commas, "and", "or", perhaps with "for part (a)" in
// front.
bool IsJoiner(std::string_view gap, bool* either) {
  if (gap.size() > kMaxJoiner || gap.find("\n\n") != std::string_view::npos) return false;
  std::vector<std::string> words;
  std::string word;
  bool separated = false;
  const auto flush = [&] {
    if (!word.empty()) words.push_back(word);
    word.clear();
  };
  for (size_t i = 0; i < gap.size(); ++i) {
    const char c = gap[i];
    if (c == '\\') {
      flush();
      size_t end = i + 1;
      while (end < gap.size() && IsLetter(gap[end])) ++end;
      const std::string_view command = gap.substr(i + 1, end - i - 1);
      if (command.empty()) {
        ++i;  // \, \; \( \)
      } else if (command == "text" || command == "quad" || command == "qquad" || command == "mbox" ||
                 command == "textrm") {
        i = end - 1;
      } else {
        return false;
      }
    } else if (IsLetter(c)) {
      word += c;
    } else if (c == ',' || c == ';' || c == '&') {
      flush();
      separated = true;
      words.emplace_back(",");
    } else if (IsBlank(c) || c == '$' || c == '{' || c == '}' || c == '(' || c == ')' || c == '*' || c == '.') {
      flush();
      if (c == '.') return false;
    } else {
      return false;
    }
  }
  flush();
  if (words.empty()) return false;
  size_t first = 0;
  if (words[0] == "for" || words[0] == "when" || words[0] == "if" || words[0] == "in") {
    while (first < words.size() && words[first] != "," && words[first] != "and" && words[first] != "or") ++first;
    if (first > 6) return false;
  }
  if (first == words.size()) return false;
  for (size_t i = first; i < words.size(); ++i) {
    if (words[i] == "or") *either = true;
    if (words[i] == "and" || words[i] == "or") separated = true;
    if (words[i] != "," && words[i] != "and" && words[i] != "or" && words[i] != "also") return false;
  }
  return separated;
}

struct Found {
  size_t end = 0;  // where it ends in the text
  std::string text;
};

std::optional<Found> BoxedAnswer(std::string_view text) {
  bool open = false;
  std::vector<Box> boxes = FindBoxes(text, &open);
  boxes.erase(std::remove_if(boxes.begin(), boxes.end(), [](const Box& box) { return TrimAnswer(box.inside).empty(); }),
              boxes.end());
  if (boxes.empty()) return std::nullopt;
  size_t first = boxes.size() - 1;
  bool either = false;
  while (first > 0) {
    const std::string_view gap = text.substr(boxes[first - 1].end, boxes[first].begin - boxes[first - 1].end);
    if (!IsJoiner(gap, &either)) break;
    --first;
  }
  if (first + 1 == boxes.size()) {
    const Box& box = boxes.back();
    if (auto around = grade::AroundBox(text, box.begin, box.end, TrimAnswer(box.inside))) {
      return Found{box.end, std::move(*around)};
    }
  }
  std::string answer;
  for (size_t i = first; i < boxes.size(); ++i) {
    if (!answer.empty()) answer += either ? " or " : ", ";
    answer += TrimAnswer(boxes[i].inside);
  }
  std::string_view behind = text.substr(boxes.back().end);
  while (!behind.empty() && (behind[0] == ' ' || behind[0] == '$')) behind.remove_prefix(1);
  if (StartsWith(behind, "\\%") || StartsWith(behind, "%")) answer += "\\%";
  return Found{boxes.back().end, answer};
}

// The single letter that a text begins with, as the choice of one option: "D, it can't be A", "for sure D", "option
// (C)".
std::optional<std::string> LeadingChoice(std::string_view clause) {
  std::string_view rest = SkipBlanks(clause);
  for (const std::string_view word : {"Yes", "No", "True", "False", "yes", "no", "true", "false"}) {
    if (StartsWith(rest, word) && rest.size() > word.size() &&
        std::string_view(",.;:!").find(rest[word.size()]) != rest.npos) {
      return std::string(word);
    }
  }
  for (int words = 0; words < 4 && !rest.empty(); ++words) {
    std::string_view word = rest.substr(0, std::min(rest.find_first_of(" \n\t"), rest.size()));
    const bool bracket = word.size() >= 3 && word[0] == '(' && word[2] == ')';
    const char letter = bracket ? word[1] : word[0];
    const std::string_view after = word.substr(bracket ? 3 : 1);
    const bool marked =
        bracket || (!after.empty() && (after[0] == '.' || after[0] == ',' || after[0] == ')' || after[0] == ':'));
    if (letter >= 'A' && letter <= 'J' &&
        (bracket ? after.size() <= 1 : after.empty() || (marked && after.size() == 1))) {
      // "A" may be an article, "I" a pronoun.
      if (marked || (letter != 'A' && letter != 'I') || rest.size() == word.size()) return std::string(1, letter);
    }
    for (const std::string_view filler : {"for", "sure", "option", "choice", "probably", "definitely", "clearly",
                                          "letter", "therefore", "thus", "simply", "Option", "Choice"}) {
      if (word == filler) {
        rest = SkipBlanks(rest.substr(word.size()));
        word = {};
        break;
      }
    }
    if (!word.empty()) break;
  }
  return std::nullopt;
}

// Whether `text` opens inline mathematics at the end of its line and closes it on another.
bool OpensBrokenFormula(std::string_view text) {
  const std::string_view rest = text.substr(
      text.find_first_not_of(" \t") == std::string_view::npos ? text.size() : text.find_first_not_of(" \t"));
  std::string_view behind;
  if (StartsWith(rest, "\\(")) {
    behind = rest.substr(2);
  } else if (StartsWith(rest, "$") && !StartsWith(rest, "$$")) {
    behind = rest.substr(1);
  } else {
    return false;
  }
  const size_t next = behind.find_first_not_of(" \t\r");
  return next != std::string_view::npos && behind[next] == '\n';
}

// The formulas of a clause that stand together ("$2$ and $3$"), from span `first` on: their text.
std::string JoinedSpans(std::string_view clause, const std::vector<FormulaSpan>& spans, size_t first) {
  size_t last = first;
  bool either = false;
  while (last + 1 < spans.size()) {
    const std::string_view gap = clause.substr(spans[last].end, spans[last + 1].begin - spans[last].end);
    if (!IsJoiner(gap, &either)) break;
    ++last;
  }
  size_t end = spans[last].end;
  // A unit right behind: "$125$ miles", "$20$%".
  const std::string_view behind = clause.substr(end);
  const size_t word = behind.find_first_not_of(' ');
  if (word != std::string_view::npos && (behind[word] == '%' || StartsWith(behind.substr(word), "percent"))) {
    return std::string(clause.substr(spans[first].begin, spans[last].end - spans[first].begin)) + " percent";
  }
  return std::string(clause.substr(spans[first].begin, end - spans[first].begin));
}

// The answer in the words after "the answer is".
std::optional<std::string> ClauseAnswer(std::string_view clause, int rounds) {
  for (const std::string_view filler :
       {"approximately ", "about ", "roughly ", "exactly ", "therefore ", "thus ", "simply "}) {
    if (StartsWith(clause, filler)) clause.remove_prefix(filler.size());
  }
  const std::string_view trimmed = TrimAnswer(clause);
  if (trimmed.empty()) return std::nullopt;
  if (auto boxed = BoxedAnswer(clause)) return boxed->text;
  if (IsWholeAnswer(trimmed, 0)) return std::string(trimmed);
  if (auto choice = LeadingChoice(trimmed)) return choice;
  if (IsWholeAnswer(trimmed, kMaxShortWords)) return std::string(trimmed);
  const std::vector<FormulaSpan> spans = grade::FindFormulas(clause);
  if (!spans.empty()) {
    const size_t before = clause.substr(0, spans[0].begin).find_first_not_of(" *\"\\");
    if (before == std::string_view::npos || before >= spans[0].begin) return JoinedSpans(clause, spans, 0);
  }
  // "the largest n is 34": what stands behind the last "is".
  if (rounds > 0) {
    for (const std::string_view verb : {" is ", " are ", " est ", " es "}) {
      size_t at = clause.rfind(verb);
      // Not inside a formula.
      const bool inside = at != std::string_view::npos &&
                          std::any_of(spans.begin(), spans.end(),
                                      [at](const FormulaSpan& span) { return span.begin < at && at < span.end; });
      if (at != std::string_view::npos && !inside) {
        if (auto answer = ClauseAnswer(clause.substr(at + verb.size()), rounds - 1)) return answer;
      }
    }
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    if (grade::HoldsValue(spans[i].inside)) return JoinedSpans(clause, spans, i);
  }
  if (auto number = grade::FirstNumber(clause)) return number;
  if (!spans.empty()) return JoinedSpans(clause, spans, spans.size() - 1);
  if (trimmed.size() <= 80) return std::string(trimmed);
  return std::nullopt;
}

struct Marker {
  size_t begin = 0;
  size_t content = 0;  // where the answer begins
  bool final = false;  // it says that it is the final answer
};

// The words after "answer" that make it a statement; the cursor goes behind them. False when it is none.
bool TakeStatement(std::string_view text, size_t* at) {
  size_t i = *at;
  const auto skip = [&](std::string_view set) {
    while (i < text.size() && set.find(text[i]) != std::string_view::npos) ++i;
  };
  if (i < text.size() && text[i] == 's') ++i;
  skip("*_ ");
  const std::string_view rest = text.substr(i);
  bool stated = false;
  for (const std::string_view verb : {"is not", "isn't", "are not"}) {
    if (StartsWith(rest, verb)) return false;
  }
  for (const std::string_view verb : {"is:", "is ", "is\n", "are:", "are ", "would be ", "will be ", "must be ", ":",
                                      "=", "est ", "es ", "is**", "ist "}) {
    if (StartsWith(rest, verb)) {
      i += verb.size();
      if (verb.back() == '\n' || verb == "is**") --i;
      stated = true;
      break;
    }
  }
  // "Answer $9$"
  if (!stated &&
      (StartsWith(rest, "$") || StartsWith(rest, "\\(") || StartsWith(rest, "\\[") || StartsWith(rest, "\n"))) {
    const bool capital = *at >= 6 && text[*at - 6] == 'A';
    if (!capital) return false;
    stated = true;
  }
  if (!stated) return false;
  skip("* :");
  *at = i;
  return true;
}

std::vector<Marker> FindMarkers(std::string_view text) {
  std::vector<Marker> markers;
  const std::string lower = Lowered(text);
  const std::string_view view = lower;
  for (size_t at = view.find("answer"); at != std::string_view::npos; at = view.find("answer", at + 6)) {
    if (at > 0 && (IsLetter(text[at - 1]) || text[at - 1] == '<' || text[at - 1] == '/')) continue;
    size_t content = at + 6;
    const size_t word = at;
    // TakeStatement looks at the capital letter, so it reads the text as written.
    if (!TakeStatement(text, &content)) continue;
    const std::string_view before = view.substr(word >= 8 ? word - 8 : 0, word >= 8 ? 8 : word);
    markers.push_back({at, content, before.find("final") != std::string_view::npos});
  }
  for (const std::string_view mark :
       {"#### ",       "réponse est ", "réponse : ",   "réponse: ",  "réponse:",  "respuesta es ",
        "respuesta: ", "antwort: ",    "antwort ist ", "答案：",     "答案:",     "答案是",
        "答案为",      "ответ: ",      "ответ:",       "الإجابة:",   "الجواب:",   "الإجابة هي",
        "\na: ",       "\nans: ",      "result: ",     "option is ", "choice is "}) {
    for (size_t at = view.find(mark); at != std::string_view::npos; at = view.find(mark, at + mark.size())) {
      markers.push_back({at, at + mark.size(), mark == "#### "});
    }
  }
  if (StartsWith(view, "a: ")) markers.push_back({0, 3, false});
  std::sort(markers.begin(), markers.end(), [](const Marker& a, const Marker& b) { return a.begin < b.begin; });
  return markers;
}

// The sentence that begins at `from`, with the whole of a formula that it opens; `terminated` when something ends it.
std::string_view ClauseAt(std::string_view text, size_t from, bool* terminated) {
  size_t begin = from;
  // The answer may stand on the next line.
  while (begin < text.size() && (IsBlank(text[begin]) || text[begin] == '*')) ++begin;
  const std::string_view rest = text.substr(begin, kMaxClause);
  *terminated = true;
  int braces = 0;
  for (size_t i = 0; i < rest.size(); ++i) {
    for (const auto& [opening, closing] : std::array<std::pair<std::string_view, std::string_view>, 3>{
             {{"\\[", "\\]"}, {"$$", "$$"}, {"\\begin{", "\\end{"}}}) {
      if (!StartsWith(rest.substr(i), opening)) continue;
      const size_t close = rest.find(closing, i + opening.size());
      if (close != std::string_view::npos) i = close + closing.size();
      break;
    }
    if (i >= rest.size()) break;
    const char c = rest[i];
    if (c == '{') ++braces;
    if (c == '}') --braces;
    if (c == '\n' && braces <= 0) return rest.substr(0, i);
    const bool last = i + 1 >= rest.size();
    if (c == '.' && !last && (rest[i + 1] == ' ' || rest[i + 1] == '\n') && i > 0) {
      // Not behind an initial or an abbreviation of one letter: "p. m.", and not the dot of a choice: "D. it".
      const bool initial = IsUpper(rest[i - 1]) && (i < 2 || !IsLetter(rest[i - 2])) && i <= 2;
      if (!initial) return rest.substr(0, i);
    }
    if (StartsWith(rest.substr(i), "。")) return rest.substr(0, i);
    if (last && c == '.') return rest;
  }
  *terminated = begin + rest.size() < text.size();
  return rest;
}

// Statements that are read, from the last one on: a text that states nothing so often (a response that runs in circles)
// states nothing, and is not read through for each of them.
constexpr int kMostStatements = 32;

std::optional<ExtractedAnswer> Extract(std::string_view response, const ExtractOptions& options) {
  const std::string cleaned = WithoutNotes(Readable(response));
  const std::string_view text = cleaned;
  if (TrimAnswer(text).empty()) return std::nullopt;
  const auto boxed = BoxedAnswer(text);
  const std::vector<Marker> markers = FindMarkers(text);
  int tries = 0;
  for (auto marker = markers.rbegin(); marker != markers.rend(); ++marker) {
    // A box wins over a statement, but for one behind it that says it is the final one.
    if (boxed && (marker->begin < boxed->end || !marker->final)) continue;
    if (++tries > kMostStatements) break;
    if (OpensBrokenFormula(text.substr(marker->content))) return std::nullopt;
    bool terminated = false;
    const std::string_view clause = ClauseAt(text, marker->content, &terminated);
    if (options.truncated && !terminated) continue;
    // "Final Answer: The final answer is ...": the inner statement is found by itself.
    if (marker + 1 != markers.rend() && TrimAnswer(clause).empty()) continue;
    if (auto answer = ClauseAnswer(clause, 2)) return ExtractedAnswer{*answer, AnswerSource::kStated};
  }
  if (boxed) return ExtractedAnswer{boxed->text, AnswerSource::kBox};
  if (options.truncated) return std::nullopt;
  if (IsWholeAnswer(text, kMaxShortWords)) return ExtractedAnswer{std::string(TrimAnswer(text)), AnswerSource::kWhole};
  // One formula that cannot be read is the answer as it stands: a number out of its middle is not.
  if (grade::IsFormulaOnly(TrimAnswer(text)))
    return ExtractedAnswer{std::string(TrimAnswer(text)), AnswerSource::kWhole};
  if (auto last = grade::LastFormulaOrNumber(text)) return ExtractedAnswer{*last, AnswerSource::kLast};
  if (auto choice = LeadingChoice(text)) return ExtractedAnswer{*choice, AnswerSource::kLast};
  return std::nullopt;
}

}  // namespace

std::optional<ExtractedAnswer> ExtractAnswer(std::string_view response, const ExtractOptions& options) {
  try {
    return Extract(response, options);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

bool LooksTruncated(std::string_view response) {
  const size_t open = response.rfind("<think>");
  const size_t close = response.rfind("</think>");
  if (open != std::string_view::npos && (close == std::string_view::npos || close < open)) return true;
  if (close != std::string_view::npos) response.remove_prefix(close);
  // The last box is never closed.
  const size_t box = std::max(response.rfind("\\boxed{") + 1, response.rfind("\\fbox{") + 1);
  if (box == 0) return false;
  int depth = 0;
  for (size_t i = response.find('{', box); i < response.size(); ++i) {
    if (response[i] == '\\') {
      ++i;
    } else if (response[i] == '{') {
      ++depth;
    } else if (response[i] == '}' && --depth == 0) {
      return false;
    }
  }
  return true;
}

}  // namespace pith
