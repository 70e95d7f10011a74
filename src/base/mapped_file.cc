#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace pith {

Result<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
  if (fd < 0) {
    const ErrorCode code = errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
    return Error{code, "cannot open '" + path + "': " + std::strerror(errno)};
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return Error{ErrorCode::kIo, "'" + path + "' is not a regular file"};
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  const std::byte* data = nullptr;
  if (size > 0) {
    void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      return Error{ErrorCode::kIo, "cannot map '" + path + "': " + std::strerror(error)};
    }
    data = static_cast<const std::byte*>(mapping);
  }
  ::close(fd);
  return std::shared_ptr<const MappedFile>(new MappedFile(path, data, size));
}

MappedFile::MappedFile(std::string path, const std::byte* data, uint64_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

namespace {

// madvise wants whole pages. `inner` shrinks the range to pages that lie fully inside it.
void Advise(const std::byte* base, uint64_t size, uint64_t offset, uint64_t length, int advice, bool inner) {
  if (base == nullptr || offset >= size) return;
  length = std::min(length, size - offset);
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  uint64_t begin = offset;
  uint64_t end = offset + length;
  if (inner) {
    begin = (begin + page - 1) / page * page;
    if (end != size) end = end / page * page;
  } else {
    begin = begin / page * page;
  }
  if (begin >= end) return;
  ::madvise(const_cast<std::byte*>(base) + begin, end - begin, advice);
}

}  // namespace

void MappedFile::WillNeed(uint64_t offset, uint64_t length) const {
  Advise(data_, size_, offset, length, MADV_WILLNEED, false);
}

void MappedFile::Release(uint64_t offset, uint64_t length) const {
  Advise(data_, size_, offset, length, MADV_DONTNEED, true);
}

}  // namespace pith
