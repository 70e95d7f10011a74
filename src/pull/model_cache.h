// The folder where pulled models live, and the way from a name to a path.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "pull/catalogue.h"

namespace pith {

// PITH_CACHE, else XDG_CACHE_HOME/pith, else ~/.cache/pith. kNotFound when none of the three variables is set.
Result<std::string> CacheRoot();
// Where a pulled model lives: <cache>/models/<name>. "hf:org/name" lives under "org--name" ("org--name@revision").
Result<std::string> ModelFolder(std::string_view name);

// A directory pulled from the hub gets this file last, when all others are complete and checked. It lists them.
inline constexpr const char* kPullRecord = "pith-pull.json";

// The path of a model that -m names: a catalogue name or hf: reference that has been pulled (the GGUF file, or the
// directory), else a path of a directory or a file. A path that exists but looks like a name is reached as "./name".
// kNotFound says what to do: `pith pull NAME`. kMismatch when a pinned file has not the pinned size.
Result<std::string> ResolveModel(const std::string& name_or_path);

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
