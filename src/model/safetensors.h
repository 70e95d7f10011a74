// Reader and writer of safetensors files.
// Format: https://github.com/huggingface/safetensors#format
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

#include "base/durable_file.h"
#include "base/result.h"
#include "model/tensor.h"

namespace pith {

// An open safetensors file. Opening validates all of it: the header lies in the file, is at most 100 MB and one JSON
// object without duplicate keys; each tensor has a dtype, a shape of integers >= 0 and data_offsets whose distance is
// exactly the size that dtype and shape give; sorted by offset, the tensors cover the data without gap or overlap.
// Violations are kMalformed, dtypes that pith does not read are kUnsupported; both name the tensor. Immutable.
class SafetensorsFile {
 public:
  static Result<std::shared_ptr<const SafetensorsFile>> Open(const std::string& path);
  // The same from memory; `owner` keeps `bytes` alive, `what` names the source in errors.
  static Result<std::shared_ptr<const SafetensorsFile>> Parse(std::span<const std::byte> bytes,
                                                              std::shared_ptr<const void> owner,
                                                              const std::string& what);

  const std::vector<Tensor>& tensors() const { return tensors_; }                   // in order of offset
  const Tensor* Find(std::string_view name) const;                                  // null if absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }  // "__metadata__"

  std::span<const std::byte> header() const { return header_; }  // length field and JSON
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  SafetensorsFile() = default;
  static Result<std::shared_ptr<const SafetensorsFile>> Parse(std::span<const std::byte> bytes,
                                                              std::shared_ptr<const void> owner,
                                                              std::shared_ptr<const MappedFile> file,
                                                              const std::string& what);
  std::vector<Tensor> tensors_;
  std::map<std::string_view, size_t> index_;
  std::map<std::string, std::string> metadata_;
  std::span<const std::byte> header_;
  uint64_t file_bytes_ = 0;
};

// What a tensor to be written is. GGUF block types cannot be written.
struct SafetensorsEntry {
  std::string name;
  DType type = DType::kF32;
  std::vector<int64_t> shape;
};

// Writes a safetensors file as a stream, so that nothing but one piece has to be in memory. All entries are given up
// front and their data is written in the same order; the data begins at a multiple of 64 bytes. Put wider types first
// to keep every tensor aligned to its elements. The file appears under its name only when Finish succeeds; until then
// it is "<path>.<pid>.partial", which the destructor removes (DurableFile).
class SafetensorsWriter {
 public:
  // kInvalidArgument for duplicate, empty or reserved names, bad shapes and block types; kIo.
  static Result<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path,
                                                           std::vector<SafetensorsEntry> entries,
                                                           const std::map<std::string, std::string>& metadata = {});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Appends the next bytes of tensor `name`, which must be the first entry that is not complete yet. kInvalidArgument
  // when it is another one or gets more bytes than its shape gives; kIo.
  Status Write(std::string_view name, std::span<const std::byte> bytes);

  // All tensors must be complete. Flushes to the disk and renames.
  Status Finish();

  uint64_t file_bytes() const { return file_bytes_; }  // size of the finished file

 private:
  SafetensorsWriter() = default;
  void SkipComplete();
  std::optional<DurableFile> file_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<uint64_t> sizes_;
  size_t current_ = 0;    // entry being written
  uint64_t written_ = 0;  // bytes of it
  uint64_t file_bytes_ = 0;
};

}  // namespace pith
