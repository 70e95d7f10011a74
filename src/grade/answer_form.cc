#include "grade/answer_form.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "grade/answer_parser.h"
#include "grade/latex_lexer.h"
#include "grade/normalize.h"
#include "grade/work_budget.h"

namespace pith {

namespace {

constexpr int64_t kParseUnits = 12000;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool Drop(std::string_view* text, std::string_view front, std::string_view back) {
  if (text->size() < front.size() + back.size() || text->substr(0, front.size()) != front) return false;
  if (text->substr(text->size() - back.size()) != back) return false;
  text->remove_prefix(front.size());
  text->remove_suffix(back.size());
  return true;
}

// Whether the brace at `open` closes at the last byte.
bool BraceClosesAtEnd(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return i + 1 == text.size();
    }
  }
  return false;
}

// Blanks matter only between two digits.
std::string KeyOf(std::string_view text) {
  std::string key;
  bool blank = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '$') continue;
    if (IsBlank(c)) {
      blank = true;
      continue;
    }
    if (blank && !key.empty() && (IsDigit(key.back()) || key.back() == '.') && (IsDigit(c) || c == '.')) key += ' ';
    blank = false;
    key += c;
  }
  return key;
}

AnswerReading Read(const std::string& text, bool decimal_comma, bool letter_units, bool* too_hard,
                   grade::LexResult* lexed) {
  grade::LexOptions lex_options;
  lex_options.decimal_comma = decimal_comma;
  *lexed = grade::Lex(text, lex_options);
  AnswerReading reading;
  const auto parse = [&](std::vector<std::string> factors) {
    grade::ParseOptions options;
    options.factors = std::move(factors);
    options.letter_units = letter_units;
    grade::LexResult tokens = *lexed;
    return grade::ParseAnswer(std::move(tokens), std::move(options));
  };
  const auto normalized = [&](const grade::ExprPtr& tree) {
    grade::WorkBudget budget(kParseUnits);
    return grade::NormalizeTree(tree, &budget, &reading.too_large);
  };
  grade::ParseOutcome parsed = parse({});
  if (parsed.tree != nullptr && !parsed.heads.empty()) {
    const std::vector<std::string> all = parsed.heads;
    // A name that also stands alone is no function: x in x(x + 1).
    std::vector<std::string> alone;
    const std::vector<std::string> names = grade::FreeSymbols(*parsed.tree);
    std::copy_if(all.begin(), all.end(), std::back_inserter(alone),
                 [&](const std::string& head) { return std::binary_search(names.begin(), names.end(), head); });
    if (!alone.empty()) parsed = parse(alone);
    if (parsed.tree != nullptr && !parsed.heads.empty()) {
      if (const auto products = parse(all); products.tree != nullptr) reading.products = normalized(products.tree);
    }
  }
  reading.letter_unit = parsed.letter_unit;
  if (parsed.too_hard) *too_hard = true;
  if (parsed.tree == nullptr) return reading;
  reading.tree = normalized(parsed.tree);
  if (reading.tree == nullptr) *too_hard = true;
  if (reading.products != nullptr) {
    reading.heads = std::move(parsed.heads);
    reading.doubtful = parsed.doubtful;
  }
  return reading;
}

// Letters, integers and the marks of a sentence: nothing that is lost when only the words are compared.
bool IsProse(const std::vector<grade::Token>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const grade::Token& token = tokens[i];
    const auto letters = [&](size_t at) {
      const grade::TokenKind kind = tokens[at].kind;
      return kind == grade::TokenKind::kWord || kind == grade::TokenKind::kName;
    };
    switch (token.kind) {
      case grade::TokenKind::kWord:
      case grade::TokenKind::kText:
      case grade::TokenKind::kConnective:
      case grade::TokenKind::kEnd: break;
      case grade::TokenKind::kName:
        if (token.text[0] == '\\') return false;
        break;
      case grade::TokenKind::kNumber:
        if (token.text.find_first_not_of("0123456789") != std::string::npos) return false;
        break;
      case grade::TokenKind::kSign:
        // The hyphen of a word.
        if (token.text == "-" && i > 0 && letters(i - 1) && letters(i + 1) && !token.space_before &&
            !tokens[i + 1].space_before) {
          break;
        }
        if (token.text.size() != 1 || std::string_view(",.;:'!?()").find(token.text[0]) == std::string_view::npos)
          return false;
        break;
      default: return false;
    }
  }
  return true;
}

