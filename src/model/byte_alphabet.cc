#include "model/byte_alphabet.h"

#include <array>

#include "model/utf8.h"

namespace pith {

namespace {

constexpr size_t kAlphabetEnd = 0x144;  // one past the last character in use

struct Tables {
  std::array<char32_t, 256> to_character{};
  std::array<int16_t, kAlphabetEnd> to_byte{};  // -1 = not of the alphabet
};

constexpr Tables MakeTables() {
  Tables tables;
  for (auto& byte : tables.to_byte) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const char32_t character = printable ? static_cast<char32_t>(byte) : next++;
    tables.to_character[static_cast<size_t>(byte)] = character;
    tables.to_byte[character] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();
static_assert(kTables.to_byte[kAlphabetEnd - 1] == 0xAD);

}  // namespace

char32_t AlphabetCharacter(uint8_t byte) { return kTables.to_character[byte]; }

bool AppendAlphabetBytes(std::string_view form, std::string* bytes) {
  const size_t before = bytes->size();
  size_t i = 0;
  while (i < form.size()) {
    const auto lead = static_cast<uint8_t>(form[i]);
    char32_t code = lead;
    size_t length = 1;
    if (lead >= 0x80) {  // all of the alphabet fits in two bytes
      const Utf8Character character = DecodeUtf8(form, i);
      code = character.state == Utf8State::kValid ? character.code : char32_t{kAlphabetEnd};
      length = character.length;
    }
    const int16_t byte = code < kAlphabetEnd ? kTables.to_byte[code] : int16_t{-1};
    if (byte < 0) {
      bytes->resize(before);
      return false;
    }
    bytes->push_back(static_cast<char>(static_cast<uint8_t>(byte)));
    i += length;
  }
  return true;
}

std::string AlphabetForm(std::string_view bytes) {
  std::string form;
  for (const char byte : bytes) AppendUtf8(AlphabetCharacter(static_cast<uint8_t>(byte)), &form);
  return form;
}

}  // namespace pith
