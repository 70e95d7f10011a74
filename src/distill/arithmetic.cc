#include "distill/arithmetic.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

namespace pith {
namespace {

constexpr size_t kMaxEquations = 64;
constexpr size_t kMaxDigits = 15;  // exact in a double
constexpr size_t kMaxTerms = 16;   // of one equation

bool IsDigit(std::string_view text, size_t at) {
  return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
}

struct Token {
  enum Kind { kNumber, kOperator, kEquals, kBreak } kind = kBreak;
  char sign = 0;         // of an operator
  std::string spelling;  // of a number, without commas
  double value = 0;
};

// Takes tokens off a text: numbers, + - * / =, and breaks for anything that cannot be inside an equation.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<Token> Next() {
    while (at_ < text_.size()) {
      if (IsDigit(text_, at_)) return Number();
      if (Skip()) continue;
      if (const size_t command = Fraction()) {
        at_ += command;
        in_numerator_ = true;
        continue;
      }
      if (in_numerator_ && text_.substr(at_).starts_with("}{")) {
        at_ += 2;
        in_numerator_ = false;
        in_denominator_ = true;
        return Token{.kind = Token::kOperator, .sign = '/', .spelling = {}, .value = 0};
      }
      if (in_denominator_ && text_[at_] == '}') {
        ++at_;
        in_denominator_ = false;
        continue;
      }
      for (const auto& [spelling, sign] : kSigns) {
        if (!text_.substr(at_).starts_with(spelling)) continue;
        at_ += spelling.size();
        return Token{.kind = sign == '=' ? Token::kEquals : Token::kOperator, .sign = sign, .spelling = {}, .value = 0};
      }
      ++at_;
      return Token{};
    }
    return std::nullopt;
  }

 private:
  static constexpr std::array<std::pair<std::string_view, char>, 12> kSigns = {{{"+", '+'},
                                                                                {"-", '-'},
                                                                                {"\xE2\x88\x92", '-'},
                                                                                {"*", '*'},
                                                                                {"\xC3\x97", '*'},
                                                                                {"\\times", '*'},
                                                                                {"\\cdot", '*'},
                                                                                {"/", '/'},
                                                                                {"\xC3\xB7", '/'},
                                                                                {"\\div", '/'},
                                                                                {"=", '='},
                                                                                {"&=", '='}}};

  // The length of "\\frac{" at a fraction of two numbers, else 0. Such a fraction is read as a division.
  size_t Fraction() const {
    const std::string_view rest = text_.substr(at_);
    for (const std::string_view command : {"\\frac{", "\\dfrac{", "\\tfrac{"}) {
      if (!rest.starts_with(command)) continue;
      size_t end = command.size();
      const auto number = [&] {
        const size_t begin = end;
        while (IsDigit(rest, end) || (end < rest.size() && (rest[end] == '.' || rest[end] == ','))) ++end;
        return end > begin && IsDigit(rest, begin) && IsDigit(rest, end - 1);
      };
      if (!number() || !rest.substr(end).starts_with("}{")) return 0;
      end += 2;
      return number() && end < rest.size() && rest[end] == '}' ? command.size() : 0;
    }
    return 0;
  }

  // White space, what money and formulas are wrapped in, and units in formulas.
  bool Skip() {
    if (text_.substr(at_).starts_with("\\text{")) {
      const size_t end = text_.find_first_of("{}", at_ + 6);
      if (end == std::string_view::npos || text_[end] == '{') return false;
      at_ = end + 1;
      return true;
    }
    for (const std::string_view skipped : {" ", "$", "\\$", "\\(", "\\)", "\\[", "\\]", "\\,", "\\!"}) {
      if (!text_.substr(at_).starts_with(skipped)) continue;
      at_ += skipped.size();
      return true;
    }
    return false;
  }

