// Lists, relations, sets and quantities.
#include "grade/answer_parser.h"

#include <array>
#include <memory>
#include <unordered_set>

#include "grade/parser.h"
#include "grade/units.h"

namespace pith::grade {

namespace {

constexpr size_t kMaxUnitWords = 6;

}  // namespace

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

bool IsUpperRun(const std::string& word) {
  return std::all_of(word.begin(), word.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}
bool IsLowerRun(const std::string& word) {
  return std::all_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

bool IsSymbolRun(const std::string& word) {
  if (IsProseWord(word) || FindUnit(word) || IsPercentWord(word) || IsUnitHelper(word)) return false;
  if (IsUpperRun(word)) return word.size() <= 4;
  return IsLowerRun(word) && word.size() <= 3;
}

void Parser::FlattenAligned() {
  constexpr std::array<std::string_view, 6> kAligned = {"aligned", "align", "gathered", "gather", "split", "equation"};
  std::vector<Token> kept;
  kept.reserve(tokens_.size());
  int aligned = 0;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const Token& token = tokens_[i];
    const bool edge = token.kind == TokenKind::kCommand && (token.text == "begin" || token.text == "end");
    if (edge && i + 2 < tokens_.size() && Same(tokens_[i + 1], "{") &&
        std::find(kAligned.begin(), kAligned.end(), tokens_[i + 2].text) != kAligned.end()) {
      aligned += token.text == "begin" ? 1 : -1;
      while (i < tokens_.size() && !Same(tokens_[i], "}")) ++i;
      if (i >= tokens_.size()) break;
      continue;
    }
    if (aligned > 0 && Same(token, "&")) continue;
    const bool continued = i + 1 < tokens_.size() && Same(token, "\\\\") && Same(tokens_[i + 1], "&");
    if (aligned > 0 && continued) continue;
    kept.push_back(token);
  }
  if (kept.empty() || kept.back().kind != TokenKind::kEnd) kept.push_back(tokens_.back());
  tokens_ = std::move(kept);
}

ParseOutcome Parser::Run() {
  if (too_hard_) return {nullptr, true, {}, false, 0};
  int letter_unit = 0;
  for (size_t at = 1; at < tokens_.size(); ++at) {
    if (IsLetterUnit(at)) letter_unit = std::max(letter_unit, tokens_[at].in_text ? 2 : 1);
  }
  ExprPtr tree = ParseList(Close::kEnd);
  if (tree != nullptr && Peek().kind != TokenKind::kEnd) tree = nullptr;
  if (too_hard_) return {nullptr, true, {}, false, 0};
  return {tree, false, std::move(heads_), doubtful_, letter_unit};
}

bool Parser::TakeSign(std::string_view sign) {
  if (!AtSign(sign)) return false;
  ++at_;
  return true;
}

ExprPtr Parser::Make(ExprKind kind, std::vector<ExprPtr> args, std::string name) {
  if (++nodes_ > kMaxNodes) {
    too_hard_ = true;
    return nullptr;
  }
  return Checked(MakeNode(kind, std::move(args), std::move(name)));
}

ExprPtr Parser::Checked(ExprPtr node) {
  if (node->height <= kMaxHeight) return node;
  too_hard_ = true;
  return nullptr;
}

bool Parser::AtClose(Close close) const {
  switch (close) {
    case Close::kEnd: return Peek().kind == TokenKind::kEnd;
    case Close::kBrace: return AtSign("}") || AtCommand("over");
    case Close::kRound: return AtSign(")") || AtSign("]");
    case Close::kSetBrace: return AtSign("\\}");
    case Close::kCell: return AtSign("&") || AtSign("\\\\") || AtCommand("end");
  }
  return false;
}

bool Parser::AtSeparator(Close close) const {
  const Token& token = Peek();
  if (token.kind == TokenKind::kConnective) return true;
  if (token.kind != TokenKind::kSign) return false;
  if (token.text == "," || token.text == ";") return true;
  return token.text == "\\\\" && close == Close::kEnd;
}

ExprPtr Parser::ParseList(Close close) {
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

ExprPtr Parser::TryText(Close close) {
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

ExprPtr Parser::ParseItem(Close close) {
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

ExprPtr Parser::ParseSets() {
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

bool Parser::TakeUnionLetter() {
  const Token& token = Peek();
  if (token.kind != TokenKind::kName || (token.text != "U" && token.text != "u")) return false;
  if (!(Same(Peek(1), "(") || Same(Peek(1), "[") || Same(Peek(1), "\\{"))) return false;
  if (at_ == 0 || !(Same(tokens_[at_ - 1], ")") || Same(tokens_[at_ - 1], "]") || Same(tokens_[at_ - 1], "\\}"))) {
    return false;
  }
  ++at_;
  return true;
}

bool Parser::AtRate() const {
  const auto unit = [](const Token& token) {
    return (token.kind == TokenKind::kName || token.kind == TokenKind::kWord) && FindUnit(token.text).has_value();
  };
  return Peek().kind == TokenKind::kName && Peek().space_before && at_ > 0 &&
         tokens_[at_ - 1].kind == TokenKind::kNumber && unit(Peek()) && Same(Peek(1), "/") && unit(Peek(2));
}

bool Parser::IsLetterUnit(size_t at) const {
  const auto token = [this](size_t i) -> const Token& { return tokens_[std::min(i, tokens_.size() - 1)]; };
  const Token& letter = token(at);
  if (letter.kind != TokenKind::kName || letter.text.size() != 1 || !FindUnit(letter.text)) return false;
  if (at == 0 || token(at - 1).kind != TokenKind::kNumber || !(letter.space_before || letter.in_text)) return false;
  size_t next = at + 1;
  if (Same(token(next), "^")) {
    const bool braced = Same(token(next + 1), "{");
    next += braced ? 4 : 2;
    if (token(next - (braced ? 2 : 1)).kind != TokenKind::kNumber) return false;
  }
  return IsEnd(token(next));
}

ExprPtr Parser::ParseRatio() {
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

ExprPtr Parser::ParseQuantity() {
  const Depth depth(this);
  if (!depth.ok()) return nullptr;
  size_t first = at_;
  while (Same(tokens_[first], "-") || Same(tokens_[first], "+")) ++first;
  ExprPtr value = ParseSum();
  if (value == nullptr) return nullptr;
  std::string unit = tokens_[first].money ? "$" : "";
  size_t words = 0;
  const auto add = [&](std::string_view word) { unit.append(unit.empty() ? "" : " ").append(word); };
  while (true) {
    const Token& token = Peek();
    std::string word;
    if (IsWordToken(token) || AtRate() || (options_.letter_units && AtLetterUnit()) ||
        (token.kind == TokenKind::kName && FindUnit(token.text) && words > 0) ||
        (token.kind == TokenKind::kName && token.text == "min" && FollowedByEnd())) {
      word = token.text;
    } else if (Same(token, "/") && !unit.empty()) {
      word = "/";
    } else if (token.kind == TokenKind::kCommand && token.text == "square") {
      word = "square";
    } else {
      break;
    }
    if (token.kind != TokenKind::kText && IsProseWord(word)) return nullptr;
    if (++words > kMaxUnitWords) return nullptr;
    ++at_;
    // "5 squared" is no unit: a power where it is plain of what.
    if (unit.empty() && (word == "squared" || word == "cubed" || word == "factorial")) {
      if (value->kind != ExprKind::kNumber || value->number < 0 || word == "factorial") return nullptr;
      value = Make(ExprKind::kPower, {value, MakeNumber(word == "squared" ? 2 : 3)});
      if (value == nullptr) return nullptr;
      continue;
    }
    // "5 million people": the number is the product.
    std::string_view rest = word;
    while (unit.empty() || unit == "$") {
      const std::string_view head = rest.substr(0, std::min(rest.find(' '), rest.size()));
      const auto multiplier = FindMultiplier(head);
      if (!multiplier) break;
      value = Make(ExprKind::kProduct, {value, MakeNumber(*multiplier)});
      if (value == nullptr) return nullptr;
      rest.remove_prefix(std::min(head.size() + 1, rest.size()));
    }
    if (!rest.empty()) add(rest);
    if (AtSign(".") && Peek(1).kind != TokenKind::kEnd) ++at_;  // "sq. ft", "p.m."
    if (TakeSign("^")) {
      const bool braced = TakeSign("{");
      if (Peek().kind != TokenKind::kNumber || (braced && !Same(Peek(1), "}"))) return nullptr;
      unit += "^" + Peek().text;
      at_ += braced ? 2 : 1;
    }
  }
  if (unit.empty()) return value;
  const UnitPhrase phrase = ReadUnitPhrase(unit);
  for (const std::string& word : phrase.words) {
    if (IsPercentWord(word)) return Make(ExprKind::kQuantity, {value}, "percent");
  }
  if (phrase.dimensions == std::map<std::string, long>{{"degrees", 1}}) {
    return Make(ExprKind::kQuantity, {value}, "degree");
  }
  // "5 feet 3 inches"
  if (Peek().kind == TokenKind::kNumber && words > 0 && phrase.dimensions.size() == 1) {
    const ExprPtr rest = ParseQuantity();
    if (rest == nullptr || rest->kind != ExprKind::kQuantity) return nullptr;
    const UnitPhrase smaller = ReadUnitPhrase(rest->name);
    if (smaller.dimensions != phrase.dimensions || smaller.factor >= phrase.factor) return nullptr;
    const ExprPtr scale = MakeNumber(mpq_class(smaller.factor / phrase.factor));
    value = Make(ExprKind::kSum, {value, Make(ExprKind::kProduct, {scale, rest->args[0]})});
    if (value == nullptr) return nullptr;
  }
  return Make(ExprKind::kQuantity, {value}, unit);
}

ParseOutcome ParseAnswer(LexResult lexed, ParseOptions options) {
  return Parser(std::move(lexed), std::move(options)).Run();
}

}  // namespace pith::grade
