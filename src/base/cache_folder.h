// The folder where pulled and packed models live, and what keeps two programs from writing there at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"

namespace pith {

// PITH_CACHE, else XDG_CACHE_HOME/pith, else ~/.cache/pith. kNotFound when none of the three variables is set.
Result<std::string> CacheRoot();

// Holds an exclusive lock on a file as long as it lives, so that two pulls of one model do not write at the same time.
class FileLock {
 public:
  // Creates the file. While another holder is there: calls `on_wait` (if any) once and waits.
  static Result<FileLock> Acquire(const std::string& path, const std::function<void()>& on_wait);

  ~FileLock();
  FileLock(FileLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileLock& operator=(FileLock&&) = delete;

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

// kIo when the file system of `folder` has less than `bytes` (plus a reserve of 64 MiB) free for this user.
Status CheckFreeSpace(const std::string& folder, uint64_t bytes);

}  // namespace pith
