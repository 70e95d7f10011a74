// Tokens of an answer: LaTeX, plain text formulas and a few Unicode signs, brought to one alphabet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pith::grade {

enum class TokenKind : uint8_t {
  kNumber,      // 12, 3.5, .4, 1,000 (text "1000"), 1500E-1; always digits, at most one '.', perhaps an exponent
  kName,        // a symbol or function, canonical: "x", "theta", "sin", "pi", "infinity"
  kWord,        // a run of letters that is none of these: "apples", "xy"
  kText,        // the inside of \text{...} that holds words only
  kCommand,     // \frac and others that have no canonical sign, without the backslash
  kSign,        // + - * / ^ _ ( ) [ ] { } | , ; : = < > ! ' % & and "<=", ">=", "!=", "~=" (approximately), "+-", "-+",
                // "\{", "\}", "\\" (new row), "in", "cup", "cap", "setminus", "deg", "==" (congruent)
  kConnective,  // "and", "or"
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  bool space_before = false;
  bool in_text = false;  // kName: stood in \text{...}
  bool money = false;    // kNumber: behind a sign of money
};

struct LexResult {
  std::vector<Token> tokens;  // ends with kEnd
  bool too_long = false;      // a limit was met; the tokens are not the whole text
  // A comma between digits that can be read as a decimal point ("1,22", "0,5") or as a list. `decimal_comma_likely`
  // when the digits look like a decimal ("0,5", "1000,99").
  bool ambiguous_comma = false;
  bool decimal_comma_likely = false;
};

struct LexOptions {
  bool decimal_comma = false;  // read an ambiguous comma as a decimal point
};

// Unicode signs (minus, times, square root, superscripts, vulgar fractions, full-width and Arabic digits...) become
// LaTeX or ASCII; doubled backslashes of an escaped text become single ones.
std::string NormalizeSigns(std::string_view text);

// `text` as NormalizeSigns gives it.
LexResult Lex(std::string_view text, const LexOptions& options);

// Functions that are applied to what follows them ("sin", "log"): canonical name, or empty.
std::string_view CanonicalFunction(std::string_view name);

}  // namespace pith::grade
