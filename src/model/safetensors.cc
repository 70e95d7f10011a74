#include "model/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/json.h"

namespace pith {

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // of the specification
constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMaxRank = 16;                    // far above any real tensor; bounds what one entry can allocate
constexpr const char* kMetadataKey = "__metadata__";

constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32, DType::kI16,
                            DType::kI8,  DType::kU64, DType::kU32, DType::kU16,  DType::kU8,  DType::kBool};

std::optional<DType> TypeByName(std::string_view name) {
  for (const DType type : kTypes) {
    if (name == DTypeName(type)) return type;
  }
  return std::nullopt;
}

// The parser of headers: a receiver of JSON events that knows the only form a header may have. It keeps no tree, so it
// sees duplicate keys, and nesting beyond the form ends the parse.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  struct Entry {
    Tensor tensor;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  Error error;

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_float(double, const std::string&) override { return Unexpected("a number that is no integer"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_integer(int64_t number) override {
    // Non-negative integers come to number_unsigned.
    return InList() ? Fail(ErrorCode::kMalformed, Where() + " is negative (" + std::to_string(number) + ")")
                    : Unexpected("a number");
  }

  bool number_unsigned(uint64_t number) override {
    if (state_ == State::kShape) {
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Fail(ErrorCode::kMalformed, Where() + " is too large");
      }
      if (entry_.tensor.shape.size() == kMaxRank) return Fail(ErrorCode::kMalformed, Where() + " has too many values");
      entry_.tensor.shape.push_back(static_cast<int64_t>(number));
      return true;
    }
    if (state_ == State::kOffsets) {
      if (offset_count_ == 2) return Fail(ErrorCode::kMalformed, Where() + " has too many values");
      (offset_count_ == 0 ? entry_.begin : entry_.end) = number;
      ++offset_count_;
      return true;
    }
    return Unexpected("a number");
  }

  bool string(std::string& text) override {
    if (state_ == State::kMetadata) {
      metadata[key_] = text;
      return true;
    }
    if (state_ == State::kEntry && key_ == "dtype") {
      const std::optional<DType> type = TypeByName(text);
      if (!type) {
        return Fail(ErrorCode::kUnsupported,
                    "tensor '" + entry_.tensor.name + "' has dtype '" + text + "', which is not supported");
      }
      entry_.tensor.type = *type;
      return true;
    }
    return Unexpected("a string");
  }

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart: state_ = State::kTop; return true;
      case State::kTop:
        if (name_ == kMetadataKey) {
          state_ = State::kMetadata;
          return true;
        }
        state_ = State::kEntry;
        entry_ = Entry();
        entry_.tensor.name = name_;
        offset_count_ = 0;
        seen_ = 0;
        return true;
      default: return Unexpected("an object");
    }
  }

  bool key(std::string& text) override {
    key_ = text;
    if (state_ == State::kTop) {
      name_ = text;
      if (!names_.insert(text).second) return Fail(ErrorCode::kMalformed, "'" + text + "' appears twice");
      return true;
    }
    if (state_ == State::kMetadata) {
      return metadata.count(text) == 0 ||
             Fail(ErrorCode::kMalformed, "key '" + text + "' of __metadata__ appears twice");
    }
    const unsigned field = text == "dtype" ? 1 : text == "shape" ? 2 : text == "data_offsets" ? 4 : 0;
    if (field == 0) return Fail(ErrorCode::kMalformed, "tensor '" + name_ + "' has unknown field '" + text + "'");
    if ((seen_ & field) != 0) return Fail(ErrorCode::kMalformed, "tensor '" + name_ + "' has '" + text + "' twice");
    seen_ |= field;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kEntry) {
      if (seen_ != 7) {
        const char* missing = (seen_ & 1) == 0 ? "dtype" : (seen_ & 2) == 0 ? "shape" : "data_offsets";
        return Fail(ErrorCode::kMalformed, "tensor '" + name_ + "' has no " + missing);
      }
      entries.push_back(std::move(entry_));
      state_ = State::kTop;
    } else if (state_ == State::kMetadata) {
      state_ = State::kTop;
    } else {
      state_ = State::kEnd;
    }
    return true;
  }

  bool start_array(size_t) override {
    if (state_ == State::kEntry && key_ == "shape") {
      state_ = State::kShape;
      return true;
    }
    if (state_ == State::kEntry && key_ == "data_offsets") {
      state_ = State::kOffsets;
      return true;
    }
    return Unexpected("an array");
  }

  bool end_array() override {
    if (state_ == State::kOffsets && offset_count_ != 2) {
      return Fail(ErrorCode::kMalformed, Where() + " has fewer than 2 values");
    }
    state_ = State::kEntry;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& exception) override {
    return Fail(ErrorCode::kMalformed, exception.what());
  }

 private:
  enum class State { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };

  bool InList() const { return state_ == State::kShape || state_ == State::kOffsets; }

  std::string Where() const {
    switch (state_) {
      case State::kStart:
      case State::kEnd: return "the header";
      case State::kTop: return "'" + name_ + "'";
      case State::kMetadata: return "'" + key_ + "' of __metadata__";
      default: return "'" + key_ + "' of tensor '" + name_ + "'";
    }
  }

  bool Fail(ErrorCode code, std::string message) {
    error = {code, std::move(message)};
    return false;
  }

  bool Unexpected(const char* found) { return Fail(ErrorCode::kMalformed, Where() + " may not be " + found); }

  State state_ = State::kStart;
  std::string name_;  // of the tensor, or __metadata__
  std::string key_;   // the last key, at any level
  std::set<std::string> names_;
  Entry entry_;
  int offset_count_ = 0;
  unsigned seen_ = 0;  // fields of the entry: 1 dtype, 2 shape, 4 data_offsets
};

}  // namespace

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  PITH_ASSIGN(auto file, MappedFile::Open(path));
  return Parse(file->bytes(), file, file, "'" + path + "'");
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Parse(std::span<const std::byte> bytes,
                                                                      std::shared_ptr<const void> owner,
                                                                      const std::string& what) {
  return Parse(bytes, std::move(owner), nullptr, what);
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Parse(std::span<const std::byte> bytes,
                                                                      std::shared_ptr<const void> owner,
                                                                      std::shared_ptr<const MappedFile> file,
                                                                      const std::string& what) {
  const auto malformed = [&](const std::string& message) {
    return Error{ErrorCode::kMalformed, what + ": " + message};
  };
  if (bytes.size() < kLengthBytes) return malformed("too short for a safetensors file");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes) {
    return malformed("the header length " + std::to_string(header_bytes) + " is above 100 MB");
  }
  if (header_bytes > bytes.size() - kLengthBytes) return malformed("the file ends inside the header");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_bytes);
  if (text.empty() || text.front() != '{') return malformed("the header is not a JSON object");

  HeaderReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) return reader.error.Wrap(what);

  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header_bytes);
  std::vector<HeaderReader::Entry>& entries = reader.entries;
  std::sort(entries.begin(), entries.end(), [](const HeaderReader::Entry& a, const HeaderReader::Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::shared_ptr<SafetensorsFile> result(new SafetensorsFile());
  uint64_t expected_begin = 0;
  for (HeaderReader::Entry& entry : entries) {
    Tensor& tensor = entry.tensor;
    const std::string name = "tensor '" + tensor.name + "'";
    const std::string range = "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")";
    if (entry.begin > entry.end) return malformed(name + " has data_offsets " + range + " that run backwards");
    if (entry.end > data.size()) return malformed("the data of " + name + " at " + range + " lies outside the file");
    if (entry.begin != expected_begin) {
      return malformed(name + " begins at " + std::to_string(entry.begin) + " where the data before it ends at " +
                       std::to_string(expected_begin) + (entry.begin < expected_begin ? " (overlap)" : " (gap)"));
    }
    const std::optional<int64_t> size = TensorBytes(tensor.type, tensor.shape);
    if (!size || static_cast<uint64_t>(*size) != entry.end - entry.begin) {
      return malformed(name + " of type " + DTypeName(tensor.type) + " and shape " + ShapeText(tensor.shape) +
                       " does not fit its data_offsets " + range);
    }
    expected_begin = entry.end;
    tensor.data = data.subspan(entry.begin, entry.end - entry.begin);
    tensor.owner = owner;
    tensor.file = file;
    result->tensors_.push_back(std::move(tensor));
  }
  if (expected_begin != data.size()) {
    return malformed(std::to_string(data.size() - expected_begin) + " bytes after the last tensor belong to none");
  }
  for (size_t i = 0; i < result->tensors_.size(); ++i) result->index_.emplace(result->tensors_[i].name, i);
  result->metadata_ = std::move(reader.metadata);
  result->header_ = bytes.first(kLengthBytes + header_bytes);
  result->file_bytes_ = bytes.size();
  return std::shared_ptr<const SafetensorsFile>(std::move(result));
}

