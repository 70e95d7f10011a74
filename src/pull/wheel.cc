#include "pull/wheel.h"

#include <zip.h>

#include <memory>
#include <vector>

namespace pith {

namespace {

struct ZipCloser {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

}  // namespace

Status ReadZipEntry(const std::string& path, const std::string& entry, uint64_t max_bytes,
                    const std::function<Status(std::span<const std::byte>)>& sink) {
  int code = 0;
  const std::unique_ptr<zip_t, ZipCloser> archive(zip_open(path.c_str(), ZIP_RDONLY, &code));
  if (!archive) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const std::string reason = zip_error_strerror(&error);
    zip_error_fini(&error);
    const ErrorCode kind = code == ZIP_ER_NOENT                         ? ErrorCode::kNotFound
                           : code == ZIP_ER_OPEN || code == ZIP_ER_READ ? ErrorCode::kIo
                                                                        : ErrorCode::kMalformed;
    return Error{kind, "cannot open the archive '" + path + "': " + reason};
  }
  zip_stat_t stat;
  zip_stat_init(&stat);
  if (zip_stat(archive.get(), entry.c_str(), ZIP_FL_ENC_RAW, &stat) != 0) {
    return Error{ErrorCode::kNotFound, "'" + path + "' holds no '" + entry + "'"};
  }
  const Error too_long{ErrorCode::kMismatch,
                       "'" + entry + "' of '" + path + "' is longer than " + std::to_string(max_bytes) + " bytes"};
  if ((stat.valid & ZIP_STAT_SIZE) != 0 && stat.size > max_bytes) return too_long;
  const std::unique_ptr<zip_file_t, ZipCloser> file(zip_fopen_index(archive.get(), stat.index, 0));
  if (!file) return Error{ErrorCode::kMalformed, "'" + entry + "' of '" + path + "': " + zip_strerror(archive.get())};

  std::vector<std::byte> buffer(size_t{1} << 20);
  uint64_t total = 0;
  while (true) {
    const zip_int64_t count = zip_fread(file.get(), buffer.data(), buffer.size());
    if (count < 0) {
      return Error{ErrorCode::kMalformed,
                   "'" + entry + "' of '" + path + "': " + zip_error_strerror(zip_file_get_error(file.get()))};
    }
    if (count == 0) return {};
    total += static_cast<uint64_t>(count);
    if (total > max_bytes) return too_long;
    PITH_RETURN_IF_ERROR(sink({buffer.data(), static_cast<size_t>(count)}));
  }
}

}  // namespace pith
