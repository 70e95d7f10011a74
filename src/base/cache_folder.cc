#include "base/cache_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace pith {

namespace fs = std::filesystem;

namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Result<std::string> CacheRoot() {
  if (const std::string root = Environment("PITH_CACHE"); !root.empty()) return root;
  if (const std::string xdg = Environment("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/pith";
  if (const std::string home = Environment("HOME"); !home.empty()) return home + "/.cache/pith";
  return Error{ErrorCode::kNotFound, "no cache folder: set PITH_CACHE, XDG_CACHE_HOME or HOME"};
}

Result<FileLock> FileLock::Acquire(const std::string& path, const std::function<void()>& on_wait) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return Error{ErrorCode::kIo, "cannot open lock '" + path + "': " + std::strerror(errno)};
  FileLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return Error{ErrorCode::kIo, "cannot lock '" + path + "': " + std::strerror(errno)};
  if (on_wait) on_wait();
  while (::flock(fd, LOCK_EX) != 0) {
    if (errno != EINTR) return Error{ErrorCode::kIo, "cannot lock '" + path + "': " + std::strerror(errno)};
  }
  return lock;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

Status CheckFreeSpace(const std::string& folder, uint64_t bytes) {
  constexpr uint64_t kReserve = uint64_t{64} << 20;
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error) return Error{ErrorCode::kIo, "cannot ask for the free space of '" + folder + "': " + error.message()};
  if (space.available < kReserve || space.available - kReserve < bytes) {
    return Error{ErrorCode::kIo, "not enough free space in '" + folder + "': " + std::to_string(bytes) +
                                     " bytes wanted, " + std::to_string(space.available) + " available"};
  }
  return {};
}

}  // namespace pith
