#include "model/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "model/utf8.h"

namespace pith {

bool IsTriviallyNfc(std::string_view text) {
  // 0xCC is the lead byte of U+0300; every character below composes with nothing before it and is not decomposed by
  // NFC.
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0xCC; });
}

std::string NormalizeNfc(std::string_view text) {
  // utf8proc_map would do all of this, but it orders combining marks by insertion, which is quadratic in the length of
  // a run of marks; here the ordering is a stable sort.
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size() + 8);
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Character character = DecodeUtf8(text, i);
    i += character.length;
    const auto code = static_cast<utf8proc_int32_t>(character.code);
    if (code < 0xC0) {
      codes.push_back(code);
      continue;
    }
    constexpr int kMaxDecomposition = 32;  // the longest canonical one is 4
    utf8proc_int32_t parts[kMaxDecomposition];
    const utf8proc_ssize_t count = utf8proc_decompose_char(code, parts, kMaxDecomposition, UTF8PROC_DECOMPOSE, nullptr);
    if (count > 0 && count <= kMaxDecomposition) {
      codes.insert(codes.end(), parts, parts + count);
    } else {
      codes.push_back(code);
    }
  }

  // Canonical ordering: runs of marks sorted by combining class.
  const auto combining_class = [](utf8proc_int32_t code) {
    return code < 0x300 ? utf8proc_propval_t{0} : utf8proc_get_property(code)->combining_class;
  };
  for (size_t begin = 0; begin < codes.size();) {
    if (combining_class(codes[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    if (end - begin > 1) {
      std::stable_sort(codes.begin() + static_cast<ptrdiff_t>(begin), codes.begin() + static_cast<ptrdiff_t>(end),
                       [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    }
    begin = end;
  }

  const utf8proc_ssize_t length =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t k = 0; k < length; ++k) {
    AppendUtf8(static_cast<char32_t>(codes[static_cast<size_t>(k)]), &out);
  }
  return out;
}

}  // namespace pith
