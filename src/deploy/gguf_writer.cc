#include "deploy/gguf_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

namespace pith {

namespace {

constexpr uint64_t kAlignment = 32;  // of tensor data, GGUF's default
constexpr uint32_t kVersion = 3;
constexpr size_t kMaxDimensions = 4;

template <class T>
void Append(std::string* out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out->append(bytes, sizeof(T));
}

void AppendText(std::string* out, std::string_view text) {
  Append(out, static_cast<uint64_t>(text.size()));
  out->append(text);
}

// Numbers of ggml's tensor types.
std::optional<uint32_t> TypeNumber(DType type) {
  switch (type) {
    case DType::kF32: return 0;
    case DType::kF16: return 1;
    case DType::kQ4_0: return 2;
    case DType::kQ4_1: return 3;
    case DType::kQ8_0: return 8;
    case DType::kBF16: return 30;
    default: return std::nullopt;
  }
}

uint64_t Padding(uint64_t size) { return (kAlignment - size % kAlignment) % kAlignment; }

Error WriteError(const std::string& path) {
  return {ErrorCode::kIo, "cannot write '" + path + "': " + std::strerror(errno)};
}

}  // namespace

void GgufMetadata::AddKey(std::string_view key, GgufType type) {
  if (!keys_.insert(std::string(key)).second) twice_ = key;
  ++count_;
  AppendText(&bytes_, key);
  Append(&bytes_, static_cast<uint32_t>(type));
}

void GgufMetadata::AddArray(std::string_view key, GgufType type, size_t count, std::span<const std::byte> elements) {
  AddKey(key, GgufType::kArray);
  Append(&bytes_, static_cast<uint32_t>(type));
  Append(&bytes_, static_cast<uint64_t>(count));
  bytes_.append(reinterpret_cast<const char*>(elements.data()), elements.size());
}

void GgufMetadata::AddString(std::string_view key, std::string_view value) {
  AddKey(key, GgufType::kString);
  AppendText(&bytes_, value);
}

void GgufMetadata::AddU32(std::string_view key, uint32_t value) {
  AddKey(key, GgufType::kU32);
  Append(&bytes_, value);
}

void GgufMetadata::AddF32(std::string_view key, float value) {
  AddKey(key, GgufType::kF32);
  Append(&bytes_, value);
}

void GgufMetadata::AddBool(std::string_view key, bool value) {
  AddKey(key, GgufType::kBool);
  bytes_ += value ? '\1' : '\0';
}

void GgufMetadata::AddStrings(std::string_view key, std::span<const std::string> values) {
  AddArray(key, GgufType::kString, values.size(), {});
  for (const std::string& value : values) AppendText(&bytes_, value);
}

void GgufMetadata::AddI32s(std::string_view key, std::span<const int32_t> values) {
  AddArray(key, GgufType::kI32, values.size(), std::as_bytes(values));
}

void GgufMetadata::AddU32s(std::string_view key, std::span<const uint32_t> values) {
  AddArray(key, GgufType::kU32, values.size(), std::as_bytes(values));
}

void GgufMetadata::AddEncoded(std::string_view key, const GgufValue& value) {
  if (value.is_array) {
    AddArray(key, value.type, value.count, value.bytes);
    return;
  }
  AddKey(key, value.type);
  bytes_.append(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
}

Result<std::unique_ptr<GgufWriter>> GgufWriter::Create(const std::string& path, const GgufMetadata& metadata,
                                                       std::vector<GgufEntry> entries) {
  if (!metadata.twice_.empty()) {
    return Error{ErrorCode::kInvalidArgument, "cannot write GGUF: key '" + metadata.twice_ + "' appears twice"};
  }
  std::unique_ptr<GgufWriter> writer(new GgufWriter());
  std::string infos;
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const GgufEntry& entry : entries) {
    const auto invalid = [&](const std::string& message) {
      return Error{ErrorCode::kInvalidArgument, "cannot write tensor '" + entry.name + "': " + message};
    };
    if (entry.name.empty() || !names.insert(entry.name).second) return invalid("the name is empty or appears twice");
    const std::optional<uint32_t> type = TypeNumber(entry.type);
    if (!type) return invalid(std::string("type ") + DTypeName(entry.type) + " is not written to GGUF files");
    const std::optional<int64_t> size = TensorBytes(entry.type, entry.shape);
    if (!size || *size == 0 || entry.shape.empty() || entry.shape.size() > kMaxDimensions) {
      return invalid("shape " + ShapeText(entry.shape) + " is not possible for " + DTypeName(entry.type));
    }
    AppendText(&infos, entry.name);
    Append(&infos, static_cast<uint32_t>(entry.shape.size()));
    for (auto it = entry.shape.rbegin(); it != entry.shape.rend(); ++it) Append(&infos, static_cast<uint64_t>(*it));
    Append(&infos, *type);
    Append(&infos, offset);
    const auto bytes = static_cast<uint64_t>(*size);
    writer->sizes_.push_back(bytes);
    offset += bytes + Padding(bytes);
  }
  std::string header = "GGUF";
  Append(&header, kVersion);
  Append(&header, static_cast<uint64_t>(entries.size()));
  Append(&header, metadata.count_);
  header += metadata.bytes_;
  header += infos;
  header.append(Padding(header.size()), '\0');

  writer->entries_ = std::move(entries);
  writer->path_ = path;
  writer->partial_path_ = path + "." + std::to_string(::getpid()) + ".partial";
  writer->file_bytes_ = header.size() + offset;
  writer->fd_ = ::open(writer->partial_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (writer->fd_ < 0) return WriteError(writer->partial_path_);
  PITH_RETURN_IF_ERROR(writer->WriteRaw(header.data(), header.size()));
  return writer;
}

GgufWriter::~GgufWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_path_.c_str());
}

