// Limits that the reader and the writer of safetensors share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pith::safetensors_format {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // of the specification
constexpr uint64_t kLengthBytes = 8;               // the header begins with its length
constexpr size_t kMaxRank = 16;                    // far above any real tensor; bounds what one entry can allocate
constexpr const char* kMetadataKey = "__metadata__";

}  // namespace pith::safetensors_format