std::string JoinTokens(const std::vector<grade::Token>& tokens, char separator) {
  std::string joined;
  for (const grade::Token& token : tokens) joined += token.text + separator;
  return joined;
}

// Words of someone speaking, as they seldom stand in an answer.
size_t SpokenWords(const std::string& text) {
  constexpr std::string_view kSpoken[] = {
      "i",  "is",   "are", "was",  "would", "will", "can", "know", "you",     "we",   "they", "he", "she", "this", "it",
      "do", "does", "not", "have", "has",   "let",  "so",  "then", "because", "that", "my",   "me", "now", "what"};
  size_t count = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    std::string word = text.substr(begin, end - begin);
    for (char& c : word) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    count += static_cast<size_t>(std::count(std::begin(kSpoken), std::end(kSpoken), word));
    begin = end + 1;
  }
  return count;
}

void CountWords(const grade::Expr& expr, size_t* words, size_t* spoken) {
  if (expr.kind == grade::ExprKind::kText) {
    *words += 1 + static_cast<size_t>(std::count(expr.name.begin(), expr.name.end(), ' '));
    *spoken += SpokenWords(expr.name);
  }
  for (const grade::ExprPtr& arg : expr.args) CountWords(*arg, words, spoken);
}

// The letter of "(C)", "C.", "(C) 12", "\textbf{(C)}\ 12"; the rest goes to `body`.
char TakeChoice(std::string_view text, std::string_view* body) {
  constexpr std::string_view kWrappers[] = {"\\textbf{", "\\text{", "\\mathrm{", "\\mathbf{", "\\textnormal{", "**"};
  std::string_view rest = text;
  std::string_view close;
  for (const std::string_view wrapper : kWrappers) {
    if (rest.substr(0, wrapper.size()) == wrapper) {
      rest.remove_prefix(wrapper.size());
      close = wrapper == "**" ? "**" : "}";
      break;
    }
  }
  const bool bracket = !rest.empty() && rest[0] == '(';
  if (bracket) rest.remove_prefix(1);
  if (rest.empty() || rest[0] < 'A' || rest[0] > 'J') return '\0';
  const char letter = rest[0];
  rest.remove_prefix(1);
  bool marked = bracket;
  if (bracket) {
    if (rest.empty() || rest[0] != ')') return '\0';
    rest.remove_prefix(1);
  } else if (!rest.empty() && (rest[0] == ')' || rest[0] == '.' || rest[0] == ':')) {
    marked = true;
    rest.remove_prefix(1);
  }
  bool closed = close.empty();
  if (!closed && marked && !rest.empty() && rest[0] == ' ' && rest.substr(1, close.size()) == close)
    rest.remove_prefix(1);
  if (!closed && rest.substr(0, close.size()) == close) {
    rest.remove_prefix(close.size());
    closed = true;
  }
  if (closed && !marked && !rest.empty() && (rest[0] == '.' || rest[0] == ':')) {
    marked = true;
    rest.remove_prefix(1);
  }
  if (rest.empty()) return letter;
  if (!closed && rest == close) return letter;
  const bool gap =
      IsBlank(rest[0]) || rest.substr(0, 2) == "\\ " || rest.substr(0, 2) == "\\," || rest.substr(0, 5) == "\\quad";
  if (!marked || !gap || !closed) return '\0';
  if (rest.substr(0, 2) == "\\ " || rest.substr(0, 2) == "\\,") rest.remove_prefix(2);
  *body = TrimAnswer(rest);
  return letter;
}

// "negative 5", "minus 1/2": a sign in words.
std::string WithSignOfWords(std::string_view text) {
  for (const std::string_view word : {"negative ", "minus ", "Negative ", "Minus "}) {
    if (text.substr(0, word.size()) != word) continue;
    const std::string_view rest = text.substr(word.size());
    const char first = rest.empty() ? ' ' : rest[0];
    if ((first >= '0' && first <= '9') || first == '.' || rest.substr(0, 5) == "\\frac") return "-" + std::string(rest);
  }
  return std::string(text);
}

}  // namespace

