// safetensors: whatever the bytes, opening succeeds or gives an error, and every tensor of an accepted file can be
// read.

#include <cstdint>
#include <cstdlib>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = pith::SafetensorsFile::Parse(std::as_bytes(std::span(data, size)), nullptr, "input");
  if (!file.ok()) {
    if (file.error().message.empty()) std::abort();
    return 0;
  }
  size_t total = (*file)->header().size();
  for (const pith::Tensor& tensor : (*file)->tensors()) {
    total += tensor.data.size();
    if ((*file)->Find(tensor.name) != &tensor) std::abort();
    const auto floats = pith::ToFloats(tensor);
    if (floats.ok() && floats->size() != static_cast<size_t>(tensor.elements())) std::abort();
  }
  if (total != size) std::abort();  // an accepted file is covered exactly
  return 0;
}
