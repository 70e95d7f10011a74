// GGUF: whatever the bytes, opening succeeds or gives an error; of an accepted file every value can be asked for, every
// tensor read, and the configuration made.

#include <cstdint>
#include <cstdlib>

#include "model/config_checks.h"
#include "model/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = pith::GgufFile::Parse(std::as_bytes(std::span(data, size)), nullptr, "input");
  if (!file.ok()) {
    if (file.error().message.empty()) std::abort();
    return 0;
  }
  const pith::GgufFile& gguf = **file;
  for (const auto& [key, value] : gguf.metadata()) {
    (void)gguf.GetString(key);
    (void)gguf.GetInt(key);
    (void)gguf.GetFloat(key);
    (void)gguf.GetBool(key);
    const auto strings = gguf.GetStrings(key);
    const auto ints = gguf.GetInts(key);
    const auto floats = gguf.GetFloats(key);
    if (strings.ok() && strings->size() != value.count) std::abort();
    if (ints.ok() && ints->size() != value.count) std::abort();
    if (floats.ok() && floats->size() != value.count) std::abort();
    size_t touched = 0;
    if (strings.ok()) {
      for (const std::string_view text : *strings)
        touched += text.empty() ? 0 : static_cast<unsigned char>(text.back());
    }
    volatile size_t sink = touched;  // keeps the reads
    (void)sink;
  }
  for (const pith::Tensor& tensor : gguf.tensors()) {
    const auto floats = pith::ToFloats(tensor);
    if (floats.ok() && floats->size() != static_cast<size_t>(tensor.elements())) std::abort();
  }
  const auto config = pith::ConfigFromGguf(gguf);
  if (config.ok()) (void)pith::ComputeRopeFrequencies(*config);
  return 0;
}