  Token Number() {
    Token token{.kind = Token::kNumber, .sign = 0, .spelling = {}, .value = 0};
    while (IsDigit(text_, at_)) token.spelling += text_[at_++];
    // 1,234,567: groups of exactly three digits.
    while (at_ < text_.size() && text_[at_] == ',' && IsDigit(text_, at_ + 1) && IsDigit(text_, at_ + 2) &&
           IsDigit(text_, at_ + 3) && !IsDigit(text_, at_ + 4)) {
      token.spelling += text_.substr(at_ + 1, 3);
      at_ += 4;
    }
    if (at_ < text_.size() && text_[at_] == '.' && IsDigit(text_, at_ + 1)) {
      token.spelling += text_[at_++];
      while (IsDigit(text_, at_)) token.spelling += text_[at_++];
      while (token.spelling.back() == '0') token.spelling.pop_back();
      if (token.spelling.back() == '.') token.spelling.pop_back();
    }
    const size_t zeros = token.spelling.find_first_not_of('0');
    if (zeros == std::string::npos) {
      token.spelling = "0";
    } else {
      token.spelling.erase(0, token.spelling[zeros] == '.' ? zeros - 1 : zeros);
    }
    token.value = token.spelling.size() > kMaxDigits ? NAN : std::strtod(token.spelling.c_str(), nullptr);
    return token;
  }

  std::string_view text_;
  size_t at_ = 0;
  bool in_numerator_ = false;
  bool in_denominator_ = false;
};

// The value of numbers and operators in turn, by the usual precedence.
double Evaluate(const std::vector<Token>& terms) {
  double sum = 0;
  double product = terms[0].value;
  double sign = 1;
  for (size_t i = 1; i + 1 < terms.size(); i += 2) {
    const double next = terms[i + 1].value;
    switch (terms[i].sign) {
      case '*': product *= next; break;
      case '/': product /= next; break;
      default:
        sum += sign * product;
        sign = terms[i].sign == '-' ? -1 : 1;
        product = next;
    }
  }
  return sum + sign * product;
}

std::string Spelled(const std::vector<Token>& terms) {
  std::string text;
  for (const Token& term : terms) {
    if (!text.empty()) text += ' ';
    text += term.kind == Token::kNumber ? term.spelling : std::string(1, term.sign);
  }
  return text;
}

}  // namespace

std::vector<std::string> TrueEquations(std::string_view text) {
  std::vector<std::string> equations;
  Scanner scanner(text);
  std::vector<Token> left;   // number, operator, number, ...
  std::vector<Token> terms;  // since the last "=" or break
  bool bad = false;          // terms do not alternate
  const auto end_side = [&](bool equals) {
    // What may stand on the right of an equation: one number. On the left: several.
    const bool whole = !bad && terms.size() % 2 == 1 && terms.size() <= kMaxTerms;
    if (!left.empty() && whole && terms.size() == 1) {
      const double difference = std::abs(Evaluate(left) - terms[0].value);
      if (difference <= 1e-9 * std::max(1.0, std::abs(terms[0].value)) && equations.size() < kMaxEquations) {
        equations.push_back(Spelled(left) + " = " + terms[0].spelling);
      }
    }
    left.clear();
    if (equals && whole && terms.size() >= 3) left = terms;
    terms.clear();
    bad = false;
  };
  while (const auto token = scanner.Next()) {
    if (token->kind == Token::kBreak) {
      end_side(false);
      continue;
    }
    if (token->kind == Token::kEquals) {
      end_side(true);
      continue;
    }
    const bool number_next = terms.size() % 2 == 0;
    if ((token->kind == Token::kNumber) != number_next) {
      // A sign without a number before it, or two numbers: no equation here.
      bad = true;
    }
    if (terms.size() <= kMaxTerms) terms.push_back(*token);
  }
  end_side(false);
  return equations;
}

std::string NumberPath(std::string_view text) {
  std::string path;
  std::string last;
  Scanner scanner(text);
  while (auto token = scanner.Next()) {
    if (token->kind != Token::kNumber || token->spelling == last) continue;
    last = token->spelling;
    path += (path.empty() ? "" : " ") + last;
  }
  return path;
}

}  // namespace pith