const Tensor* SafetensorsFile::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

// --- writer ---

namespace {

constexpr uint64_t kDataAlignment = 64;

Error WriteError(const std::string& path) {
  return {ErrorCode::kIo, "cannot write '" + path + "': " + std::strerror(errno)};
}

Status WriteAll(int fd, const char* data, size_t size, const std::string& path) {
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written < 0) {
      if (errno == EINTR) continue;
      return WriteError(path);
    }
    data += written;
    size -= static_cast<size_t>(written);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<SafetensorsEntry> entries,
    const std::map<std::string, std::string>& metadata) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  // Insertion order is kept, so that the header lists the tensors in the order of their data.
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const SafetensorsEntry& entry : entries) {
    const auto invalid = [&](const char* message) {
      return Error{ErrorCode::kInvalidArgument, "cannot write tensor '" + entry.name + "': " + message};
    };
    if (entry.name.empty() || entry.name == kMetadataKey) return invalid("the name is empty or reserved");
    if (!names.insert(entry.name).second) return invalid("the name appears twice");
    if (IsBlockType(entry.type)) return invalid("safetensors has no such type");
    const std::optional<int64_t> size = TensorBytes(entry.type, entry.shape);
    if (!size || entry.shape.size() > kMaxRank) return invalid("the shape is not possible");
    const auto bytes = static_cast<uint64_t>(*size);
    if (bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) - offset) {
      return invalid("the file would be too large");
    }
    OrderedJson& item = header[entry.name];
    item["dtype"] = DTypeName(entry.type);
    item["shape"] = entry.shape;
    item["data_offsets"] = {offset, offset + bytes};
    offset += bytes;
    writer->sizes_.push_back(bytes);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const OrderedJson::exception& exception) {
    return Error{ErrorCode::kInvalidArgument, std::string("cannot write the header: ") + exception.what()};
  }
  text.append((kDataAlignment - (kLengthBytes + text.size()) % kDataAlignment) % kDataAlignment, ' ');
  if (text.size() > kMaxHeaderBytes) return Error{ErrorCode::kInvalidArgument, "the header would be above 100 MB"};
  const uint64_t length = text.size();

  writer->entries_ = std::move(entries);
  writer->path_ = path;
  writer->partial_path_ = path + "." + std::to_string(::getpid()) + ".partial";
  writer->file_bytes_ = kLengthBytes + length + offset;
  writer->fd_ = ::open(writer->partial_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (writer->fd_ < 0) return WriteError(writer->partial_path_);
  char length_bytes[kLengthBytes];
  std::memcpy(length_bytes, &length, sizeof(length));
  PITH_RETURN_IF_ERROR(WriteAll(writer->fd_, length_bytes, sizeof(length_bytes), path));
  PITH_RETURN_IF_ERROR(WriteAll(writer->fd_, text.data(), text.size(), path));
  writer->SkipComplete();
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_path_.c_str());
}

