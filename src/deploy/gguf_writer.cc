#include "deploy/gguf_writer.h"

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
  writer->file_bytes_ = header.size() + offset;
  PITH_ASSIGN(DurableFile file, DurableFile::Create(path));
  writer->file_.emplace(std::move(file));
  PITH_RETURN_IF_ERROR(writer->file_->Write(header));
  return writer;
}

Status GgufWriter::EndTensor() {
  constexpr char kZeros[kAlignment] = {};
  PITH_RETURN_IF_ERROR(file_->Write(std::string_view(kZeros, Padding(sizes_[current_]))));
  ++current_;
  written_ = 0;
  return {};
}

Status GgufWriter::Write(std::string_view name, std::span<const std::byte> bytes) {
  if (!file_->open()) return Error{ErrorCode::kInvalidArgument, "'" + file_->path() + "' has been finished"};
  if (current_ == entries_.size() || entries_[current_].name != name) {
    const std::string expected =
        current_ == entries_.size() ? "nothing more" : "tensor '" + entries_[current_].name + "'";
    return Error{ErrorCode::kInvalidArgument,
                 "'" + file_->path() + "' expects " + expected + ", not tensor '" + std::string(name) + "'"};
  }
  if (bytes.size() > sizes_[current_] - written_) {
    return Error{ErrorCode::kInvalidArgument, "tensor '" + std::string(name) + "' gets more bytes than its shape has"};
  }
  PITH_RETURN_IF_ERROR(file_->Write(bytes));
  written_ += bytes.size();
  return written_ == sizes_[current_] ? EndTensor() : Status();
}

Status GgufWriter::Finish() {
  if (file_->open() && current_ != entries_.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 "tensor '" + entries_[current_].name + "' of '" + file_->path() + "' is not complete"};
  }
  return file_->Finish();
}

}  // namespace pith
