// UTF-8 decoding that never fails: invalid bytes are reported, not skipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pith {

constexpr char32_t kReplacementCharacter = 0xFFFD;
constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

enum class Utf8State : uint8_t {
  kValid,
  kInvalid,    // can never become a character; `length` bytes are the maximal invalid prefix (Unicode 15, section 3.9)
  kTruncated,  // the text ends inside a character that is well formed so far
};

struct Utf8Character {
  char32_t code = kReplacementCharacter;
  uint8_t length = 0;  // bytes, 1 to 4
  Utf8State state = Utf8State::kInvalid;
};

// The character at `position` (< text.size()).
Utf8Character DecodeUtf8(std::string_view text, size_t position);

void AppendUtf8(char32_t code, std::string* out);

bool IsValidUtf8(std::string_view text);

}  // namespace pith
