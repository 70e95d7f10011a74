// Unicode normalization form C.
#pragma once

#include <string>
#include <string_view>

namespace pith {

// Whether the text certainly is in NFC already (a cheap test: no character from U+0300 on).
bool IsTriviallyNfc(std::string_view text);

// NFC of valid UTF-8, in O(n log n) even for long runs of combining marks.
std::string NormalizeNfc(std::string_view text);

}  // namespace pith
