// The alphabet of byte-level BPE vocabularies: each of the 256 bytes is written as one printable character, so that a
// vocabulary file holds only text (Radford et al. 2019, GPT-2).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pith {

// The character that stands for a byte: itself for the printable bytes of Latin-1, U+0100 onwards for the others.
char32_t AlphabetCharacter(uint8_t byte);

// Appends the bytes that `form` stands for. False (with nothing appended) if a character is not of the alphabet.
bool AppendAlphabetBytes(std::string_view form, std::string* bytes);

// The vocabulary form of bytes: "Ġthe" for " the".
std::string AlphabetForm(std::string_view bytes);

}  // namespace pith
