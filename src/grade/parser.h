// The parser of answers: one class, written in three files: answer_parser.cc (lists, relations, sets, quantities),
// value_parser.cc (sums, products, powers) and primary_parser.cc (numbers, names, commands, brackets). Recursive
// descent; every level counts in Depth, every node in Make, so that depth and size are bounded.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grade/answer_parser.h"
#include "grade/work_budget.h"

namespace pith::grade {

// Words that make a text prose: no quantity, unit or product is spelled with them.
bool IsProseWord(const std::string& word);
bool IsUpperRun(const std::string& word);
bool IsLowerRun(const std::string& word);
// A run of letters that is a product of symbols (xy, abc) or a point name (AB) rather than a word.
bool IsSymbolRun(const std::string& word);

// All Parse functions return null when the tokens are not what they parse, or a limit was met.
class Parser {
 public:
  Parser(LexResult lexed, ParseOptions options)
      : options_(std::move(options)), tokens_(std::move(lexed.tokens)), too_hard_(lexed.too_long) {
    FlattenAligned();
  }

  ParseOutcome Run();

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

  // Takes the marks of aligned equations out of the tokens: "x &= 3 + 9 \\\\ &= 12" is one chain.
  void FlattenAligned();

  const Token& Peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool AtSign(std::string_view sign) const { return Peek().kind == TokenKind::kSign && Peek().text == sign; }
  bool AtCommand(std::string_view name) const { return Peek().kind == TokenKind::kCommand && Peek().text == name; }
  bool TakeSign(std::string_view sign);

  ExprPtr Make(ExprKind kind, std::vector<ExprPtr> args, std::string name = {});
  ExprPtr Checked(ExprPtr node);

  static bool Same(const Token& token, std::string_view sign) {
    return token.kind == TokenKind::kSign && token.text == sign;
  }

  bool AtClose(Close close) const;

  bool AtSeparator(Close close) const;

  // Items up to the closing token, which is not taken. One item stands for itself.
  ExprPtr ParseList(Close close);

  bool IsWordToken(const Token& token) const {
    return token.kind == TokenKind::kWord || token.kind == TokenKind::kText;
  }

  // Words only, up to the next separator.
  ExprPtr TryText(Close close);

  // "odd", "yes" and "one" are words; "xy" and "abc" are products.
  static bool HasVowels(const std::string& word) {
    return word.size() >= 3 && IsLowerRun(word) && word.find_first_of("eiou") != std::string::npos;
  }

  ExprPtr ParseItem(Close close);

  ExprPtr ParseSets();

  // "(0,1) U (2,3)" in plain text.
  bool TakeUnionLetter();

  ExprPtr ParseRatio();

  // A sum and the unit after it.
  ExprPtr ParseQuantity();

  // "m/s" behind a number and a blank: a unit, not a product of symbols.
  bool AtRate() const;

  // "m" behind "5 " or in \text, with nothing but a power behind it: a unit or a symbol.
  bool AtLetterUnit() const { return IsLetterUnit(at_); }
  bool IsLetterUnit(size_t at) const;

  bool FollowedByEnd() const { return IsEnd(Peek(1)); }
  static bool IsEnd(const Token& next) {
    return next.kind == TokenKind::kEnd || Same(next, ",") || Same(next, ".") || next.kind == TokenKind::kConnective;
  }

  ExprPtr ParseSum();

  // Whether the next token begins a factor of an implicit product.
  bool AtFactor() const;
  bool IsUnionLetterHere() const;

  static bool IsPlainInteger(const ExprPtr& x) {
    return x->kind == ExprKind::kNumber && x->decimals < 0 && !x->parenthesized && x->number.get_den() == 1;
  }

  // After an integer literal: a proper fraction of integers makes a mixed number. Null and at_ unchanged when it is
  // none.
  ExprPtr TryMixed(const ExprPtr& whole);

  ExprPtr ParseTerm();

  ExprPtr ParseSignedFactor();

  // A primary with powers and what else follows it.
  ExprPtr ParseFactor();

  // Whether `base` in front of a bracket may be the name of a function: f, f', f^{-1}.
  static bool MayBeHead(const Expr& base);
  // f(x): null when it is a product (the bracket is kept for the next factor) or the bracket cannot be read.
  ExprPtr TryApplication(const ExprPtr& head);

  ExprPtr Primed(const ExprPtr& base) {
    return base->kind == ExprKind::kSymbol ? Make(ExprKind::kSymbol, {}, base->name + "'") : nullptr;
  }

  bool TakeDegree();

  // An exponent: a group, or one signed primary.
  ExprPtr ParseScript();

  // A number with its base as the subscript: 204_5.
  ExprPtr ParseBase(const ExprPtr& digits);

  ExprPtr ParseGroup();

  // The argument of a command: a group, or one token (of a number one digit when `one_digit`).
  ExprPtr ParseArgument(bool one_digit = false);

  ExprPtr ParsePrimary();

  ExprPtr ParseNumber(const std::string& literal);

  ExprPtr ParseRepeating(const Expr& head);

  ExprPtr ParseWord(const std::string& word);

  ExprPtr MatrixFromRows(const Expr& rows);
  ExprPtr ProductOfLetters(const std::string& word);

  ExprPtr ParseName(const std::string& name);

  ExprPtr ParseFunction(const std::string& name);

  static bool StartsFactor(const Token& token) {
    return token.kind == TokenKind::kNumber || token.kind == TokenKind::kName || token.kind == TokenKind::kCommand ||
           Same(token, "(") || Same(token, "{") || Same(token, "|");
  }

  // (a, b, c)
  std::vector<ExprPtr> ParseArguments();

  // \sin 2x, \sin \cos x: the product without signs up to the next function.
  ExprPtr ParseBareArgument();

  ExprPtr ParseCommand(const std::string& name);

  ExprPtr ParseBracket(const std::string& sign);

  // The head of a set that is given by a condition: "x |", "x \in \mathbb{R} :".
  bool TakeSetVariable();

  ExprPtr ParseEnvironment();

  // {pmatrix}; without it the empty name.
  std::string TakeEnvironmentName();

  ParseOptions options_;
  std::vector<std::string> heads_;
  bool doubtful_ = false;
  // The bracket that was read last, for TryApplication.
  size_t bracket_begin_ = 0;
  size_t bracket_end_ = 0;
  ExprPtr bracket_;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  size_t nodes_ = 0;
  int depth_ = 0;
  int plus_minus_ = 0;
  bool in_abs_ = false;
  bool too_hard_ = false;
};

}  // namespace pith::grade