// Moves on past tensors that have all their bytes, empty ones too.
void SafetensorsWriter::SkipComplete() {
  while (current_ < entries_.size() && written_ == sizes_[current_]) {
    ++current_;
    written_ = 0;
  }
}

Status SafetensorsWriter::Write(std::string_view name, std::span<const std::byte> bytes) {
  if (fd_ < 0) return Error{ErrorCode::kInvalidArgument, "'" + path_ + "' has been finished"};
  if (bytes.empty()) return {};
  if (current_ == entries_.size() || entries_[current_].name != name) {
    const std::string expected = current_ == entries_.size() ? "nothing more" : "tensor '" + entries_[current_].name + "'";
    return Error{ErrorCode::kInvalidArgument,
                 "'" + path_ + "' expects " + expected + ", not tensor '" + std::string(name) + "'"};
  }
  if (bytes.size() > sizes_[current_] - written_) {
    return Error{ErrorCode::kInvalidArgument, "tensor '" + std::string(name) + "' gets more bytes than its shape has"};
  }
  PITH_RETURN_IF_ERROR(WriteAll(fd_, reinterpret_cast<const char*>(bytes.data()), bytes.size(), path_));
  written_ += bytes.size();
  SkipComplete();
  return {};
}

Status SafetensorsWriter::Finish() {
  if (fd_ < 0) return Error{ErrorCode::kInvalidArgument, "'" + path_ + "' has been finished"};
  if (current_ != entries_.size()) {
    return Error{ErrorCode::kInvalidArgument, "tensor '" + entries_[current_].name + "' of '" + path_ + "' is not complete"};
  }
  if (::fsync(fd_) != 0) return WriteError(path_);
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
