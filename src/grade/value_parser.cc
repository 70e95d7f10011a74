// Sums, products, mixed numbers and powers.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "grade/parser.h"

namespace pith::grade {

ExprPtr Parser::ParseSum() {
  const Depth depth(this);
  if (!depth.ok()) return nullptr;
  std::vector<ExprPtr> terms;
  ExprPtr whole;
  if (AtSign("+-") || AtSign("-+")) {
    const std::string sign = Peek().text;
    ++at_;
    ExprPtr term = ParseTerm();
    if (term == nullptr) return nullptr;
    whole = Make(ExprKind::kPlusMinus, {MakeNumber(0), term}, sign);
    terms.push_back(whole);
  } else {
    bool negative = false;
    while (AtSign("-") || AtSign("+")) {
      negative ^= AtSign("-");
      ++at_;
    }
    ExprPtr term = ParseTerm();
    if (term == nullptr) return nullptr;
    terms.push_back(negative ? Negate(term) : term);
  }
  while (AtSign("+") || AtSign("-") || AtSign("+-") || AtSign("-+")) {
    const std::string sign = Peek().text;
    ++at_;
    bool negative = sign == "-";
    while (AtSign("-") || AtSign("+")) {
      negative ^= AtSign("-");
      ++at_;
    }
    ExprPtr term = ParseTerm();
    if (term == nullptr) return nullptr;
    if (sign == "+" || sign == "-") {
      terms.push_back(negative ? Negate(term) : term);
    } else {
      if (++plus_minus_ > 4) too_hard_ = true;
      ExprPtr left = terms.size() == 1 ? terms[0] : Make(ExprKind::kSum, terms);
      terms = {Make(ExprKind::kPlusMinus, {left, negative ? Negate(term) : term}, sign)};
    }
    if (too_hard_) return nullptr;
  }
  return terms.size() == 1 ? terms[0] : Make(ExprKind::kSum, std::move(terms));
}

bool Parser::AtFactor() const {
  const Token& token = Peek();
  switch (token.kind) {
    case TokenKind::kNumber: return true;
    case TokenKind::kName:
      return !AtRate() && !(options_.letter_units && AtLetterUnit()) && !(token.text == "min" && FollowedByEnd()) &&
             !IsUnionLetterHere();
    case TokenKind::kWord: return IsSymbolRun(token.text);
    case TokenKind::kText: return false;
    case TokenKind::kCommand:
      return token.text != "end" && token.text != "pmod" && token.text != "bmod" && token.text != "mod" &&
             token.text != "rfloor" && token.text != "rceil" && token.text != "not" && token.text != "choose" &&
             token.text != "over" && token.text != "square";
    case TokenKind::kSign:
      return token.text == "(" || token.text == "[" || token.text == "{" || token.text == "\\{" ||
             (token.text == "|" && !in_abs_);
    default: return false;
  }
}

bool Parser::IsUnionLetterHere() const {
  Parser* self = const_cast<Parser*>(this);
  const size_t before = at_;
  const bool is = self->TakeUnionLetter();
  self->at_ = before;
  return is;
}

ExprPtr Parser::TryMixed(const ExprPtr& whole) {
  const size_t begin = at_;
  ExprPtr numerator;
  ExprPtr denominator;
  if (AtCommand("frac")) {
    ++at_;
    const std::vector<Token> kept(tokens_.begin() + static_cast<long>(at_),
                                  tokens_.begin() + static_cast<long>(std::min(at_ + 8, tokens_.size())));
    numerator = ParseArgument(true);
    denominator = numerator == nullptr ? nullptr : ParseArgument(true);
    if (numerator == nullptr || denominator == nullptr || !IsPlainInteger(numerator) || !IsPlainInteger(denominator)) {
      at_ = begin;
      std::copy(kept.begin(), kept.end(), tokens_.begin() + static_cast<long>(begin) + 1);
      return nullptr;
    }
  } else if (Peek().kind == TokenKind::kNumber && Peek().space_before && Same(Peek(1), "/") &&
             Peek(2).kind == TokenKind::kNumber && !Peek(1).space_before) {
    numerator = ParsePrimary();
    ++at_;
    denominator = ParsePrimary();
    if (numerator == nullptr || denominator == nullptr || !IsPlainInteger(numerator) || !IsPlainInteger(denominator)) {
      at_ = begin;
      return nullptr;
    }
  } else {
    return nullptr;
  }
  if (denominator->number == 0 || numerator->number >= denominator->number) return Make(ExprKind::kUndefined, {});
  return MakeNumber(mpq_class(whole->number + numerator->number / denominator->number));
}

ExprPtr Parser::ParseTerm() {
  const Depth depth(this);
  if (!depth.ok()) return nullptr;
  ExprPtr first = ParseFactor();
  if (first == nullptr) return nullptr;
  if (IsPlainInteger(first) && tokens_[at_ - 1].kind == TokenKind::kNumber) {
    if (ExprPtr mixed = TryMixed(first)) {
      first = TakeSign("%") ? Make(ExprKind::kQuantity, {mixed}, "percent") : mixed;
    }
  }
  if (too_hard_) return nullptr;
  std::vector<ExprPtr> factors = {first};
  while (true) {
    if (TakeSign("*")) {
      ExprPtr factor = ParseSignedFactor();
      if (factor == nullptr) return nullptr;
      factors.push_back(factor);
    } else if (AtSign("/")) {
      ++at_;
      ExprPtr divisor = ParseSignedFactor();
      if (divisor == nullptr) return nullptr;
      ExprPtr dividend = factors.size() == 1 ? factors[0] : Make(ExprKind::kProduct, factors);
      if (dividend == nullptr) return nullptr;
      // 4/9% is (4/9)%
      if (divisor->kind == ExprKind::kQuantity && divisor->name == "percent") {
        ExprPtr quotient = Make(ExprKind::kQuotient, {dividend, divisor->args[0]});
        if (quotient == nullptr) return nullptr;
        factors = {Make(ExprKind::kQuantity, {quotient}, "percent")};
        continue;
      }
      factors = {Make(ExprKind::kQuotient, {dividend, divisor})};
    } else if (AtFactor()) {
      // 2.5 x 10^3
      if (Peek().kind == TokenKind::kName && Peek().text == "x" && Peek().space_before && Peek(1).space_before &&
          tokens_[at_ - 1].kind == TokenKind::kNumber && Peek(1).kind == TokenKind::kNumber && Peek(1).text == "10" &&
          Same(Peek(2), "^")) {
        ++at_;
        ExprPtr power = ParseFactor();
        if (power == nullptr) return nullptr;
        factors.push_back(power);
        continue;
      }
      // Two numbers side by side are no product.
      if (Peek().kind == TokenKind::kNumber && tokens_[at_ - 1].kind == TokenKind::kNumber) return nullptr;
      ExprPtr factor = ParseFactor();
      if (factor == nullptr) return nullptr;
      factors.push_back(factor);
    } else {
      break;
    }
    if (factors.size() > kMaxNodes) too_hard_ = true;
    if (too_hard_) return nullptr;
  }
  return factors.size() == 1 ? factors[0] : Make(ExprKind::kProduct, std::move(factors));
}

ExprPtr Parser::ParseSignedFactor() {
  bool negative = false;
  while (AtSign("-") || AtSign("+")) {
    negative ^= AtSign("-");
    ++at_;
  }
  ExprPtr factor = ParseFactor();
  return factor != nullptr && negative ? Negate(factor) : factor;
}

ExprPtr Parser::ParseFactor() {
  const Depth depth(this);
  if (!depth.ok()) return nullptr;
  const bool run = Peek().kind == TokenKind::kWord;
  ExprPtr base = ParsePrimary();
  // What follows a run of letters belongs to the last of them: kx^2, rx(t).
  std::vector<ExprPtr> letters;
  if (run && base != nullptr && base->kind == ExprKind::kProduct) {
    letters = base->args;
    base = letters.back();
    letters.pop_back();
  }
  bool head = true;
  while (base != nullptr) {
    if (head && AtSign("(") && MayBeHead(*base)) {
      ExprPtr call = TryApplication(base);
      if (call == nullptr && bracket_ == nullptr) return nullptr;
      if (call == nullptr) break;
      base = call;
      head = false;
    } else if (AtSign("^")) {
      ++at_;
      if (TakeDegree()) {
        base = Make(ExprKind::kQuantity, {base}, "degree");
        continue;
      }
      if (AtSign("'") || (AtSign("{") && Same(Peek(1), "'"))) {
        const bool braced = TakeSign("{");
        while (base != nullptr && TakeSign("'")) base = Primed(base);
        if (braced && !TakeSign("}")) return nullptr;
        continue;
      }
      ExprPtr exponent = ParseScript();
      if (exponent == nullptr) return nullptr;
      base = Make(ExprKind::kPower, {base, exponent});
    } else if (TakeSign("!")) {
      base = Make(ExprKind::kFunction, {base}, "factorial");
    } else if (TakeSign("%")) {
      base = Make(ExprKind::kQuantity, {base}, "percent");
    } else if (TakeSign("deg")) {
      base = Make(ExprKind::kQuantity, {base}, "degree");
    } else if (AtSign("'") && !Peek().space_before) {
      ++at_;
      base = Primed(base);
    } else if (AtSign("_") && base->kind == ExprKind::kNumber) {
      base = ParseBase(base);
    } else {
      break;
    }
  }
  if (letters.empty() || base == nullptr) return base;
  letters.push_back(base);
  return Make(ExprKind::kProduct, std::move(letters));
}

bool Parser::MayBeHead(const Expr& base) {
  const auto name = [](const Expr& x) {
    return x.kind == ExprKind::kSymbol && !x.parenthesized && !IsConstantName(x.name) && x.name[0] != '\\';
  };
  if (base.kind != ExprKind::kPower || base.parenthesized) return name(base);
  const Expr& exponent = *base.args[1];
  const bool inverse = exponent.kind == ExprKind::kNumber && exponent.number == -1;
  return name(*base.args[0]) && (inverse || exponent.parenthesized);
}

ExprPtr Parser::TryApplication(const ExprPtr& head) {
  const size_t begin = at_;
  ExprPtr argument = ParseBracket("(");
  if (argument == nullptr) return nullptr;
  const std::string& name = head->kind == ExprKind::kSymbol ? head->name : head->args[0]->name;
  const bool certain = argument->kind == ExprKind::kSymbol || !IsValueKind(argument->kind) ||
                       (argument->kind == ExprKind::kFunction && argument->name == "apply");
  if (!certain) {
    if (std::find(options_.factors.begin(), options_.factors.end(), name) != options_.factors.end()) {
      bracket_begin_ = begin;
      bracket_end_ = at_;
      bracket_ = argument;
      at_ = begin;
      return nullptr;
    }
    if (std::find(heads_.begin(), heads_.end(), name) == heads_.end()) heads_.push_back(name);
    doubtful_ |= !FreeSymbols(*argument).empty();
  }
  return Make(ExprKind::kFunction, {head, argument}, "apply");
}

bool Parser::TakeDegree() {
  if (TakeSign("deg")) return true;
  if (AtSign("{") && Same(Peek(1), "deg") && Same(Peek(2), "}")) {
    at_ += 3;
    return true;
  }
  return false;
}

ExprPtr Parser::ParseScript() {
  if (AtSign("{")) return ParseGroup();
  bool negative = false;
  while (AtSign("-") || AtSign("+")) {
    negative ^= AtSign("-");
    ++at_;
  }
  ExprPtr script = ParsePrimary();
  if (script != nullptr && AtSign("^")) {  // x^y^z is a tower
    const Depth depth(this);
    if (!depth.ok()) return nullptr;
    ++at_;
    ExprPtr exponent = ParseScript();
    if (exponent == nullptr) return nullptr;
    script = Make(ExprKind::kPower, {script, exponent});
  }
  return script != nullptr && negative ? Negate(script) : script;
}

ExprPtr Parser::ParseBase(const ExprPtr& digits) {
  ++at_;
  const bool braced = TakeSign("{");
  TakeSign("(");
  if (Peek().kind != TokenKind::kNumber && !IsWordToken(Peek())) return nullptr;
  const std::string text = Peek().text;
  ++at_;
  TakeSign(")");
  if (braced && !TakeSign("}")) return nullptr;
  int base = 0;
  constexpr std::array<std::pair<std::string_view, int>, 12> kWords = {{{"two", 2},
                                                                        {"three", 3},
                                                                        {"four", 4},
                                                                        {"five", 5},
                                                                        {"six", 6},
                                                                        {"seven", 7},
                                                                        {"eight", 8},
                                                                        {"nine", 9},
                                                                        {"ten", 10},
                                                                        {"eleven", 11},
                                                                        {"twelve", 12},
                                                                        {"sixteen", 16}}};
  for (const auto& [word, value] : kWords) {
    if (text == word) base = value;
  }
  if (base == 0 && text.size() <= 2 && text.find_first_not_of("0123456789") == std::string::npos) {
    base = static_cast<int>(std::strtol(text.c_str(), nullptr, 10));
  }
  if (base < 2 || base > 36 || digits->decimals >= 0 || digits->name.empty()) return nullptr;
  mpz_class value;
  if (value.set_str(digits->name, base) != 0) return nullptr;
  return MakeNumber(mpq_class(value));
}

ExprPtr Parser::ParseGroup() {
  ++at_;
  const bool in_abs = std::exchange(in_abs_, false);
  ExprPtr inside = ParseList(Close::kBrace);
  in_abs_ = in_abs;
  if (inside != nullptr && AtCommand("choose")) return nullptr;
  if (inside != nullptr && AtCommand("over")) {
    ++at_;
    ExprPtr below = ParseList(Close::kBrace);
    return below == nullptr || !TakeSign("}") ? nullptr : Make(ExprKind::kQuotient, {inside, below});
  }
  if (inside == nullptr || !TakeSign("}")) return nullptr;
  return inside;
}

ExprPtr Parser::ParseArgument(bool one_digit) {
  if (AtSign("{")) return ParseGroup();
  if (Peek().kind == TokenKind::kNumber && one_digit && Peek().text.size() > 1) {
    Token& token = tokens_[at_];
    if (token.text[0] == '.' || token.text.find_first_not_of("0123456789") != std::string::npos) return nullptr;
    auto digit = std::make_shared<Expr>(*MakeNumber(mpq_class(token.text[0] - '0')));
    digit->name = token.text.substr(0, 1);
    token.text.erase(0, 1);
    token.space_before = false;
    return digit;
  }
  if (AtSign("-")) {
    ++at_;
    ExprPtr x = ParsePrimary();
    return x == nullptr ? nullptr : Negate(x);
  }
  const Depth depth(this);
  return depth.ok() ? ParsePrimary() : nullptr;
}

}  // namespace pith::grade