Status GgufWriter::WriteRaw(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(fd_, next, size);
    if (written < 0) {
      if (errno == EINTR) continue;
      return WriteError(partial_path_);
    }
    next += written;
    size -= static_cast<size_t>(written);
  }
  return {};
}

Status GgufWriter::EndTensor() {
  constexpr char kZeros[kAlignment] = {};
  PITH_RETURN_IF_ERROR(WriteRaw(kZeros, Padding(sizes_[current_])));
  ++current_;
  written_ = 0;
  return {};
}

Status GgufWriter::Write(std::string_view name, std::span<const std::byte> bytes) {
  if (fd_ < 0) return Error{ErrorCode::kInvalidArgument, "'" + path_ + "' has been finished"};
  if (current_ == entries_.size() || entries_[current_].name != name) {
    const std::string expected =
        current_ == entries_.size() ? "nothing more" : "tensor '" + entries_[current_].name + "'";
    return Error{ErrorCode::kInvalidArgument,
                 "'" + path_ + "' expects " + expected + ", not tensor '" + std::string(name) + "'"};
  }
  if (bytes.size() > sizes_[current_] - written_) {
    return Error{ErrorCode::kInvalidArgument, "tensor '" + std::string(name) + "' gets more bytes than its shape has"};
  }
  PITH_RETURN_IF_ERROR(WriteRaw(bytes.data(), bytes.size()));
  written_ += bytes.size();
  return written_ == sizes_[current_] ? EndTensor() : Status();
}

Status GgufWriter::Finish() {
  if (fd_ < 0) return Error{ErrorCode::kInvalidArgument, "'" + path_ + "' has been finished"};
  if (current_ != entries_.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 "tensor '" + entries_[current_].name + "' of '" + path_ + "' is not complete"};
  }
  if (::fsync(fd_) != 0) return WriteError(partial_path_);
  const int fd = std::exchange(fd_, -1);
  const bool closed = ::close(fd) == 0;
  if (!closed || std::rename(partial_path_.c_str(), path_.c_str()) != 0) {
    const Error error = WriteError(path_);
    ::unlink(partial_path_.c_str());
    return error;
  }
  return {};
}

}  // namespace pith
