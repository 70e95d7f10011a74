#include "grade/latex_lexer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "grade/latex_tables.h"
#include "grade/units.h"
#include "grade/work_budget.h"

namespace pith::grade {

namespace {

constexpr int kMaxTextNesting = 6;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || IsUpper(c); }
bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }
char Lower(char c) { return IsUpper(c) ? static_cast<char>(c - 'A' + 'a') : c; }

class Lexer {
 public:
  Lexer(std::string_view text, const LexOptions& options, int nesting)
      : text_(text), options_(options), nesting_(nesting) {}

  LexResult Run() {
    size_t commas = 0;
    for (const char c : text_) commas += c == ',' ? 1 : 0;
    single_comma_ = commas == 1;
    money_marks_ = AreMoneyMarks();
    while (at_ < text_.size()) {
      if (result_.tokens.size() >= kMaxTokens) {
        result_.too_long = true;
        break;
      }
      Step();
    }
    Push(TokenKind::kEnd, "");
    return std::move(result_);
  }

 private:
  char Peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool StartsWith(std::string_view what, size_t from) const { return text_.substr(from, what.size()) == what; }

  void Push(TokenKind kind, std::string text) {
    result_.tokens.push_back({kind, std::move(text), space_, false, money_ && kind == TokenKind::kNumber});
    space_ = false;
    money_ = false;
  }

  // Whether the dollar signs are signs of money: an amount follows each.
  bool AreMoneyMarks() const {
    for (size_t at = text_.find('$'); at != std::string_view::npos; at = text_.find('$', at + 1)) {
      size_t next = at + 1;
      while (next < text_.size() && (text_[next] == ' ' || text_[next] == '-' || text_[next] == '.')) ++next;
      if (next >= text_.size() || !IsDigit(text_[next])) return false;
    }
    return true;
  }

