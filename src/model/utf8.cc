#include "model/utf8.h"

#include <cstring>

namespace pith {

Utf8Character DecodeUtf8(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  const size_t left = text.size() - position;
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, Utf8State::kValid};

  // Length and the allowed range of the second byte (Unicode 15, table 3-7); the ranges exclude overlong forms,
  // surrogates and codes above U+10FFFF.
  int length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  char32_t code = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code = lead & 0x1FU;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code = lead & 0x0FU;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code = lead & 0x07U;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {kReplacementCharacter, 1, Utf8State::kInvalid};
  }
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) >= left) {
      return {kReplacementCharacter, static_cast<uint8_t>(i), Utf8State::kTruncated};
    }
    const uint8_t next = byte(static_cast<size_t>(i));
    if (next < low || next > high) return {kReplacementCharacter, static_cast<uint8_t>(i), Utf8State::kInvalid};
    code = (code << 6) | (next & 0x3FU);
    low = 0x80;
    high = 0xBF;
  }
  return {code, static_cast<uint8_t>(length), Utf8State::kValid};
}

void AppendUtf8(char32_t code, std::string* out) {
  const auto push = [&](char32_t byte) { out->push_back(static_cast<char>(static_cast<uint8_t>(byte))); };
  if (code < 0x80) {
    push(code);
  } else if (code < 0x800) {
    push(0xC0 | (code >> 6));
    push(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    push(0xE0 | (code >> 12));
    push(0x80 | ((code >> 6) & 0x3F));
    push(0x80 | (code & 0x3F));
  } else {
    push(0xF0 | (code >> 18));
    push(0x80 | ((code >> 12) & 0x3F));
    push(0x80 | ((code >> 6) & 0x3F));
    push(0x80 | (code & 0x3F));
  }
}

bool IsValidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Eight ASCII bytes at a time.
    uint64_t chunk = 0;
    if (text.size() - i >= sizeof(chunk)) {
      std::memcpy(&chunk, text.data() + i, sizeof(chunk));
      if ((chunk & 0x8080808080808080ULL) == 0) {
        i += sizeof(chunk);
        continue;
      }
    }
    const Utf8Character character = DecodeUtf8(text, i);
    if (character.state != Utf8State::kValid) return false;
    i += character.length;
  }
  return true;
}

}  // namespace pith
