// The rewriting of pre-tokenizer patterns; see split_regex.h.
#include <array>
#include <string>

#include "model/split_regex.h"
#include "model/utf8.h"

namespace pith {

namespace {

struct CodeRange {
  char32_t first, last;
};

// Characters of general category L and N that Unicode 15.0 to 16.0 added to 14.0, found by comparing the two libraries
// over all code points.
constexpr std::array kRecentLetters = {
    CodeRange{0x1C89, 0x1C8A},   CodeRange{0xA7CB, 0xA7CD},   CodeRange{0xA7DA, 0xA7DC},   CodeRange{0x105C0, 0x105F3},
    CodeRange{0x10D4A, 0x10D65}, CodeRange{0x10D6F, 0x10D85}, CodeRange{0x10EC2, 0x10EC4}, CodeRange{0x1123F, 0x11240},
    CodeRange{0x11380, 0x11389}, CodeRange{0x1138B, 0x1138B}, CodeRange{0x1138E, 0x1138E}, CodeRange{0x11390, 0x113B5},
    CodeRange{0x113B7, 0x113B7}, CodeRange{0x113D1, 0x113D1}, CodeRange{0x113D3, 0x113D3}, CodeRange{0x11BC0, 0x11BE0},
    CodeRange{0x11F02, 0x11F02}, CodeRange{0x11F04, 0x11F10}, CodeRange{0x11F12, 0x11F33}, CodeRange{0x1342F, 0x1342F},
    CodeRange{0x13441, 0x13446}, CodeRange{0x13460, 0x143FA}, CodeRange{0x16100, 0x1611D}, CodeRange{0x16D40, 0x16D6C},
    CodeRange{0x18CFF, 0x18CFF}, CodeRange{0x1B132, 0x1B132}, CodeRange{0x1B155, 0x1B155}, CodeRange{0x1DF25, 0x1DF2A},
    CodeRange{0x1E030, 0x1E06D}, CodeRange{0x1E4D0, 0x1E4EB}, CodeRange{0x1E5D0, 0x1E5ED}, CodeRange{0x1E5F0, 0x1E5F0},
    CodeRange{0x2B739, 0x2B739}, CodeRange{0x2EBF0, 0x2EE5D}, CodeRange{0x31350, 0x323AF}};
constexpr std::array kRecentNumbers = {
    CodeRange{0x10D40, 0x10D49}, CodeRange{0x116D0, 0x116E3}, CodeRange{0x11BF0, 0x11BF9}, CodeRange{0x11F50, 0x11F59},
    CodeRange{0x16130, 0x16139}, CodeRange{0x16D70, 0x16D79}, CodeRange{0x1CCF0, 0x1CCF9}, CodeRange{0x1D2C0, 0x1D2D3},
    CodeRange{0x1E4F0, 0x1E4F9}, CodeRange{0x1E5F1, 0x1E5FA}};

// Unicode's White_Space, as the inside of a character class. PCRE2's own \s adds U+180E.
constexpr std::string_view kWhiteSpace = "\\t-\\r\\x{85}\\p{Z}";

template <size_t N>
std::string ClassItems(std::string_view property, const std::array<CodeRange, N>& recent) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  const auto hex = [&](char32_t code) {
    std::string digits;
    for (int shift = 20; shift >= 0; shift -= 4) digits += kDigits[(code >> shift) & 0xF];
    return "\\x{" + digits + "}";
  };
  std::string items(property);
  for (const CodeRange& range : recent) items += hex(range.first) + "-" + hex(range.last);
  return items;
}

// A one-pass reader of patterns. Position moves forward only.
class Translator {
 public:
  Translator(std::string_view pattern, bool recent) : pattern_(pattern), recent_(recent) {}

  Result<std::string> Run() {
    while (at_ < pattern_.size()) {
      PITH_RETURN_IF_ERROR(in_class_ ? ClassItem() : Item());
    }
    if (in_class_) return Unsupported("an unclosed character class");
    return std::move(out_);
  }

 private:
  Error Unsupported(const std::string& what) const {
    return {ErrorCode::kUnsupported, "the pre-tokenizer pattern '" + std::string(pattern_.substr(0, 200)) + "' uses " +
                                         what + " (at byte " + std::to_string(at_) + "), which is not supported"};
  }

  bool Next(std::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }

  Status Item() {
    const char c = pattern_[at_];
    if (c == '\\') return Escape();
    if (c == '[') return OpenClass();
    if (c == '(') return OpenGroup();
    if (c == '^' || c == '$') return Unsupported("an anchor");
    if (c == '.') {
      out_ += "[^\\n]";
      ++at_;
      return {};
    }
    if (c == '{') return Interval();
    out_ += c;
    ++at_;
    return {};
  }

  Status OpenGroup() {
    for (const std::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (Next(opening)) {
        out_ += opening;
        return {};
      }
    }
    if (pattern_.substr(at_, 2) == "(?" || pattern_.substr(at_, 2) == "(*") return Unsupported("a special group");
    ++at_;
    out_ += "(?:";  // what a group captured is never asked for
    return {};
  }