  void Step() {
    const char c = Peek();
    if (IsBlank(c) || c == '~') {
      space_ = true;
      ++at_;
    } else if (IsDigit(c) || (c == '.' && IsDigit(Peek(1)) && !(at_ > 0 && IsDigit(text_[at_ - 1])))) {
      LexNumber();
    } else if (IsLetter(c)) {
      LexLetters();
    } else if (c == '\\') {
      LexBackslash();
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      const size_t begin = at_;
      while (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) >= 0x80) ++at_;
      Push(TokenKind::kWord, std::string(text_.substr(begin, at_ - begin)));
    } else {
      LexSign(c);
    }
  }

  void LexSign(char c) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kDouble = {{{"<=", "<="},
                                                                                       {">=", ">="},
                                                                                       {"!=", "!="},
                                                                                       {"=<", "<="},
                                                                                       {"=>", ">="},
                                                                                       {"==", "="},
                                                                                       {"**", "^"},
                                                                                       {"+-", "+-"},
                                                                                       {"~=", "~="}}};
    // 5!=120 is a factorial and an equation.
    if (c == '!' && Peek(1) == '=' && at_ > 0 && (IsDigit(text_[at_ - 1]) || text_[at_ - 1] == ')') &&
        !IsBlank(Peek(2))) {
      ++at_;
      Push(TokenKind::kSign, "!");
      return;
    }
    for (const auto& [written, sign] : kDouble) {
      if (written != "+-" && StartsWith(written, at_)) {
        at_ += written.size();
        Push(TokenKind::kSign, std::string(sign));
        return;
      }
    }
    if (StartsWith("+/-", at_)) {
      at_ += 3;
      Push(TokenKind::kSign, "+-");
      return;
    }
    ++at_;
    if (c == '$') money_ = money_marks_;
    if (c == '$' || c == '"' || c == '`') return;  // marks of mathematics, of money and quotes
    if (c == '(' || c == '[') ++brackets_;
    if (c == ')' || c == ']') --brackets_;
    Push(TokenKind::kSign, std::string(1, c));
  }

  void LexLetters() {
    const size_t begin = at_;
    while (at_ < text_.size() && IsLetter(text_[at_])) ++at_;
    PushLetters(text_.substr(begin, at_ - begin));
  }

  void PushLetters(std::string_view run) {
    std::string lower(run);
    for (char& c : lower) c = Lower(c);
    if (lower == "and" || lower == "or") return Push(TokenKind::kConnective, lower);
    if (run.size() > 2 && run.substr(0, 2) == "or" && IsUpper(run[2])) {  // "x=1orY=2"
      Push(TokenKind::kConnective, "or");
      return PushLetters(run.substr(2));
    }
    // 2*I, 3I
    const bool behind_number = !result_.tokens.empty() &&
                               (result_.tokens.back().kind == TokenKind::kNumber ||
                                (result_.tokens.back().kind == TokenKind::kSign && result_.tokens.back().text == "*"));
    if (run == "I" && behind_number) return Push(TokenKind::kName, "i");
    if (run.size() == 1) return Push(TokenKind::kName, std::string(run));
    if (const std::string_view function = CanonicalFunction(run); !function.empty()) {
      return Push(TokenKind::kName, std::string(function));
    }
    if (const auto found = SymbolWords().find(run); found != SymbolWords().end()) {
      return Push(TokenKind::kName, std::string(found->second));
    }
    // sinx, cosx
    if (run.size() == 4 && FunctionNames().count(run.substr(0, 3)) != 0) {
      Push(TokenKind::kName, std::string(CanonicalFunction(run.substr(0, 3))));
      return Push(TokenKind::kName, std::string(run.substr(3)));
    }
    Push(TokenKind::kWord, std::string(run));
  }

  // The braced group at the cursor: its inside; the cursor goes behind it. Nothing when there is none.
  std::optional<std::string_view> TakeGroup() {
    size_t at = at_;
    while (at < text_.size() && IsBlank(text_[at])) ++at;
    if (at >= text_.size() || text_[at] != '{') return std::nullopt;
    int depth = 0;
    for (size_t i = at; i < text_.size(); ++i) {
      if (text_[i] == '\\') {
        ++i;
      } else if (text_[i] == '{') {
        ++depth;
      } else if (text_[i] == '}' && --depth == 0) {
        at_ = i + 1;
        return text_.substr(at + 1, i - at - 1);
      }
    }
    return std::nullopt;
  }

  void LexBackslash() {
    const char next = Peek(1);
    if (!IsLetter(next)) {
      at_ += next == '\0' ? 1 : 2;
      switch (next) {
        case '\\': Push(TokenKind::kSign, "\\\\"); break;
        case '{':
          ++brackets_;
          Push(TokenKind::kSign, "\\{");
          break;
        case '}':
          --brackets_;
          Push(TokenKind::kSign, "\\}");
          break;
        case '%': Push(TokenKind::kSign, "%"); break;
        case '|': Push(TokenKind::kSign, "|"); break;
        case '$':
          space_ = true;
          money_ = true;
          break;
        case '(':
        case ')':
        case '[':
        case ']': space_ = true; break;  // marks of mathematics
        case '&':
        case '#':
        case '_': break;
        default: space_ = true; break;
      }
      return;
    }
    const size_t begin = ++at_;
    while (at_ < text_.size() && IsLetter(text_[at_])) ++at_;
    std::string_view name = text_.substr(begin, at_ - begin);
    if (name.size() > 4 && name.substr(0, 4) == "quad" && SignCommands().count(name) == 0) {
      space_ = true;  // \quadx
      at_ = begin + 4;
      return;
    }
    if (SpacingCommands().count(name) != 0) {
      space_ = true;
      // \left. and \right. have no bracket
      if ((name == "left" || name == "right") && Peek() == '.') ++at_;
      return;
    }
    if (TextCommands().count(name) != 0) return LexTextCommand();
    if (const auto sign = SignCommands().find(name); sign != SignCommands().end()) {
      if (sign->second == "(" || sign->second == "[" || sign->second == "\\{") ++brackets_;
      if (sign->second == ")" || sign->second == "]" || sign->second == "\\}") --brackets_;
      return Push(TokenKind::kSign, std::string(sign->second));
    }
    if (name == "exponentialE") return Push(TokenKind::kName, "e");
    if (name == "imaginaryI") return Push(TokenKind::kName, "i");
    if (name == "mathbb" || name == "Bbb") {
      const auto group = TakeGroup();
      return Push(TokenKind::kName, group ? "\\mathbb " + std::string(*group) : "\\mathbb");
    }
    if (name != "sqrt") {
      if (const std::string_view function = CanonicalFunction(name); !function.empty()) {
        return Push(TokenKind::kName, std::string(function));
      }
    }
    if (const auto symbol = SymbolWords().find(name); symbol != SymbolWords().end()) {
      return Push(TokenKind::kName, std::string(symbol->second));
    }
    if (name == "dfrac" || name == "tfrac" || name == "cfrac") name = "frac";
    Push(TokenKind::kCommand, std::string(name));
  }

  void LexTextCommand() {
    const auto group = TakeGroup();
    if (!group) {
      space_ = true;
      return;
    }
    std::string_view inside = *group;
    while (!inside.empty() && IsBlank(inside.front())) inside.remove_prefix(1), space_ = true;
    while (!inside.empty() && IsBlank(inside.back())) inside.remove_suffix(1);
    if (inside.empty()) {
      space_ = true;
      return;
    }
    const bool words = std::all_of(inside.begin(), inside.end(), [](char c) {
      return IsLetter(c) || c == ' ' || c == '-' || c == '.' || c == '\'' || static_cast<unsigned char>(c) >= 0x80;
    });
    if (words) {
      const size_t last = inside.find_last_of(' ');
      const std::string_view last_word = last == std::string_view::npos ? inside : inside.substr(last + 1);
      if (last_word == "and" || last_word == "or") return Push(TokenKind::kConnective, std::string(last_word));
      if (inside.size() == 1 && IsLetter(inside[0])) {
        Push(TokenKind::kName, std::string(inside));
        result_.tokens.back().in_text = true;
        return;
      }
      if (const std::string_view function = CanonicalFunction(inside); !function.empty()) {
        return Push(TokenKind::kName, std::string(function));
      }
      return Push(TokenKind::kText, std::string(inside));
    }
    if (IsRate(inside)) return Push(TokenKind::kText, std::string(inside));
    if (nesting_ >= kMaxTextNesting) {
      result_.too_long = true;
      return;
    }
    LexOptions options = options_;
    Lexer inner(inside, options, nesting_ + 1);
    inner.space_ = space_;
    inner.brackets_ = brackets_;
    LexResult nested = inner.Run();
    result_.too_long |= nested.too_long;
    result_.ambiguous_comma |= nested.ambiguous_comma;
    result_.decimal_comma_likely |= nested.decimal_comma_likely;
    nested.tokens.pop_back();
    for (Token& token : nested.tokens) result_.tokens.push_back(std::move(token));
    space_ = false;
  }

  // "m/s", "km/h", "ft/s^2": units with a stroke between them.
  static bool IsRate(std::string_view inside) {
    bool stroke = false;
    for (size_t i = 0; i < inside.size();) {
      const size_t begin = i;
      while (i < inside.size() && IsLetter(inside[i])) ++i;
      if (i == begin || !FindUnit(inside.substr(begin, i - begin))) return false;
      if (i + 1 < inside.size() && inside[i] == '^' && IsDigit(inside[i + 1])) i += 2;
      if (i == inside.size()) break;
      if (inside[i] != '/' || ++i == inside.size()) return false;
      stroke = true;
    }
    return stroke;
  }

  size_t DigitsAt(size_t at) const {
    size_t end = at;
    while (end < text_.size() && IsDigit(text_[end])) ++end;
    return end - at;
  }

  // Bytes of the thousands separator at `at`, and whether it stands for itself whatever the brackets ("{,}").
  std::pair<size_t, bool> GroupSeparator(size_t at) const {
    for (const std::string_view mark : {"{,}", ",\\!", "\\,", "\\ ", "~", "{ }", ",\\,", "'"}) {
      if (StartsWith(mark, at)) {
        size_t length = mark.size();
        while (mark == ",\\!" && at + length < text_.size() && text_[at + length] == ' ') ++length;
        return {length, true};
      }
    }
    if (at < text_.size() && (text_[at] == ',' || text_[at] == ' ' || text_[at] == '.')) return {1, false};
    return {0, false};
  }

  // The groups of three digits after the first digits, which end at `at`. Returns where they end and adds the digits.
  size_t TakeGroups(size_t at, std::string* digits) {
    const std::pair<size_t, bool> first = GroupSeparator(at);
    if (first.first == 0 || digits->size() > 3 || (*digits)[0] == '0') return at;
    const std::string_view separator = text_.substr(at, first.first);
    std::vector<size_t> ends;
    std::string all;
    size_t end = at;
    while (StartsWith(separator, end) && DigitsAt(end + separator.size()) == 3) {
      all += text_.substr(end + separator.size(), 3);
      end += separator.size() + 3;
      ends.push_back(end);
    }
    if (ends.empty()) return at;
    const char next = end < text_.size() ? text_[end] : '\0';
    if (!first.second) {
      if (separator == ",") {
        // Inside brackets a comma separates, unless what follows is no number of its own.
        if (brackets_ > 0 && all[0] != '0') return at;
      } else if (separator == " ") {
        if (next == '/' || IsDigit(next)) return at;
      } else {
        // Points group only when there are two of them, or a comma with other than three digits follows.
        const bool comma_decimals = next == ',' && brackets_ <= 0 && DigitsAt(end + 1) > 0 && DigitsAt(end + 1) != 3;
        if (ends.size() < 2 && !comma_decimals) return at;
        if (comma_decimals) {
          *digits += all + "." + std::string(text_.substr(end + 1, DigitsAt(end + 1)));
          return end + 1 + DigitsAt(end + 1);
        }
      }
    }
    *digits += all;
    return end;
  }

  void LexNumber() {
    std::string digits(text_.substr(at_, DigitsAt(at_)));
    size_t at = at_ + digits.size();
    if (digits.empty()) {
      digits = "0";
    } else {
      const std::string before = digits;
      at = TakeGroups(at, &digits);
      if (digits.find('.') != std::string::npos) {
        at_ = at;
        return Push(TokenKind::kNumber, digits);
      }
    }
    const char mark = at < text_.size() ? text_[at] : '\0';
    const size_t after = DigitsAt(at + 1);
    const char behind_point = at + 1 < text_.size() ? text_[at + 1] : '\0';
    if (mark == '.' && (behind_point == '/' || behind_point == '*' || behind_point == '^' || behind_point == '+')) {
      ++at;  // 1./3
    } else if (mark == '.' && after > 0) {
      digits += "." + std::string(text_.substr(at + 1, after));
      at += 1 + after;
    } else if (mark == ',' && after > 0 && single_comma_ && brackets_ <= 0) {
      result_.ambiguous_comma = true;
      result_.decimal_comma_likely |= (digits == "0") || digits.size() > 3 || (text_[at + 1] == '0' && after > 1);
      if (options_.decimal_comma) {
        digits += "." + std::string(text_.substr(at + 1, after));
        at += 1 + after;
      }
    }
    // 1500E-1
    if (at < text_.size() && (text_[at] == 'E' || text_[at] == 'e')) {
      size_t exponent = at + 1;
      if (exponent < text_.size() && (text_[exponent] == '-' || text_[exponent] == '+')) ++exponent;
      const size_t count = DigitsAt(exponent);
      const bool word_follows = exponent + count < text_.size() && IsLetter(text_[exponent + count]);
      if (count > 0 && count <= 5 && !word_follows) {
        digits += "e" + std::string(text_.substr(at + 1, exponent + count - at - 1));
        at = exponent + count;
      }
    }
    at_ = at;
    Push(TokenKind::kNumber, std::move(digits));
  }

  std::string_view text_;
  LexOptions options_;
  int nesting_;
  size_t at_ = 0;
  bool space_ = false;
  bool money_ = false;        // a sign of money was read
  bool money_marks_ = false;  // dollar signs are signs of money
  bool single_comma_ = false;
  int brackets_ = 0;  // open ( [ \{
  LexResult result_;
};

}  // namespace

std::string_view CanonicalFunction(std::string_view name) {
  const auto found = FunctionNames().find(name);
  return found == FunctionNames().end() ? std::string_view() : found->second;
}

LexResult Lex(std::string_view text, const LexOptions& options) { return Lexer(text, options, 0).Run(); }

}  // namespace pith::grade
