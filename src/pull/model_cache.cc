#include "pull/model_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
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

// The folder name of a hub reference: a repository and a revision, without a path separator.
std::string FolderName(const HubReference& reference) {
  std::string name = reference.repo;
  name.replace(name.find('/'), 1, "--");
  if (reference.revision != "main") name += "@" + reference.revision;
  return name;
}

Error NotPulled(const std::string& name) {
  return {ErrorCode::kNotFound, "model '" + name + "' is not on this machine; fetch it with: pith pull " + name};
}

Result<std::string> PulledFile(const std::string& name, const fs::path& path, uint64_t expected_bytes) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) return NotPulled(name);
  if (expected_bytes != 0 && bytes != expected_bytes) {
    return Error{ErrorCode::kMismatch, "'" + path.string() + "' has " + std::to_string(bytes) + " bytes, not " +
                                           std::to_string(expected_bytes) + "; fetch it again with: pith pull " + name};
  }
  return path.string();
}

Result<std::string> PulledDirectory(const std::string& name, const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kPullRecord, error)) return NotPulled(name);
  return folder.string();
}

std::string CatalogueNames() {
  std::string names;
  for (const auto& entry : Catalogue()) names += (names.empty() ? "" : ", ") + entry.name;
  return names;
}

}  // namespace

Result<std::string> CacheRoot() {
  if (const std::string root = Environment("PITH_CACHE"); !root.empty()) return root;
  if (const std::string xdg = Environment("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/pith";
  if (const std::string home = Environment("HOME"); !home.empty()) return home + "/.cache/pith";
  return Error{ErrorCode::kNotFound, "no cache folder: set PITH_CACHE, XDG_CACHE_HOME or HOME"};
}

Result<std::string> ModelFolder(std::string_view name) {
  std::string folder(name);
  if (IsHubReference(name)) {
    PITH_ASSIGN(const HubReference reference, ParseHubReference(name));
    folder = FolderName(reference);
  }
  PITH_ASSIGN(const std::string root, CacheRoot());
  return root + "/models/" + folder;
}

Result<std::string> ResolveModel(const std::string& name_or_path) {
  if (name_or_path.empty()) return Error{ErrorCode::kInvalidArgument, "the model name is empty"};
  if (const CatalogueEntry* entry = FindInCatalogue(name_or_path)) {
    PITH_ASSIGN(const std::string folder, ModelFolder(entry->name));
    if (entry->file) return PulledFile(entry->name, fs::path(folder) / entry->file->name, entry->file->bytes);
    return PulledDirectory(entry->name, folder);
  }
  if (IsHubReference(name_or_path)) {
    PITH_ASSIGN(const HubReference reference, ParseHubReference(name_or_path));
    PITH_ASSIGN(const std::string folder, ModelFolder(name_or_path));
    if (reference.file) return PulledFile(name_or_path, fs::path(folder) / *reference.file, 0);
    return PulledDirectory(name_or_path, folder);
  }
  std::error_code error;
  if (fs::exists(name_or_path, error)) return name_or_path;
  return Error{ErrorCode::kNotFound, "no model '" + name_or_path +
                                         "': neither a file, a directory nor a name of the catalogue (" +
                                         CatalogueNames() + ")"};
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
