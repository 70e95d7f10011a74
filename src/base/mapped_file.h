// A read-only memory-mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace pith {

// Maps a whole regular file for reading. The mapping lives as long as the object; tensors that point into it keep a
// shared_ptr to it. Thread-safe after construction.
class MappedFile {
 public:
  // Fails with kNotFound or kIo; a directory or other non-regular file is kIo. An empty file maps to an empty span.
  static Result<std::shared_ptr<const MappedFile>> Open(const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

  // Advice to the kernel; ignored where it cannot be given. Ranges are clipped to the file.
  void WillNeed(uint64_t offset, uint64_t length) const;  // start reading these pages
  void Release(uint64_t offset, uint64_t length) const;   // drop these pages from our resident set; data stays valid

 private:
  MappedFile(std::string path, const std::byte* data, uint64_t size);
  std::string path_;
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace pith
