// Tokenizers in GGUF metadata: whatever the bytes, loading succeeds or gives an error; an accepted tokenizer encodes
// any text.

#include <cstdint>

#include "model/gguf.h"
#include "tokenizer_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto gguf = pith::GgufFile::Parse(std::as_bytes(std::span(data, size)), nullptr, "input");
  if (!gguf.ok()) return 0;
  const auto tokenizer = pith::Tokenizer::FromGguf(**gguf);
  if (!tokenizer.ok()) {
    if (tokenizer.error().message.empty()) std::abort();
    return 0;
  }
  pith::CheckTokenizer(*tokenizer, std::string_view(reinterpret_cast<const char*>(data), std::min<size_t>(size, 512)));
  pith::CheckTokenizer(*tokenizer, " a<x> \n\n  12\xCC\x81\xFF<y>ab  ");
  return 0;
}
