// Writes small GGUF files for tests, well formed or broken on purpose.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf.h"

namespace pith::testing {

// The bytes of a number as they lie in a file.
template <class T>
std::string Raw(T value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

// A GGUF string: length and text.
inline std::string RawString(std::string_view text) { return Raw<uint64_t>(text.size()) + std::string(text); }

class GgufBuilder {
 public:
  uint32_t version = 3;
  std::string magic = "GGUF";
  uint64_t alignment = 32;  // of the layout; does not write the key
  // Written instead of the true counts when set.
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> metadata_count;

  GgufBuilder& AddRaw(std::string_view key, uint32_t type, const std::string& value) {
    metadata_ += RawString(key) + Raw(type) + value;
    ++metadata_entries_;
    return *this;
  }
  template <class T>
  GgufBuilder& Add(std::string_view key, GgufType type, T value) {
    return AddRaw(key, static_cast<uint32_t>(type), Raw(value));
  }
  GgufBuilder& AddU32(std::string_view key, uint32_t value) { return Add(key, GgufType::kU32, value); }
  GgufBuilder& AddF32(std::string_view key, float value) { return Add(key, GgufType::kF32, value); }
  GgufBuilder& AddString(std::string_view key, std::string_view value) {
    return AddRaw(key, static_cast<uint32_t>(GgufType::kString), RawString(value));
  }
  GgufBuilder& AddStrings(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes = Raw(static_cast<uint32_t>(GgufType::kString)) + Raw<uint64_t>(values.size());
    for (const std::string& value : values) bytes += RawString(value);
    return AddRaw(key, static_cast<uint32_t>(GgufType::kArray), bytes);
  }
  template <class T>
  GgufBuilder& AddArray(std::string_view key, GgufType type, const std::vector<T>& values) {
    std::string bytes = Raw(static_cast<uint32_t>(type)) + Raw<uint64_t>(values.size());
    for (const T value : values) bytes += Raw(value);
    return AddRaw(key, static_cast<uint32_t>(GgufType::kArray), bytes);
  }

  // `dims` in file order, fastest first; `type` is ggml's number. The data is padded to the alignment.
  GgufBuilder& AddTensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                         const std::string& data) {
    AddTensorAt(name, dims, type, data_.size());
    data_ += data;
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  // Only the entry, with any offset.
  GgufBuilder& AddTensorAt(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    infos_ += RawString(name) + Raw(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) infos_ += Raw(dim);
    infos_ += Raw(type) + Raw(offset);
    ++tensors_;
    return *this;
  }
  GgufBuilder& AddFloats(std::string_view name, const std::vector<uint64_t>& dims, float value) {
    uint64_t count = 1;
    for (const uint64_t dim : dims) count *= dim;
    std::string data;
    for (uint64_t i = 0; i < count; ++i) data += Raw(value);
    return AddTensor(name, dims, 0, data);
  }

  std::string Build() const {
    std::string bytes = magic + Raw(version) + Raw(tensor_count.value_or(tensors_)) +
                        Raw(metadata_count.value_or(metadata_entries_)) + metadata_ + infos_;
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    return bytes + data_;
  }

 private:
  std::string metadata_;
  std::string infos_;
  std::string data_;
  uint64_t metadata_entries_ = 0;
  uint64_t tensors_ = 0;
};

// Parses bytes; the file keeps them alive.
inline Result<std::shared_ptr<const GgufFile>> ParseGguf(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  return GgufFile::Parse(std::as_bytes(std::span(owner->data(), owner->size())), owner, "test.gguf");
}

}  // namespace pith::testing
