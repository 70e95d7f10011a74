#include "grade/answer_parser.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "grade/units.h"
#include "grade/work_budget.h"

namespace pith::grade {

namespace {

constexpr size_t kMaxUnitWords = 6;

// Words that make a text prose: no quantity, unit or product is spelled with them.
bool IsProseWord(const std::string& word) {
  static const auto& words = *new std::unordered_set<std::string>{
      "is",    "are",       "was",   "were",   "be",    "has",   "have", "had",   "it",   "he",   "she",
      "we",    "they",      "you",   "his",    "her",   "its",   "so",   "then",  "than", "if",   "for",
      "with",  "but",       "not",   "when",   "where", "which", "that", "this",  "the",  "to",   "of",
      "on",    "at",        "an",    "as",     "by",    "do",    "does", "no",    "up",   "from", "because",
      "since", "therefore", "thus",  "hence",  "get",   "gets",  "let",  "there", "more", "less", "us",
      "can",   "will",      "would", "answer", "final", "are",   "all",  "any",   "some", "yes"};
  std::string lower = word;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return words.count(lower) != 0;
}

bool AllUpper(const std::string& word) {
  return std::all_of(word.begin(), word.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}
bool AllLower(const std::string& word) {
  return std::all_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

// A run of letters that is a product of symbols (xy, abc) or a point name (AB) rather than a word.
bool IsSymbolRun(const std::string& word) {
  if (IsProseWord(word) || FindUnit(word) || IsPercentWord(word) || IsUnitHelper(word)) return false;
  if (AllUpper(word)) return word.size() <= 4;
  return AllLower(word) && word.size() <= 3;
}

mpq_class DecimalValue(const std::string& literal, int* decimals, int* significant, bool* ok) {
  const size_t exponent_at = literal.find('e');
  std::string mantissa = literal.substr(0, exponent_at);
  long exponent = 0;
  if (exponent_at != std::string::npos) exponent = std::strtol(literal.c_str() + exponent_at + 1, nullptr, 10);
  const size_t point = mantissa.find('.');
  *decimals = -1;
  if (point != std::string::npos) {
    *decimals = static_cast<int>(mantissa.size() - point - 1);
    mantissa.erase(point, 1);
  }
  const size_t first = mantissa.find_first_not_of('0');
  *significant = first == std::string::npos ? 1 : static_cast<int>(mantissa.size() - first);
  const long scale = exponent - std::max(*decimals, 0);
  if (exponent_at != std::string::npos) *decimals = static_cast<int>(std::max(0L, -scale));
  *ok = std::labs(scale) <= 4000;
  if (!*ok) return {};
  mpz_class digits(mantissa, 10);
  mpz_class power;
  mpz_ui_pow_ui(power.get_mpz_t(), 10, static_cast<unsigned long>(std::labs(scale)));
  mpq_class value = scale >= 0 ? mpq_class(digits * power) : mpq_class(digits, power);
  value.canonicalize();
  return value;
}

class Parser {
 public:
  explicit Parser(LexResult lexed) : tokens_(std::move(lexed.tokens)), too_hard_(lexed.too_long) {}

  ParseOutcome Run() {
    if (too_hard_) return {nullptr, true};
    ExprPtr tree = ParseList(Close::kEnd);
    if (tree != nullptr && Peek().kind != TokenKind::kEnd) tree = nullptr;
    if (too_hard_) return {nullptr, true};
    return {tree, false};
  }

 private:
  enum class Close { kEnd, kBrace, kRound, kSetBrace, kCell };

  class Depth {
   public:
    explicit Depth(Parser* parser) : parser_(parser) { ++parser_->depth_; }
    ~Depth() { --parser_->depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    bool ok() const {
      if (parser_->depth_ > kMaxDepth) parser_->too_hard_ = true;
      return !parser_->too_hard_;
    }

   private:
    Parser* parser_;
  };

  const Token& Peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool AtSign(std::string_view sign) const { return Peek().kind == TokenKind::kSign && Peek().text == sign; }
  bool AtCommand(std::string_view name) const { return Peek().kind == TokenKind::kCommand && Peek().text == name; }
  bool TakeSign(std::string_view sign) {
    if (!AtSign(sign)) return false;
    ++at_;
    return true;
  }

  ExprPtr Make(ExprKind kind, std::vector<ExprPtr> args, std::string name = {}) {
    if (++nodes_ > kMaxNodes) {
      too_hard_ = true;
      return nullptr;
    }
    return Checked(MakeNode(kind, std::move(args), std::move(name)));
  }
  ExprPtr Checked(ExprPtr node) {
    if (node->height <= kMaxHeight) return node;
    too_hard_ = true;
    return nullptr;
  }

  static bool Same(const Token& token, std::string_view sign) {
    return token.kind == TokenKind::kSign && token.text == sign;
  }

  bool AtClose(Close close) const {
    switch (close) {
      case Close::kEnd: return Peek().kind == TokenKind::kEnd;
      case Close::kBrace: return AtSign("}");
      case Close::kRound: return AtSign(")") || AtSign("]");
      case Close::kSetBrace: return AtSign("\\}");
      case Close::kCell: return AtSign("&") || AtSign("\\\\") || AtCommand("end");
    }
    return false;
  }

  bool AtSeparator(Close close) const {
    const Token& token = Peek();
    if (token.kind == TokenKind::kConnective) return true;
    if (token.kind != TokenKind::kSign) return false;
    if (token.text == "," || token.text == ";") return true;
    return token.text == "\\\\" && close == Close::kEnd;
  }

  // Items up to the closing token, which is not taken. One item stands for itself.
  ExprPtr ParseList(Close close) {
    const Depth depth(this);
    if (!depth.ok()) return nullptr;
    std::vector<ExprPtr> items;
    std::string joined = ",";
    while (true) {
      while (AtSeparator(close)) {
        if (Peek().kind == TokenKind::kConnective) joined = Peek().text;
        ++at_;
      }
      if (AtClose(close)) break;
      if (close == Close::kEnd && TakeSign(".")) continue;  // the end of a sentence
      ExprPtr item = ParseItem(close);
      if (item == nullptr || items.size() >= kMaxItems) {
        too_hard_ |= item != nullptr;
        return nullptr;
      }
      items.push_back(std::move(item));
      if (close == Close::kEnd && AtSign(".") && Peek(1).kind == TokenKind::kEnd) ++at_;
      if (!AtSeparator(close) && !AtClose(close)) return nullptr;
    }
    if (items.empty()) return close == Close::kSetBrace ? Make(ExprKind::kList, {}, ",") : nullptr;
    if (items.size() == 1) return items[0];
    return Make(ExprKind::kList, std::move(items), joined);
  }

  bool IsWordToken(const Token& token) const {
    return token.kind == TokenKind::kWord || token.kind == TokenKind::kText;
  }

  // Words only, up to the next separator.
  ExprPtr TryText(Close close) {
    size_t end = at_;
    std::string words;
    size_t long_words = 0;
    while (true) {
      const Token& token = tokens_[std::min(end, tokens_.size() - 1)];
      const bool name = token.kind == TokenKind::kName && token.text[0] != '\\';
      const bool mark = Same(token, "-") || Same(token, "'") || Same(token, ".");
      if (!IsWordToken(token) && !name && !(mark && end > at_)) break;
      if (IsWordToken(token)) ++long_words;
      if (!mark) words += (words.empty() ? "" : " ") + token.text;
      ++end;
    }
    if (long_words == 0) return nullptr;
    const size_t begin = at_;
    at_ = end;
    const bool whole = AtClose(close) || AtSeparator(close);
    if (!whole || (end == begin + 1 && tokens_[begin].kind == TokenKind::kWord && IsSymbolRun(tokens_[begin].text) &&
                   !(close == Close::kEnd && begin == 0 && HasVowels(tokens_[begin].text)))) {
      at_ = begin;
      return nullptr;
    }
    return Make(ExprKind::kText, {}, words);
  }

  // "odd", "yes" and "one" are words; "xy" and "abc" are products.
  static bool HasVowels(const std::string& word) {
    return word.size() >= 3 && AllLower(word) && word.find_first_of("eiou") != std::string::npos;
  }

  ExprPtr ParseItem(Close close) {
    if (ExprPtr text = TryText(close)) return text;
    std::vector<ExprPtr> operands;
    std::vector<std::string> operators;
    if (TakeSign("~=")) {  // "about 3"
    }
    ExprPtr first = ParseSets();
    if (first == nullptr) return nullptr;
    operands.push_back(first);
    while (true) {
      std::string op;
      if (AtSign("&") && close == Close::kEnd) ++at_;
      for (const std::string_view sign : {"=", "<", "<=", ">", ">=", "!=", "in", "~=", "=="}) {
        if (AtSign(sign)) op = sign;
      }
      if (AtCommand("not") && (Same(Peek(1), "=") || Same(Peek(1), "in"))) {
        op = Peek(1).text == "=" ? "!=" : "notin";
        ++at_;
      }
      if (op.empty()) break;
      ++at_;
      if (AtSign("&") && close == Close::kEnd) ++at_;
      ExprPtr text = TryText(close);
      ExprPtr operand = text != nullptr ? text : ParseSets();
      if (operand == nullptr) return nullptr;
      operands.push_back(operand);
      operators.push_back(op);
      if (operands.size() > kMaxItems) too_hard_ = true;
      if (too_hard_) return nullptr;
    }
    ExprPtr result = first;
    if (!operators.empty()) {
      result = Checked(MakeRelation(std::move(operands), std::move(operators)));
      if (result == nullptr) return nullptr;
    }
    if (AtCommand("pmod") || AtCommand("bmod") || AtCommand("mod")) {
      ++at_;
      ExprPtr modulus = ParseArgument();
      if (modulus == nullptr) return nullptr;
      result = Make(ExprKind::kFunction, {result, modulus}, "mod");
    }
    return result;
  }

  ExprPtr ParseSets() {
    ExprPtr left = ParseRatio();
    while (left != nullptr) {
      ExprKind kind = ExprKind::kUnion;
      if (TakeSign("cup") || TakeUnionLetter()) {
        kind = ExprKind::kUnion;
      } else if (TakeSign("cap")) {
        kind = ExprKind::kIntersection;
      } else if (TakeSign("setminus")) {
        kind = ExprKind::kDifference;
      } else {
        break;
      }
      ExprPtr right = ParseRatio();
      if (right == nullptr) return nullptr;
      if (left->kind == kind && kind != ExprKind::kDifference && !left->parenthesized) {
        std::vector<ExprPtr> args = left->args;
        if (args.size() >= kMaxItems) too_hard_ = true;
        args.push_back(right);
        left = Make(kind, std::move(args));
      } else {
        left = Make(kind, {left, right});
      }
      if (too_hard_) return nullptr;
    }
    return left;
  }

  // "(0,1) U (2,3)" in plain text.
  bool TakeUnionLetter() {
    const Token& token = Peek();
    if (token.kind != TokenKind::kName || (token.text != "U" && token.text != "u")) return false;
    if (!(Same(Peek(1), "(") || Same(Peek(1), "[") || Same(Peek(1), "\\{"))) return false;
    if (at_ == 0 || !(Same(tokens_[at_ - 1], ")") || Same(tokens_[at_ - 1], "]") || Same(tokens_[at_ - 1], "\\}"))) {
      return false;
    }
    ++at_;
    return true;
  }

  ExprPtr ParseRatio() {
    ExprPtr first = ParseQuantity();
    if (first == nullptr || !AtSign(":")) return first;
    std::vector<ExprPtr> parts = {first};
    while (TakeSign(":")) {
      ExprPtr part = ParseQuantity();
      if (part == nullptr) return nullptr;
      parts.push_back(part);
      if (parts.size() > kMaxItems) too_hard_ = true;
      if (too_hard_) return nullptr;
    }
    return Make(ExprKind::kRatio, std::move(parts));
  }

  // A sum and the unit after it.
  ExprPtr ParseQuantity() {
    ExprPtr value = ParseSum();
    if (value == nullptr) return nullptr;
    size_t words = 0;
    std::string unit;
    std::string power;
    while (true) {
      const Token& token = Peek();
      std::string word;
      if (IsWordToken(token) || (token.kind == TokenKind::kName && FindUnit(token.text) && words > 0) ||
          (token.kind == TokenKind::kName && token.text == "min" && FollowedByEnd())) {
        word = token.text;
      } else if (Same(token, "/") && words > 0) {
        word = "/";
      } else if (token.kind == TokenKind::kCommand && token.text == "square") {
        word = "square";
      } else {
        break;
      }
      if (token.kind != TokenKind::kText && IsProseWord(word)) return nullptr;
      if (++words > kMaxUnitWords) return nullptr;
      ++at_;
      if (word == "square" || word == "sq") power = "^2";
      if (word == "cubic") power = "^3";
      unit += (unit.empty() ? "" : " ") + word;
      if (AtSign(".") && Peek(1).kind != TokenKind::kEnd) ++at_;  // "sq. ft", "p.m."
      if (TakeSign("^")) {
        if (AtSign("{") && Peek(1).kind == TokenKind::kNumber && Same(Peek(2), "}")) {
          power = "^" + Peek(1).text;
          at_ += 3;
        } else if (Peek().kind == TokenKind::kNumber) {
          power = "^" + Peek().text;
          ++at_;
        } else {
          return nullptr;
        }
      }
    }
    if (words == 0) return value;
    // The words of several units between them: a phrase. "square cm", "cm": a unit.
    std::string known;
    size_t units = 0;
    bool percent = false;
    size_t begin = 0;
    while (begin <= unit.size()) {
      const size_t end = std::min(unit.find(' ', begin), unit.size());
      std::string word = unit.substr(begin, end - begin);
      while (!word.empty() && word.back() == '.') word.pop_back();
      if (IsPercentWord(word)) percent = true;
      if (FindUnit(word)) {
        known = word;
        ++units;
      } else if (word == "per" || word == "/") {
        units += 2;
      }
      begin = end + 1;
    }
    if (percent) return Make(ExprKind::kQuantity, {value}, "percent");
    if (known == "degrees" || known == "degree") return Make(ExprKind::kQuantity, {value}, "degree");
    return Make(ExprKind::kQuantity, {value}, units == 1 ? known + power : "words");
  }

  bool FollowedByEnd() const {
    const Token& next = Peek(1);
    return next.kind == TokenKind::kEnd || Same(next, ",") || Same(next, ".") || next.kind == TokenKind::kConnective;
  }

  ExprPtr ParseSum() {
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

  // Whether the next token begins a factor of an implicit product.
  bool AtFactor() const {
    const Token& token = Peek();
    switch (token.kind) {
      case TokenKind::kNumber: return true;
      case TokenKind::kName: return !(token.text == "min" && FollowedByEnd()) && !IsUnionLetterHere();
      case TokenKind::kWord: return IsSymbolRun(token.text);
      case TokenKind::kText: return false;
      case TokenKind::kCommand:
        return token.text != "end" && token.text != "pmod" && token.text != "bmod" && token.text != "mod" &&
               token.text != "rfloor" && token.text != "rceil" && token.text != "not" && token.text != "choose" &&
               token.text != "square";
      case TokenKind::kSign:
        return token.text == "(" || token.text == "[" || token.text == "{" || token.text == "\\{" ||
               (token.text == "|" && !in_abs_);
      default: return false;
    }
  }
  bool IsUnionLetterHere() const {
    Parser* self = const_cast<Parser*>(this);
    const size_t before = at_;
    const bool is = self->TakeUnionLetter();
    self->at_ = before;
    return is;
  }

  static bool IsPlainInteger(const ExprPtr& x) {
    return x->kind == ExprKind::kNumber && x->decimals < 0 && !x->parenthesized && x->number.get_den() == 1;
  }

  // After an integer literal: a proper fraction of integers makes a mixed number. Null and at_ unchanged when it is
  // none.
  ExprPtr TryMixed(const ExprPtr& whole) {
    const size_t begin = at_;
    ExprPtr numerator;
    ExprPtr denominator;
    if (AtCommand("frac")) {
      ++at_;
      const std::vector<Token> kept(tokens_.begin() + static_cast<long>(at_),
                                    tokens_.begin() + static_cast<long>(std::min(at_ + 8, tokens_.size())));
      numerator = ParseArgument(true);
      denominator = numerator == nullptr ? nullptr : ParseArgument(true);
      if (numerator == nullptr || denominator == nullptr || !IsPlainInteger(numerator) ||
          !IsPlainInteger(denominator)) {
        at_ = begin;
        std::copy(kept.begin(), kept.end(), tokens_.begin() + static_cast<long>(begin) + 1);
        return nullptr;
      }
    } else if (Peek().kind == TokenKind::kNumber && Peek().space_before && Same(Peek(1), "/") &&
               Peek(2).kind == TokenKind::kNumber && !Peek(1).space_before) {
      numerator = ParsePrimary();
      ++at_;
      denominator = ParsePrimary();
      if (numerator == nullptr || denominator == nullptr || !IsPlainInteger(numerator) ||
          !IsPlainInteger(denominator)) {
        at_ = begin;
        return nullptr;
      }
    } else {
      return nullptr;
    }
    if (denominator->number == 0 || numerator->number >= denominator->number) return Make(ExprKind::kUndefined, {});
    return MakeNumber(mpq_class(whole->number + numerator->number / denominator->number));
  }

  ExprPtr ParseTerm() {
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

  ExprPtr ParseSignedFactor() {
    bool negative = false;
    while (AtSign("-") || AtSign("+")) {
      negative ^= AtSign("-");
      ++at_;
    }
    ExprPtr factor = ParseFactor();
    return factor != nullptr && negative ? Negate(factor) : factor;
  }

  // A primary with powers and what else follows it.
  ExprPtr ParseFactor() {
    const Depth depth(this);
    if (!depth.ok()) return nullptr;
    ExprPtr base = ParsePrimary();
    while (base != nullptr) {
      if (AtSign("^")) {
        ++at_;
        if (TakeDegree()) {
          base = Make(ExprKind::kQuantity, {base}, "degree");
          continue;
        }
        if (TakeSign("'")) {
          base = Primed(base);
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
    return base;
  }

  ExprPtr Primed(const ExprPtr& base) {
    return base->kind == ExprKind::kSymbol ? Make(ExprKind::kSymbol, {}, base->name + "'") : nullptr;
  }

  bool TakeDegree() {
    if (TakeSign("deg")) return true;
    if (AtSign("{") && Same(Peek(1), "deg") && Same(Peek(2), "}")) {
      at_ += 3;
      return true;
    }
    return false;
  }

  // An exponent: a group, or one signed primary.
  ExprPtr ParseScript() {
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

  // A number with its base as the subscript: 204_5.
  ExprPtr ParseBase(const ExprPtr& digits) {
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

  ExprPtr ParseGroup() {
    ++at_;
    const bool in_abs = std::exchange(in_abs_, false);
    ExprPtr inside = ParseList(Close::kBrace);
    in_abs_ = in_abs;
    if (inside != nullptr && AtCommand("choose")) return nullptr;
    if (inside == nullptr || !TakeSign("}")) return nullptr;
    return inside;
  }

  // The argument of a command: a group, or one token (of a number one digit when `one_digit`).
  ExprPtr ParseArgument(bool one_digit = false) {
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

  ExprPtr ParsePrimary() {
    const Token token = Peek();
    switch (token.kind) {
      case TokenKind::kNumber: ++at_; return ParseNumber(token.text);
      case TokenKind::kName: ++at_; return ParseName(token.text);
      case TokenKind::kWord: return ParseWord(token.text);
      case TokenKind::kText: {
        // A name in words: \text{Area} = 5.
        ++at_;
        return Make(ExprKind::kText, {}, token.text);
      }
      case TokenKind::kCommand: ++at_; return ParseCommand(token.text);
      case TokenKind::kSign: return ParseBracket(token.text);
      default: return nullptr;
    }
  }

  ExprPtr ParseNumber(const std::string& literal) {
    bool ok = false;
    auto node = std::make_shared<Expr>();
    node->kind = ExprKind::kNumber;
    node->name = literal;
    node->number = DecimalValue(literal, &node->decimals, &node->significant, &ok);
    if (!ok || ++nodes_ > kMaxNodes) {
      too_hard_ = true;
      return nullptr;
    }
    // 0.1\overline{6}
    if ((AtCommand("overline") || AtCommand("dot") || AtCommand("bar")) &&
        node->decimals >= 0 + (literal.back() == '.')) {
      return ParseRepeating(*node);
    }
    if ((AtSign(".") && Peek(1).kind == TokenKind::kCommand && (Peek(1).text == "overline" || Peek(1).text == "bar")) &&
        node->decimals < 0) {
      ++at_;
      node->decimals = 0;
      return ParseRepeating(*node);
    }
    return node;
  }

  ExprPtr ParseRepeating(const Expr& head) {
    const size_t begin = at_++;
    const bool braced = TakeSign("{");
    const Token token = Peek();
    if (token.kind != TokenKind::kNumber || token.text.size() > 100 ||
        token.text.find_first_not_of("0123456789") != std::string::npos) {
      at_ = begin;
      return std::make_shared<Expr>(head);
    }
    ++at_;
    if (braced && !TakeSign("}")) return nullptr;
    mpz_class period;
    mpz_class shift;
    mpz_ui_pow_ui(period.get_mpz_t(), 10, token.text.size());
    mpz_ui_pow_ui(shift.get_mpz_t(), 10, static_cast<unsigned long>(std::max(head.decimals, 0)));
    mpq_class tail(mpz_class(token.text, 10), mpz_class((period - 1) * shift));
    tail.canonicalize();
    return MakeNumber(mpq_class(head.number + tail));
  }

  ExprPtr ParseWord(const std::string& word) {
    // "Area = 12"
    if (Same(Peek(1), "=")) {
      ++at_;
      return IsSymbolRun(word) && AllLower(word) ? ProductOfLetters(word) : Make(ExprKind::kSymbol, {}, word);
    }
    if (!IsSymbolRun(word)) return nullptr;
    ++at_;
    return AllUpper(word) ? Make(ExprKind::kSymbol, {}, word) : ProductOfLetters(word);
  }

  ExprPtr ProductOfLetters(const std::string& word) {
    std::vector<ExprPtr> letters;
    for (const char c : word) letters.push_back(MakeSymbol(std::string(1, c)));
    return Make(ExprKind::kProduct, std::move(letters));
  }

  ExprPtr ParseName(const std::string& name) {
    if (!CanonicalFunction(name).empty()) return ParseFunction(name);
    std::string full = name;
    while (AtSign("_") && full.size() < 200) {
      ++at_;
      full += "_";
      if (AtSign("{")) {
        size_t end = at_ + 1;
        int depth = 1;
        while (end < tokens_.size() && tokens_[end].kind != TokenKind::kEnd) {
          if (Same(tokens_[end], "{")) ++depth;
          if (Same(tokens_[end], "}") && --depth == 0) break;
          full += tokens_[end].text;
          ++end;
        }
        if (end >= tokens_.size() || !Same(tokens_[end], "}")) return nullptr;
        at_ = end + 1;
      } else if (Peek().kind == TokenKind::kNumber || Peek().kind == TokenKind::kName || IsWordToken(Peek())) {
        full += Peek().text;
        ++at_;
      } else {
        return nullptr;
      }
    }
    return Make(ExprKind::kSymbol, {}, full);
  }

  ExprPtr ParseFunction(const std::string& name) {
    const Depth depth(this);
    if (!depth.ok()) return nullptr;
    ExprPtr subscript;
    ExprPtr power;
    for (int scripts = 0; scripts < 2; ++scripts) {
      if (AtSign("_") && subscript == nullptr) {
        ++at_;
        // \log_28 is the logarithm of 8 to base 2 when nothing else follows.
        const bool split = Peek().kind == TokenKind::kNumber && !StartsFactor(Peek(1));
        subscript = ParseArgument(split);
        if (subscript == nullptr) return nullptr;
      } else if (AtSign("^") && power == nullptr) {
        ++at_;
        power = ParseScript();
        if (power == nullptr) return nullptr;
      }
    }
    std::vector<ExprPtr> args;
    if (AtSign("(") || AtSign("[")) {
      args = ParseArguments();
    } else if (AtSign("{")) {
      ExprPtr group = ParseGroup();
      if (group != nullptr) args = group->kind == ExprKind::kList ? group->args : std::vector<ExprPtr>{group};
    } else {
      ExprPtr arg = ParseBareArgument();
      if (arg != nullptr) args = {arg};
    }
    if (args.empty() || too_hard_) return nullptr;
    std::string function = name;
    if (power != nullptr && power->kind == ExprKind::kNumber && power->number == -1) {
      const std::string inverse = "a" + name;
      if (!CanonicalFunction(inverse).empty()) {
        function = inverse;
        power = nullptr;
      }
    }
    if (subscript != nullptr) {
      if (name != "log") return nullptr;
      args.push_back(subscript);
    }
    ExprPtr call = Make(ExprKind::kFunction, std::move(args), function);
    return power == nullptr ? call : Make(ExprKind::kPower, {call, power});
  }

  static bool StartsFactor(const Token& token) {
    return token.kind == TokenKind::kNumber || token.kind == TokenKind::kName || token.kind == TokenKind::kCommand ||
           Same(token, "(") || Same(token, "{") || Same(token, "|");
  }

  // (a, b, c)
  std::vector<ExprPtr> ParseArguments() {
    ++at_;
    const bool in_abs = std::exchange(in_abs_, false);
    ExprPtr inside = ParseList(Close::kRound);
    in_abs_ = in_abs;
    if (inside == nullptr || !AtClose(Close::kRound)) return {};
    ++at_;
    if (inside->kind == ExprKind::kList && !inside->parenthesized) return inside->args;
    return {inside};
  }

  // \sin 2x, \sin \cos x: the product without signs up to the next function.
  ExprPtr ParseBareArgument() {
    std::vector<ExprPtr> factors;
    while (AtFactor()) {
      const Token& token = Peek();
      if (!factors.empty() && (token.kind == TokenKind::kSign ||
                               (token.kind == TokenKind::kName && !CanonicalFunction(token.text).empty()))) {
        break;
      }
      if (!factors.empty() && token.kind == TokenKind::kNumber) break;
      ExprPtr factor = ParseFactor();
      if (factor == nullptr || factors.size() > kMaxItems) return nullptr;
      factors.push_back(factor);
      if (factor->kind == ExprKind::kFunction) break;
    }
    if (factors.empty()) return nullptr;
    return factors.size() == 1 ? factors[0] : Make(ExprKind::kProduct, std::move(factors));
  }

  ExprPtr ParseCommand(const std::string& name) {
    if (name == "frac") {
      ExprPtr numerator = ParseArgument(true);
      ExprPtr denominator = numerator == nullptr ? nullptr : ParseArgument(true);
      if (denominator == nullptr) return nullptr;
      return Make(ExprKind::kQuotient, {numerator, denominator});
    }
    if (name == "sqrt") {
      ExprPtr index;
      if (AtSign("[")) {
        ++at_;
        index = ParseList(Close::kRound);
        if (index == nullptr || !TakeSign("]")) return nullptr;
      }
      ExprPtr radicand = ParseArgument();
      if (radicand == nullptr) return nullptr;
      if (index == nullptr) return Make(ExprKind::kFunction, {radicand}, "sqrt");
      ExprPtr exponent = Make(ExprKind::kQuotient, {MakeNumber(1), index});
      return Make(ExprKind::kPower, {radicand, exponent});
    }
    if (name == "binom" || name == "dbinom" || name == "tbinom") {
      ExprPtr n = ParseArgument(true);
      ExprPtr k = n == nullptr ? nullptr : ParseArgument(true);
      return k == nullptr ? nullptr : Make(ExprKind::kFunction, {n, k}, "binom");
    }
    if (name == "lfloor" || name == "lceil") {
      ExprPtr inside = ParseSum();
      if (inside == nullptr || !AtCommand(name == "lfloor" ? "rfloor" : "rceil")) return nullptr;
      ++at_;
      return Make(ExprKind::kFunction, {inside}, name == "lfloor" ? "floor" : "ceil");
    }
    if (name == "begin") return ParseEnvironment();
    if (name == "emptyset" || name == "varnothing") return Make(ExprKind::kSet, {});
    // Decorated and geometric names.
    for (const std::string_view mark : {"overline", "vec", "hat", "bar", "tilde", "overrightarrow", "widehat", "angle",
                                        "triangle", "widetilde", "overset", "stackrel", "dot", "ddot"}) {
      if (name != mark) continue;
      ExprPtr inside = ParseArgument();
      return inside == nullptr ? nullptr : Make(ExprKind::kSymbol, {}, name + " " + StructureKey(*inside));
    }
    if (name == "R" || name == "reals") return Make(ExprKind::kSymbol, {}, "\\mathbb R");
    return nullptr;
  }

  ExprPtr ParseBracket(const std::string& sign) {
    if (sign == "{") return ParseGroup();
    if (sign == "(" || sign == "[") {
      ++at_;
      const bool in_abs = std::exchange(in_abs_, false);
      ExprPtr inside = ParseList(Close::kRound);
      in_abs_ = in_abs;
      if (inside == nullptr || !AtClose(Close::kRound)) return nullptr;
      const std::string brackets = sign + Peek().text;
      ++at_;
      if (inside->kind == ExprKind::kList && !inside->parenthesized) {
        return Make(ExprKind::kTuple, inside->args, brackets);
      }
      auto node = std::make_shared<Expr>(*inside);
      node->parenthesized = true;
      return node;
    }
    if (sign == "\\{") {
      ++at_;
      const bool in_abs = std::exchange(in_abs_, false);
      ExprPtr inside = ParseList(Close::kSetBrace);
      in_abs_ = in_abs;
      if (inside == nullptr || !TakeSign("\\}")) return nullptr;
      if (inside->kind == ExprKind::kList && !inside->parenthesized) return Make(ExprKind::kSet, inside->args);
      return Make(ExprKind::kSet, {inside});
    }
    if (sign == "|" && !in_abs_) {
      ++at_;
      in_abs_ = true;
      ExprPtr inside = ParseSum();
      in_abs_ = false;
      if (inside == nullptr || !TakeSign("|")) return nullptr;
      return Make(ExprKind::kFunction, {inside}, "abs");
    }
    return nullptr;
  }

  ExprPtr ParseEnvironment() {
    const Depth depth(this);
    if (!depth.ok()) return nullptr;
    const std::string name = TakeEnvironmentName();
    constexpr std::array<std::string_view, 9> kMatrices = {"matrix",  "pmatrix", "bmatrix", "Bmatrix",    "vmatrix",
                                                           "Vmatrix", "array",   "cases",   "smallmatrix"};
    constexpr std::array<std::string_view, 6> kAligned = {"aligned", "align", "gathered",
                                                          "gather",  "split", "equation"};
    const bool matrix = std::find(kMatrices.begin(), kMatrices.end(), name) != kMatrices.end();
    if (!matrix && std::find(kAligned.begin(), kAligned.end(), name) == kAligned.end()) return nullptr;
    if (name == "array") {
      if (!AtSign("{")) return nullptr;
      while (!AtSign("}") && Peek().kind != TokenKind::kEnd) ++at_;
      ++at_;
    }
    const bool in_abs = std::exchange(in_abs_, false);
    std::vector<ExprPtr> cells;
    size_t columns = 0;
    size_t row = 0;
    bool regular = true;
    while (true) {
      while (row == 0 && (AtSign("\\\\") || AtCommand("hline"))) ++at_;  // empty rows
      if (AtCommand("end")) break;
      ExprPtr cell = ParseList(Close::kCell);
      if (cell == nullptr || cells.size() >= kMaxItems) {
        in_abs_ = in_abs;
        too_hard_ |= cell != nullptr;
        return nullptr;
      }
      cells.push_back(cell);
      ++row;
      if (TakeSign("&")) continue;
      if (columns == 0) columns = row;
      regular &= columns == row;
      row = 0;
      if (!TakeSign("\\\\")) break;
    }
    in_abs_ = in_abs;
    if (!AtCommand("end")) return nullptr;
    ++at_;
    TakeEnvironmentName();
    if (cells.empty() || !regular) return nullptr;
    if (!matrix) return cells.size() == 1 ? cells[0] : Make(ExprKind::kList, cells, ",");
    if (name == "cases" && columns == 1) return Make(ExprKind::kList, cells, "and");
    const bool named = name == "vmatrix" || name == "Vmatrix" || name == "cases";
    return Checked(MakeMatrix(std::move(cells), columns, named ? name : ""));
  }

  // {pmatrix}; without it the empty name.
  std::string TakeEnvironmentName() {
    if (!AtSign("{")) return {};
    ++at_;
    std::string name;
    while (!AtSign("}") && Peek().kind != TokenKind::kEnd && name.size() < 32) {
      if (Peek().text != "*") name += Peek().text;
      ++at_;
    }
    ++at_;
    at_ = std::min(at_, tokens_.size() - 1);
    return name;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  size_t nodes_ = 0;
  int depth_ = 0;
  int plus_minus_ = 0;
  bool in_abs_ = false;
  bool too_hard_ = false;
};

}  // namespace

ParseOutcome ParseAnswer(LexResult lexed) { return Parser(std::move(lexed)).Run(); }

}  // namespace pith::grade
