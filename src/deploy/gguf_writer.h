// Writer of GGUF files, version 3, little endian.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/durable_file.h"
#include "base/result.h"
#include "model/gguf.h"
#include "model/tensor.h"

namespace pith {

// Metadata in the order in which it is added. A key that is added twice makes GgufWriter::Create fail.
class GgufMetadata {
 public:
  void AddString(std::string_view key, std::string_view value);
  void AddU32(std::string_view key, uint32_t value);
  void AddF32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddStrings(std::string_view key, std::span<const std::string> values);
  void AddI32s(std::string_view key, std::span<const int32_t> values);
  void AddU32s(std::string_view key, std::span<const uint32_t> values);
  void AddEncoded(std::string_view key, const GgufValue& value);  // as it stands in another file

 private:
  friend class GgufWriter;
  void AddKey(std::string_view key, GgufType type);
  void AddArray(std::string_view key, GgufType type, size_t count, std::span<const std::byte> elements);
  std::string bytes_;
  uint64_t count_ = 0;
  std::set<std::string, std::less<>> keys_;
  std::string twice_;  // a key that came twice
};

// A tensor to be written: F32, F16, BF16, Q4_0, Q4_1 or Q8_0. `shape` is row-major.
struct GgufEntry {
  std::string name;
  DType type = DType::kF32;
  std::vector<int64_t> shape;
};

// Writes a file as a stream: all entries are given up front, their data follows in the same order. The file appears
// under its name only when Finish succeeds; until then it is "<path>.<pid>.partial", which the destructor removes.
class GgufWriter {
 public:
  // kInvalidArgument for duplicate or empty names, types that cannot be written and impossible shapes; kIo.
  static Result<std::unique_ptr<GgufWriter>> Create(const std::string& path, const GgufMetadata& metadata,
                                                    std::vector<GgufEntry> entries);
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // Appends the next bytes of tensor `name`, the first entry that is not complete. kInvalidArgument otherwise; kIo.
  Status Write(std::string_view name, std::span<const std::byte> bytes);
  // All tensors must be complete. Flushes to the disk and renames.
  Status Finish();

  uint64_t file_bytes() const { return file_bytes_; }  // size of the finished file

 private:
  GgufWriter() = default;
  Status EndTensor();

  std::optional<DurableFile> file_;
  std::vector<GgufEntry> entries_;
  std::vector<uint64_t> sizes_;
  size_t current_ = 0;
  uint64_t written_ = 0;  // bytes of the current tensor
  uint64_t file_bytes_ = 0;
};

}  // namespace pith
