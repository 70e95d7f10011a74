// Unicode signs, foreign digits and doubled backslashes.
#include <array>
#include <optional>
#include <utility>

#include "grade/latex_lexer.h"

namespace pith::grade {

namespace {

struct SignSpelling {
  std::string_view written;
  std::string_view plain;
};
// Unicode spellings and what they stand for.
constexpr SignSpelling kSpellings[] = {
    {"−", "-"},
    {"–", "-"},
    {"—", "-"},
    {"‐", "-"},
    {"－", "-"},
    {"﹣", "-"},
    {"⁄", "/"},
    {"∕", "/"},
    {"／", "/"},
    {"⌊", "\\lfloor "},
    {"⌋", "\\rfloor "},
    {"⌈", "\\lceil "},
    {"⌉", "\\rceil "},
    {"×", "\\times "},
    {"÷", "/"},
    {"·", "\\cdot "},
    {"⋅", "\\cdot "},
    {"∙", "\\cdot "},
    {"∗", "*"},
    {"π", "\\pi "},
    {"√", "\\sqrt "},
    {"∞", "\\infty "},
    {"≤", "\\le "},
    {"≥", "\\ge "},
    {"⩽", "\\le "},
    {"⩾", "\\ge "},
    {"≠", "\\ne "},
    {"≈", "\\approx "},
    {"±", "\\pm "},
    {"∓", "\\mp "},
    {"∪", "\\cup "},
    {"∩", "\\cap "},
    {"∈", "\\in "},
    {"°", "^\\circ "},
    {"º", "^\\circ "},
    {"²", "^{2}"},
    {"³", "^{3}"},
    {"¹", "^{1}"},
    {"⁴", "^{4}"},
    {"⁵", "^{5}"},
    {"⁶", "^{6}"},
    {"⁷", "^{7}"},
    {"⁸", "^{8}"},
    {"⁹", "^{9}"},
    {"⁰", "^{0}"},
    {"⁻¹", "^{-1}"},
    {"½", "\\frac{1}{2}"},
    {"⅓", "\\frac{1}{3}"},
    {"⅔", "\\frac{2}{3}"},
    {"¼", "\\frac{1}{4}"},
    {"¾", "\\frac{3}{4}"},
    {"⅕", "\\frac{1}{5}"},
    {"⅛", "\\frac{1}{8}"},
    {"θ", "\\theta "},
    {"α", "\\alpha "},
    {"β", "\\beta "},
    {"γ", "\\gamma "},
    {"λ", "\\lambda "},
    {"μ", "\\mu "},
    {"φ", "\\phi "},
    {"ω", "\\omega "},
    {"Ω", "\\Omega "},
    {"ℝ", "\\mathbb{R}"},
    {"∅", "\\emptyset "},
    {"₀", "_{0}"},
    {"₁", "_{1}"},
    {"₂", "_{2}"},
    {"₃", "_{3}"},
    {"₄", "_{4}"},
    {"₅", "_{5}"},
    {"₆", "_{6}"},
    {"₇", "_{7}"},
    {"₈", "_{8}"},
    {"₉", "_{9}"},
    {"\xC2\xA0", " "},
    {"\xE2\x80\xAF", " "},
    {"\xE2\x80\x89", " "},
    {"\xE3\x80\x80", " "},
    {"“", "\""},
    {"”", "\""},
    {"‘", "'"},
    {"’", "'"},
    {"′", "'"},
    {"，", ", "},
    {"；", "; "},
    {"：", ": "},
    {"（", "("},
    {"）", ")"},
    {"％", "%"},
    {"＝", "="},
    {"＋", "+"},
    {"＄", "$"},
    {"。", ". "},
    {"、", ", "},
    {"⟨", "("},
    {"⟩", ")"},
    {"∶", ":"},
    {"\xEF\xBB\xBF", ""},
    {"→", "\\to "},
    {"£", "$"},
    {"€", "$"},
    {"¥", "$"},
    {"₹", "$"},
};

// Two-byte digits (Arabic-Indic U+0660, Persian U+06F0) and full-width digits (U+FF10): the digit, and its bytes.
std::optional<std::pair<char, size_t>> ForeignDigit(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U; };
  if (byte(0) == 0xD9 && byte(1) >= 0xA0 && byte(1) <= 0xA9)
    return std::pair{static_cast<char>('0' + byte(1) - 0xA0), 2};
  if (byte(0) == 0xDB && byte(1) >= 0xB0 && byte(1) <= 0xB9)
    return std::pair{static_cast<char>('0' + byte(1) - 0xB0), 2};
  if (byte(0) == 0xEF && byte(1) == 0xBC && byte(2) >= 0x90 && byte(2) <= 0x99) {
    return std::pair{static_cast<char>('0' + byte(2) - 0x90), 3};
  }
  return std::nullopt;
}

// The text was escaped once more than it should be: \\frac, \\begin, ... A row break is never followed by these
// letters.
bool IsDoubleEscaped(std::string_view text) {
  constexpr std::array<std::string_view, 23> kCommands = {
      "frac", "dfrac", "tfrac", "sqrt", "begin", "end",   "left", "right", "text",   "le ", "ge ", "leq",
      "geq",  "boxed", "fbox",  "cup",  "cdot",  "times", "pm",   "infty", "mathrm", "sin", "cos"};
  for (size_t at = text.find("\\\\"); at != std::string_view::npos; at = text.find("\\\\", at + 1)) {
    if (at > 0 && text[at - 1] == '\\') continue;
    const std::string_view rest = text.substr(at + 2, 8);
    for (const std::string_view command : kCommands) {
      if (rest.substr(0, command.size()) == command) return true;
    }
  }
  return false;
}

}  // namespace

std::string NormalizeSigns(std::string_view text) {
  const bool doubled = IsDoubleEscaped(text);
  std::string out;
  out.reserve(text.size() + 16);
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (doubled && c == '\\' && at + 1 < text.size() && text[at + 1] == '\\') {
      out += '\\';
      at += 2;
      continue;
    }
    if (static_cast<unsigned char>(c) < 0x80) {
      out += c;
      ++at;
      continue;
    }
    if (const auto digit = ForeignDigit(text, at)) {
      out += digit->first;
      at += digit->second;
      continue;
    }
    bool replaced = false;
    for (const auto& [written, plain] : kSpellings) {
      if (text.substr(at, written.size()) == written) {
        out += plain;
        at += written.size();
        replaced = true;
        break;
      }
    }
    if (!replaced) {
      out += c;
      ++at;
    }
  }
  return out;
}

}  // namespace pith::grade
