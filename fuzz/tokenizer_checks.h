// What must hold for any tokenizer that was accepted, shared by the fuzz targets.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "model/tokenizer.h"

namespace pith {

// Encodes `text` in every way; the ids must be tokens, and decoding them must not fail.
inline void CheckTokenizer(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view text) {
  const TextRange middle[] = {{text.size() / 4, text.size() / 2}, {text.size() / 2, text.size()}};
  const EncodeOptions kinds[] = {
      {}, {.parse_special = true}, {.parse_special = true, .special_ranges = middle, .add_bos = true}};
  for (const EncodeOptions& options : kinds) {
    const auto ids = tokenizer->Encode(text, options);
    if (!ids.ok()) {
      if (ids.error().message.empty()) std::abort();
      continue;
    }
    IncrementalDetokenizer detokenizer(tokenizer, false);
    std::string streamed;
    for (const int32_t id : *ids) {
      if (id < 0 || id >= tokenizer->size()) std::abort();
      streamed += detokenizer.Push(id);
    }
    streamed += detokenizer.Flush();
    // Both views of the same bytes: one with U+FFFD for what is invalid.
    const std::string decoded = tokenizer->Decode(*ids, false);
    if (streamed.size() < decoded.size() / 3 || streamed.size() > 3 * decoded.size()) std::abort();
    (void)tokenizer->Decode(*ids, true);
  }
  (void)tokenizer->FindToken(text);
}

}  // namespace pith
