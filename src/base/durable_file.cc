#include "base/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace pith {

namespace {

Error WriteError(const std::string& path) {
  return {ErrorCode::kIo, "cannot write '" + path + "': " + std::strerror(errno)};
}

}  // namespace

DurableFile::DurableFile(const std::string& path)
    : path_(path), partial_(path + "." + std::to_string(::getpid()) + ".partial") {}

DurableFile::DurableFile(DurableFile&& other) noexcept
    : path_(std::move(other.path_)), partial_(std::move(other.partial_)), fd_(std::exchange(other.fd_, -1)) {}

DurableFile::~DurableFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

Result<DurableFile> DurableFile::Create(const std::string& path) {
  DurableFile file(path);
  file.fd_ = ::open(file.partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file.fd_ < 0) return WriteError(path);
  return file;
}

Status DurableFile::Write(std::span<const std::byte> bytes) {
  if (fd_ < 0) return Error{ErrorCode::kInvalidArgument, "'" + path_ + "' has been finished"};
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return WriteError(path_);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Status DurableFile::Finish() {
  if (fd_ < 0) return Error{ErrorCode::kInvalidArgument, "'" + path_ + "' has been finished"};
  if (::fsync(fd_) != 0) return WriteError(path_);
  const bool closed = ::close(std::exchange(fd_, -1)) == 0;
  if (!closed || std::rename(partial_.c_str(), path_.c_str()) != 0) {
    const Error error = WriteError(path_);
    ::unlink(partial_.c_str());
    return error;
  }
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return {};  // a folder that may be written to but not read: the rename has happened all the same
  const bool synced = ::fsync(folder) == 0 || errno == EINVAL;
  ::close(folder);
  return synced ? Status() : Status(WriteError(path_));
}

Status WriteFileDurably(const std::string& path, std::string_view content) {
  PITH_ASSIGN(DurableFile file, DurableFile::Create(path));
  PITH_RETURN_IF_ERROR(file.Write(content));
  return file.Finish();
}

}  // namespace pith
