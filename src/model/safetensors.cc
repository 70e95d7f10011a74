#include "model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/json.h"
#include "model/safetensors_limits.h"

namespace pith {

using namespace safetensors_format;  // NOLINT(google-build-using-namespace): four constants

namespace {

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

}  // namespace pith
