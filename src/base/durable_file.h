// Files that are whole or not there: written beside their place, flushed to the disk, and renamed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace pith {

// Until Finish succeeds, the file is "<path>.<pid>.partial", which the destructor removes. Errors are kIo and name the
// file. Not for use by two threads at once.
class DurableFile {
 public:
  static Result<DurableFile> Create(const std::string& path);
  ~DurableFile();
  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&&) = delete;

  // Appends. kInvalidArgument after Finish.
  Status Write(std::span<const std::byte> bytes);
  Status Write(std::string_view text) { return Write(std::as_bytes(std::span(text.data(), text.size()))); }

  // Flushes the file and its folder's entry to the disk and gives it its name, in place of what had it before.
  Status Finish();

  bool open() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }

 private:
  explicit DurableFile(const std::string& path);
  std::string path_;
  std::string partial_;
  int fd_ = -1;
};

// All of a small file at once.
Status WriteFileDurably(const std::string& path, std::string_view content);

}  // namespace pith
