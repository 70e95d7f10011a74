// Reader of GGUF files, versions 2 and 3, little endian.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/tensor.h"

namespace pith {

// Types of metadata values, numbered as in the file.
enum class GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

const char* GgufTypeName(GgufType type);  // "u8", ..., "string", "array"

// One metadata value, still encoded: a view into the file.
struct GgufValue {
  bool is_array = false;
  GgufType type = GgufType::kU8;     // of the value, or of each element of the array
  uint64_t count = 1;                // elements of the array; 1 for a scalar
  std::span<const std::byte> bytes;  // the elements, one after the other (strings with their lengths)
};

// An open GGUF file. Opening checks everything that later calls rely on: every length and count against the bytes that
// are left, every name, every tensor's range; nothing is allocated that the file does not hold. Metadata stays in the
// file and is decoded when asked, so a vocabulary of 150,000 strings costs one walk over it. Immutable, thread-safe.
//
// Errors: kMalformed for files that break the format; kUnsupported for other versions, big-endian files, nested arrays
// and tensor types that pith does not read. All name the key or tensor.
class GgufFile {
 public:
  static Result<std::shared_ptr<const GgufFile>> Open(const std::string& path);
  // The same from memory; `owner` keeps `bytes` alive, `what` names the source in errors.
  static Result<std::shared_ptr<const GgufFile>> Parse(std::span<const std::byte> bytes,
                                                       std::shared_ptr<const void> owner, const std::string& what);

  const std::string& what() const { return what_; }  // the path, quoted, for error messages
  uint32_t version() const { return version_; }

  // All metadata, sorted by key.
  const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
  const GgufValue* FindValue(std::string_view key) const;  // null if absent
  bool Has(std::string_view key) const { return FindValue(key) != nullptr; }

  // Scalars. An absent key gives `fallback`, or kNotFound when there is none; a value of another kind, or an integer
  // beyond int64, is kMalformed. Views live as long as the file.
  Result<std::string_view> GetString(std::string_view key, std::optional<std::string_view> fallback = {}) const;
  Result<int64_t> GetInt(std::string_view key, std::optional<int64_t> fallback = {}) const;  // any integer type
  Result<double> GetFloat(std::string_view key, std::optional<double> fallback = {}) const;  // f32, f64, integers
  Result<bool> GetBool(std::string_view key, std::optional<bool> fallback = {}) const;

  // Arrays; an absent key is kNotFound.
  Result<std::vector<std::string_view>> GetStrings(std::string_view key) const;
  Result<std::vector<int64_t>> GetInts(std::string_view key) const;  // any integer type, or bool
  Result<std::vector<float>> GetFloats(std::string_view key) const;  // f32 or f64

  // Tensors in file order, with the file's names ("blk.0.attn_q.weight") and row-major shapes.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Tensor* FindTensor(std::string_view name) const;  // null if absent

  // Everything before the tensor data.
  std::span<const std::byte> header() const { return header_; }
  const std::shared_ptr<const MappedFile>& file() const { return file_; }  // null when parsed from memory

 private:
  friend class GgufParser;
  GgufFile() = default;
  std::string what_;
  uint32_t version_ = 0;
  std::map<std::string_view, GgufValue> metadata_;
  std::vector<Tensor> tensors_;
  std::map<std::string_view, size_t> tensor_index_;
  std::span<const std::byte> header_;
  std::shared_ptr<const MappedFile> file_;
  std::shared_ptr<const void> owner_;
};

}  // namespace pith
