// tokenizer.json: whatever the bytes, loading succeeds or gives an error; an accepted tokenizer encodes any text.

#include <cstdint>

#include "tokenizer_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = pith::Tokenizer::FromJson(json, "input");
  if (!tokenizer.ok()) {
    if (tokenizer.error().message.empty()) std::abort();
    return 0;
  }
  // The document itself is a text with all of its own tokens.
  pith::CheckTokenizer(*tokenizer, json.substr(0, 512));
  pith::CheckTokenizer(*tokenizer, json.substr(json.size() / 2, 256));
  pith::CheckTokenizer(*tokenizer, " a<x> \n\n  12\xCC\x81\xFF<y>ab  ");
  return 0;
}