std::string_view TrimAnswer(std::string_view text) {
  for (int rounds = 0; rounds < 64; ++rounds) {
    const std::string_view before = text;
    while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
    while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
    if (Drop(&text, "**", "**") || Drop(&text, "__", "__") || Drop(&text, "$$", "$$") || Drop(&text, "\\[", "\\]") ||
        Drop(&text, "\\(", "\\)") || Drop(&text, "`", "`") || Drop(&text, "\"", "\"")) {
      continue;
    }
    if (text.size() > 2 && std::count(text.begin(), text.end(), '$') == 2 && Drop(&text, "$", "$")) continue;
    if (text.size() > 2 && std::count(text.begin(), text.end(), '*') == 2 && Drop(&text, "*", "*")) continue;
    for (const std::string_view box : {"\\boxed", "\\fbox"}) {
      if (text.substr(0, box.size()) != box) continue;
      const size_t open = text.find_first_not_of(" \t\n", box.size());
      if (open != std::string_view::npos && text[open] == '{' && BraceClosesAtEnd(text, open)) {
        text.remove_suffix(1);
        text.remove_prefix(open + 1);
        break;
      }
    }
    // The end of a sentence; not the blank of a row break or a spacing command.
    if (!text.empty() && (text.back() == '.' || text.back() == ',' || text.back() == ';' || text.back() == '?') &&
        !(text.size() > 1 && text[text.size() - 2] == '\\')) {
      text.remove_suffix(1);
    }
    if (text.size() > 2 && text.substr(text.size() - 2) == "**" && text.find("**") == text.size() - 2)
      text.remove_suffix(2);
    if (text.size() == before.size()) break;
  }
  return text;
}

std::shared_ptr<const AnswerForm> MakeAnswerForm(std::string_view text, bool with_choice) {
  const std::string_view trimmed = TrimAnswer(text);
  if (trimmed.empty()) return nullptr;
  auto form = std::make_shared<AnswerForm>();
  form->text = std::string(text);
  if (trimmed.size() > grade::kMaxAnswerBytes) {
    form->key = KeyOf(trimmed);
    form->too_hard = true;
    return form;
  }
  const std::string signs = grade::NormalizeSigns(trimmed);
  const std::string plain = WithSignOfWords(TrimAnswer(signs));
  form->key = KeyOf(plain);
  if (with_choice) {
    std::string_view body;
    form->choice = TakeChoice(plain, &body);
    if (form->choice != '\0' && !body.empty()) form->choice_body = MakeAnswerForm(body, false);
  }
  grade::LexResult lexed;
  form->reading = Read(plain, false, false, &form->too_hard, &lexed);
  if (lexed.ambiguous_comma) {
    bool too_hard = false;
    grade::LexResult again;
    AnswerReading decimal = Read(plain, true, false, &too_hard, &again);
    if (decimal.tree != nullptr) {
      form->list_first = !lexed.decimal_comma_likely;
      form->other = std::move(decimal);
      if (!form->list_first) std::swap(form->reading, *form->other);
    }
  }
  if (form->reading.letter_unit > 0) {
    bool too_hard = false;
    grade::LexResult again;
    AnswerReading quantity = Read(plain, false, true, &too_hard, &again);
    if (quantity.tree != nullptr) form->quantity = std::move(quantity);
  }
  form->is_words = form->reading.tree == nullptr && !form->too_hard;
  if (form->is_words) {
    form->is_prose = IsProse(lexed.tokens);
    form->words = form->is_prose ? grade::WordsKey(JoinTokens(lexed.tokens, ' ')) : JoinTokens(lexed.tokens, '\x1f');
  }
  return form;
}

bool IsWholeAnswer(std::string_view text, size_t max_words) {
  const std::string_view trimmed = TrimAnswer(text);
  if (trimmed.empty() || trimmed.size() > 1024) return false;
  std::string_view body;
  const std::string plain = grade::NormalizeSigns(trimmed);
  if (TakeChoice(plain, &body) != '\0') return body.size() < 80 && std::count(body.begin(), body.end(), ' ') < 10;
  const grade::ParseOutcome parsed = grade::ParseAnswer(grade::Lex(plain, {}));
  if (parsed.too_hard) return true;
  if (parsed.tree == nullptr) return false;
  size_t words = 0;
  size_t spoken = 0;
  CountWords(*parsed.tree, &words, &spoken);
  return words <= max_words && spoken < 2;
}

}  // namespace pith
