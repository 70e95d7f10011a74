// Numbers, names, functions, commands, brackets and environments.
#include <array>
#include <cstdlib>
#include <memory>

#include "grade/parser.h"

namespace pith::grade {

namespace {

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

}  // namespace

ExprPtr Parser::ParsePrimary() {
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

ExprPtr Parser::ParseNumber(const std::string& literal) {
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

ExprPtr Parser::ParseRepeating(const Expr& head) {
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

ExprPtr Parser::ParseWord(const std::string& word) {
  // Matrix([[1, 2], [3, 4]])
  if (word == "Matrix" && Same(Peek(1), "(")) {
    ++at_;
    ExprPtr rows = ParseBracket("(");
    return rows == nullptr ? nullptr : MatrixFromRows(*rows);
  }
  // "Area = 12"
  if (Same(Peek(1), "=")) {
    ++at_;
    return IsSymbolRun(word) && IsLowerRun(word) ? ProductOfLetters(word) : Make(ExprKind::kSymbol, {}, word);
  }
  if (!IsSymbolRun(word)) return nullptr;
  ++at_;
  return IsUpperRun(word) ? Make(ExprKind::kSymbol, {}, word) : ProductOfLetters(word);
}

ExprPtr Parser::MatrixFromRows(const Expr& rows) {
  if (rows.kind != ExprKind::kTuple || rows.args.empty()) return nullptr;
  // One row comes without a tuple of rows around it.
  if (rows.args[0]->kind != ExprKind::kTuple) return Checked(MakeMatrix(rows.args, rows.args.size()));
  std::vector<ExprPtr> cells;
  const size_t columns = rows.args[0]->args.size();
  for (const ExprPtr& row : rows.args) {
    if (row->kind != ExprKind::kTuple || row->args.size() != columns || cells.size() > kMaxItems) return nullptr;
    cells.insert(cells.end(), row->args.begin(), row->args.end());
  }
  return Checked(MakeMatrix(std::move(cells), columns));
}

ExprPtr Parser::ProductOfLetters(const std::string& word) {
  std::vector<ExprPtr> letters;
  for (const char c : word) letters.push_back(MakeSymbol(std::string(1, c)));
  return Make(ExprKind::kProduct, std::move(letters));
}

ExprPtr Parser::ParseName(const std::string& name) {
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

ExprPtr Parser::ParseFunction(const std::string& name) {
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

std::vector<ExprPtr> Parser::ParseArguments() {
  ++at_;
  const bool in_abs = std::exchange(in_abs_, false);
  ExprPtr inside = ParseList(Close::kRound);
  in_abs_ = in_abs;
  if (inside == nullptr || !AtClose(Close::kRound)) return {};
  ++at_;
  if (inside->kind == ExprKind::kList && !inside->parenthesized) return inside->args;
  return {inside};
}

ExprPtr Parser::ParseBareArgument() {
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

ExprPtr Parser::ParseCommand(const std::string& name) {
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

ExprPtr Parser::ParseBracket(const std::string& sign) {
  if (sign == "{") return ParseGroup();
  if (sign == "(" || sign == "[") {
    // Read before, and found to be a factor.
    if (bracket_ != nullptr && at_ == bracket_begin_) {
      at_ = bracket_end_;
      return std::exchange(bracket_, nullptr);
    }
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
    const bool where = TakeSetVariable();
    const bool in_abs = std::exchange(in_abs_, false);
    ExprPtr inside = ParseList(Close::kSetBrace);
    in_abs_ = in_abs;
    if (inside == nullptr || !TakeSign("\\}")) return nullptr;
    if (where) return Make(ExprKind::kSet, {inside}, "where");
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

bool Parser::TakeSetVariable() {
  if (Peek().kind != TokenKind::kName) return false;
  size_t at = 1;
  if (Same(Peek(at), "in") && Peek(at + 1).kind == TokenKind::kName) at += 2;
  if (!Same(Peek(at), "|") && !Same(Peek(at), ":")) return false;
  at_ += at + 1;
  return true;
}

ExprPtr Parser::ParseEnvironment() {
  const Depth depth(this);
  if (!depth.ok()) return nullptr;
  const std::string name = TakeEnvironmentName();
  constexpr std::array<std::string_view, 9> kMatrices = {"matrix",  "pmatrix", "bmatrix", "Bmatrix",    "vmatrix",
                                                         "Vmatrix", "array",   "cases",   "smallmatrix"};
  const bool matrix = std::find(kMatrices.begin(), kMatrices.end(), name) != kMatrices.end();
  if (!matrix) return nullptr;
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
  if (name == "cases" && columns == 1) return Make(ExprKind::kList, cells, "and");
  const bool named = name == "vmatrix" || name == "Vmatrix" || name == "cases";
  return Checked(MakeMatrix(std::move(cells), columns, named ? name : ""));
}

std::string Parser::TakeEnvironmentName() {
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

}  // namespace pith::grade
