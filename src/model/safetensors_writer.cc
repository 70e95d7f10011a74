#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/json.h"
#include "model/safetensors.h"
#include "model/safetensors_limits.h"

namespace pith {

using namespace safetensors_format;  // NOLINT(google-build-using-namespace): four constants

namespace {

constexpr uint64_t kDataAlignment = 64;

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
  writer->file_bytes_ = kLengthBytes + length + offset;
  PITH_ASSIGN(DurableFile file, DurableFile::Create(path));
  writer->file_.emplace(std::move(file));
  char length_bytes[kLengthBytes];
  std::memcpy(length_bytes, &length, sizeof(length));
  PITH_RETURN_IF_ERROR(writer->file_->Write(std::string_view(length_bytes, sizeof(length_bytes))));
  PITH_RETURN_IF_ERROR(writer->file_->Write(text));
  writer->SkipComplete();
  return writer;
}

// Moves on past tensors that have all their bytes, empty ones too.
void SafetensorsWriter::SkipComplete() {
  while (current_ < entries_.size() && written_ == sizes_[current_]) {
    ++current_;
    written_ = 0;
  }
}

Status SafetensorsWriter::Write(std::string_view name, std::span<const std::byte> bytes) {
  if (!file_->open()) return Error{ErrorCode::kInvalidArgument, "'" + file_->path() + "' has been finished"};
  if (bytes.empty()) return {};
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
  SkipComplete();
  return {};
}

Status SafetensorsWriter::Finish() {
  if (file_->open() && current_ != entries_.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 "tensor '" + entries_[current_].name + "' of '" + file_->path() + "' is not complete"};
  }
  return file_->Finish();
}

}  // namespace pith