  Status Interval() {
    const size_t close = pattern_.find('}', at_);
    const std::string_view inside =
        close == std::string_view::npos ? std::string_view() : pattern_.substr(at_ + 1, close - at_ - 1);
    if (inside.empty() || inside.find_first_not_of("0123456789,") != std::string_view::npos || inside[0] == ',') {
      return Unsupported("an unusual interval");
    }
    // "{2,3}+" is possessive in one library and a repetition in the other.
    if (pattern_.substr(close + 1, 1) == "+") return Unsupported("a possessive interval");
    out_ += pattern_.substr(at_, close + 1 - at_);
    at_ = close + 1;
    return {};
  }

  Status OpenClass() {
    ++at_;
    out_ += '[';
    if (Next("^")) out_ += '^';
    if (pattern_.substr(at_, 1) == "]") return Unsupported("an empty character class");
    in_class_ = true;
    return {};
  }

  Status ClassItem() {
    const char c = pattern_[at_];
    if (c == '\\') return Escape();
    if (c == '[') return Unsupported("a nested character class");
    if (pattern_.substr(at_, 2) == "&&") return Unsupported("a class intersection");
    if (c == ']') in_class_ = false;
    out_ += c;
    ++at_;
    return {};
  }

  // Adds a set that is given by class items: as it is inside a class, else as a class of its own.
  void AddSet(std::string_view items, bool negated) {
    if (in_class_) {
      out_ += items;
    } else {
      out_ += negated ? "[^" : "[";
      out_ += items;
      out_ += ']';
    }
  }

  Status Escape() {
    if (at_ + 1 >= pattern_.size()) return Unsupported("a lone backslash at the end");
    const char c = pattern_[at_ + 1];
    if (c == 'p' || c == 'P') return Property(c == 'P');
    if (c == 's' || c == 'S') {
      if (c == 'S' && in_class_) return Unsupported("\\S inside a character class");
      at_ += 2;
      AddSet(kWhiteSpace, c == 'S');
      return {};
    }
    if (c == 'd' || c == 'D' || c == 'r' || c == 'n' || c == 't' || c == 'f') {
      out_ += pattern_.substr(at_, 2);
      at_ += 2;
      return {};
    }
    if (c == 'v') {
      out_ += "\\x0B";  // PCRE2's \v is a set
      at_ += 2;
      return {};
    }
    if (c == 'u') return Hex(4);
    if (c == 'x') return pattern_.substr(at_ + 2, 1) == "{" ? BracedHex() : Hex(2);
    const bool letter_or_digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter_or_digit || static_cast<uint8_t>(c) >= 0x80) return Unsupported(std::string("the escape \\") + c);
    out_ += pattern_.substr(at_, 2);
    at_ += 2;
    return {};
  }

  Status Property(bool negated) {
    const size_t close = pattern_.find('}', at_);
    if (pattern_.substr(at_ + 2, 1) != "{" || close == std::string_view::npos) return Unsupported("a bare property");
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    if (name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_") != std::string_view::npos ||
        name.empty()) {
      return Unsupported("an unusual property");
    }
    const bool extended = recent_ && (name == "L" || name == "N");
    if (extended && !(negated && in_class_)) {
      AddSet(name == "L" ? ClassItems("\\p{L}", kRecentLetters) : ClassItems("\\p{N}", kRecentNumbers), negated);
    } else {
      out_ += pattern_.substr(at_, close + 1 - at_);
    }
    at_ = close + 1;
    return {};
  }

  Status Hex(size_t digits) {
    const std::string_view value = pattern_.substr(at_ + 2, digits);
    if (value.size() != digits || value.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      return Unsupported("an unusual character number");
    }
    out_ += "\\x{" + std::string(value) + "}";
    at_ += 2 + digits;
    return {};
  }

  Status BracedHex() {
    const size_t close = pattern_.find('}', at_);
    const std::string_view value =
        close == std::string_view::npos ? std::string_view() : pattern_.substr(at_ + 3, close - at_ - 3);
    if (value.empty() || value.size() > 6 ||
        value.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      return Unsupported("an unusual character number");
    }
    out_ += pattern_.substr(at_, close + 1 - at_);
    at_ = close + 1;
    return {};
  }

  std::string_view pattern_;
  bool recent_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

Result<std::string> TranslatePattern(std::string_view pattern, bool recent_letters) {
  constexpr size_t kMaxPattern = 16384;
  if (pattern.size() > kMaxPattern || !IsValidUtf8(pattern)) {
    return Error{ErrorCode::kUnsupported, "a pre-tokenizer pattern is longer than 16384 bytes or not UTF-8"};
  }
  return Translator(pattern, recent_letters).Run();
}

bool HasRecentLetters(std::string_view text) {
  const auto within = [](const auto& ranges, char32_t code) {
    for (const CodeRange& range : ranges) {
      if (code >= range.first && code <= range.last) return true;
    }
    return false;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<uint8_t>(text[i]);
    // U+1C89 is E1 B2 89, the block of U+A7CB is EA 9F, everything else has four bytes.
    if (lead != 0xE1 && lead != 0xEA && lead < 0xF0) continue;
    const char32_t code = DecodeUtf8(text, i).code;
    if (within(kRecentLetters, code) || within(kRecentNumbers, code)) return true;
  }
  return false;
}

}  // namespace pith
