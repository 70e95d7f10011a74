#include "model/gguf.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace pith {

const char* GgufTypeName(GgufType type) {
  constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                    "bool", "string", "array", "u64", "i64", "f64"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "?";
}

namespace {

constexpr uint64_t kMaxKeyBytes = 65535;    // of the specification
constexpr uint64_t kMaxNameBytes = 64;      // of the specification
constexpr uint32_t kMaxDimensions = 4;      // of the specification
constexpr int64_t kMaxAlignment = 1 << 20;  // far above any page size; keeps rounding-up harmless

template <class T>
T Decode(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// Bytes of one element; 0 for strings and arrays.
uint64_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kString:
    case GgufType::kArray: return 0;
  }
  return 0;
}

// ggml's numbers of tensor types.
struct TensorType {
  uint32_t id;
  const char* name;
  std::optional<DType> type;  // nothing: known, but not read by pith
};
constexpr TensorType kTensorTypes[] = {
    {0, "F32", DType::kF32},    {1, "F16", DType::kF16},   {2, "Q4_0", DType::kQ4_0},  {3, "Q4_1", DType::kQ4_1},
    {6, "Q5_0", DType::kQ5_0},  {7, "Q5_1", DType::kQ5_1}, {8, "Q8_0", DType::kQ8_0},  {9, "Q8_1", {}},
    {10, "Q2_K", {}},           {11, "Q3_K", {}},          {12, "Q4_K", DType::kQ4_K}, {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K}, {15, "Q8_K", {}},          {16, "IQ2_XXS", {}},        {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},        {19, "IQ1_S", {}},         {20, "IQ4_NL", {}},         {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},          {23, "IQ4_XS", {}},        {24, "I8", DType::kI8},     {25, "I16", DType::kI16},
    {26, "I32", DType::kI32},   {27, "I64", DType::kI64},  {28, "F64", DType::kF64},   {29, "IQ1_M", {}},
    {30, "BF16", DType::kBF16}, {34, "TQ1_0", {}},         {35, "TQ2_0", {}},          {39, "MXFP4", {}},
};

// Text of a key or name for a message: printable, and short however long the original is.
std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text.substr(0, 80)) quoted += c >= 0x20 && c < 0x7f ? c : '?';
  return quoted + (text.size() > 80 ? "...'" : "'");
}

bool IsUtf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t code_point;
    const utf8proc_ssize_t used = utf8proc_iterate(bytes, left, &code_point);
    if (used <= 0) return false;
    bytes += used;
    left -= used;
  }
  return true;
}

int64_t DecodeInt(GgufType type, const std::byte* bytes) {
  switch (type) {
    case GgufType::kU8: return Decode<uint8_t>(bytes);
    case GgufType::kI8: return Decode<int8_t>(bytes);
    case GgufType::kU16: return Decode<uint16_t>(bytes);
    case GgufType::kI16: return Decode<int16_t>(bytes);
    case GgufType::kU32: return Decode<uint32_t>(bytes);
    case GgufType::kI32: return Decode<int32_t>(bytes);
    case GgufType::kBool: return Decode<uint8_t>(bytes);
    default: return Decode<int64_t>(bytes);
  }
}

bool IsInteger(GgufType type) {
  return type != GgufType::kF32 && type != GgufType::kF64 && type != GgufType::kBool && ScalarBytes(type) > 0;
}

// The string at `*bytes`, whose length the parser has checked; moves `*bytes` behind it.
std::string_view DecodeString(const std::byte** bytes) {
  const auto length = Decode<uint64_t>(*bytes);
  const std::string_view text(reinterpret_cast<const char*>(*bytes) + 8, length);
  *bytes += 8 + length;
  return text;
}

}  // namespace

// One pass over the header. Every read is checked against the end of the file first.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, GgufFile* file) : bytes_(bytes), file_(*file) {}

  Status Run() {
    PITH_RETURN_IF_ERROR(ReadPreamble());
    PITH_RETURN_IF_ERROR(ReadMetadata());
    PITH_RETURN_IF_ERROR(ReadTensorInfos());
    return BindTensorData();
  }

 private:
  // A tensor whose offset counts from the start of the data section, which is known only after all of them.
  struct Info {
    Tensor tensor;
    uint64_t offset;
  };

  Error Malformed(const std::string& message) const { return {ErrorCode::kMalformed, file_.what_ + ": " + message}; }
  Error Unsupported(const std::string& message) const {
    return {ErrorCode::kUnsupported, file_.what_ + ": " + message};
  }
  Error Truncated(const std::string& where) const { return Malformed("the file ends inside " + where); }

  uint64_t left() const { return bytes_.size() - position_; }

  template <class T>
  bool Read(T* value) {
    if (left() < sizeof(T)) return false;
    *value = Decode<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return true;
  }

  bool ReadString(std::string_view* text) {
    uint64_t length = 0;
    if (!Read(&length) || length > left()) return false;
    *text = {reinterpret_cast<const char*>(bytes_.data()) + position_, length};
    position_ += length;
    return true;
  }

  Status ReadPreamble() {
    if (left() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
      return Malformed("not a GGUF file (it does not begin with \"GGUF\")");
    }
    position_ = 4;
    uint32_t version = 0;
    if (!Read(&version)) return Truncated("the version");
    if (version == 0) return Malformed("version 0 does not exist");
    // Versions are small, so a set upper half is the mark of the other byte order.
    if ((version & 0xffffu) == 0) return Unsupported("big-endian GGUF files are not supported");
    if (version != 2 && version != 3) {
      return Unsupported("GGUF version " + std::to_string(version) + " is not supported (2 and 3 are)");
    }
    file_.version_ = version;
    if (!Read(&tensor_count_) || !Read(&metadata_count_)) return Truncated("the counts");
    // The least that an entry takes: key length, 1 byte of key, type, 1 byte of value; and name length, number of
    // dimensions, type, offset.
    if (metadata_count_ > left() / 14) {
      return Malformed("more metadata entries (" + std::to_string(metadata_count_) + ") than the file has room for");
    }
    if (tensor_count_ > left() / 24) {
      return Malformed("more tensors (" + std::to_string(tensor_count_) + ") than the file has room for");
    }
    return {};
  }

  Status ReadMetadata() {
    for (uint64_t i = 0; i < metadata_count_; ++i) {
      std::string_view key;
      if (!ReadString(&key)) return Truncated("the key of metadata entry " + std::to_string(i));
      if (key.empty()) return Malformed("metadata entry " + std::to_string(i) + " has an empty key");
      if (key.size() > kMaxKeyBytes) return Malformed("key " + Quoted(key) + " is longer than 65535 bytes");
      if (!IsUtf8(key)) return Malformed("key " + Quoted(key) + " is not UTF-8");
      GgufValue value;
      PITH_RETURN_IF_ERROR(ReadValue(key, &value));
      if (!file_.metadata_.emplace(key, value).second) return Malformed("key " + Quoted(key) + " appears twice");
    }
    return {};
  }

  Status ReadType(std::string_view key, GgufType* type) {
    uint32_t number = 0;
    if (!Read(&number)) return Truncated("the type of key " + Quoted(key));
    if (number > static_cast<uint32_t>(GgufType::kF64)) {
      return Malformed("key " + Quoted(key) + " has unknown value type " + std::to_string(number));
    }
    *type = static_cast<GgufType>(number);
    return {};
  }

  Status ReadValue(std::string_view key, GgufValue* value) {
    PITH_RETURN_IF_ERROR(ReadType(key, &value->type));
    if (value->type == GgufType::kArray) {
      value->is_array = true;
      PITH_RETURN_IF_ERROR(ReadType(key, &value->type));
      if (value->type == GgufType::kArray) {
        return Unsupported("key " + Quoted(key) + " holds an array of arrays, which is not supported");
      }
      if (!Read(&value->count)) return Truncated("the length of array " + Quoted(key));
    }
    const uint64_t begin = position_;
    if (value->type == GgufType::kString) {
      if (value->count > left() / 8) return TooLong(key, value->count);
      std::string_view text;
      for (uint64_t i = 0; i < value->count; ++i) {
        if (!ReadString(&text)) return Truncated("a string of key " + Quoted(key));
      }
    } else {
      const uint64_t size = ScalarBytes(value->type);
      if (value->count > left() / size) return TooLong(key, value->count);
      position_ += value->count * size;
    }
    value->bytes = bytes_.subspan(begin, position_ - begin);
    if (value->type == GgufType::kBool) {
      for (const std::byte byte : value->bytes) {
        if (byte > std::byte{1}) return Malformed("key " + Quoted(key) + " has a bool that is neither 0 nor 1");
      }
    }
    return {};
  }

  Error TooLong(std::string_view key, uint64_t count) const {
    return Malformed("the file ends inside the " + std::to_string(count) + " value(s) of key " + Quoted(key));
  }

  Status ReadTensorInfos() {
    infos_.reserve(tensor_count_);
    for (uint64_t i = 0; i < tensor_count_; ++i) PITH_RETURN_IF_ERROR(ReadTensorInfo(i));
    return {};
  }

  Status ReadTensorInfo(uint64_t index) {
    const std::string where = "the entry of tensor " + std::to_string(index);
    std::string_view name;
    if (!ReadString(&name)) return Truncated(where);
    if (name.empty()) return Malformed("tensor " + std::to_string(index) + " has an empty name");
    if (name.size() > kMaxNameBytes) return Malformed("tensor name " + Quoted(name) + " is longer than 64 bytes");
    if (!IsUtf8(name)) return Malformed("tensor name " + Quoted(name) + " is not UTF-8");
    if (!file_.tensor_index_.emplace(name, infos_.size()).second) {
      return Malformed("tensor " + Quoted(name) + " appears twice");
    }
    Info info;
    Tensor& tensor = info.tensor;
    tensor.name = name;

    uint32_t dimensions = 0;
    if (!Read(&dimensions)) return Truncated(where);
    if (dimensions > kMaxDimensions) {
      return Malformed("tensor " + Quoted(name) + " has " + std::to_string(dimensions) +
                       " dimensions, at most 4 exist");
    }
    for (uint32_t d = 0; d < dimensions; ++d) {
      uint64_t size = 0;
      if (!Read(&size)) return Truncated(where);
      if (size == 0 || size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Malformed("tensor " + Quoted(name) + " has dimension " + std::to_string(size));
      }
      tensor.shape.push_back(static_cast<int64_t>(size));
    }
    std::reverse(tensor.shape.begin(), tensor.shape.end());  // the file lists the fastest dimension first

    uint32_t type = 0;
    if (!Read(&type) || !Read(&info.offset)) return Truncated(where);
    const auto* known = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                     [&](const TensorType& candidate) { return candidate.id == type; });
    if (known == std::end(kTensorTypes)) {
      return Malformed("tensor " + Quoted(name) + " has unknown type " + std::to_string(type));
    }
    if (!known->type) {
      return Unsupported("tensor " + Quoted(name) + " has type " + known->name + ", which is not supported");
    }
    tensor.type = *known->type;
    if (!TensorBytes(tensor.type, tensor.shape)) {
      return Malformed("tensor " + Quoted(name) + " of type " + known->name + " cannot have shape " +
                       ShapeText(tensor.shape));
    }
    infos_.push_back(std::move(info));
    return {};
  }

  Status BindTensorData() {
    // Parsed values can be asked for from here on.
    const GgufValue* declared = file_.FindValue("general.alignment");
    if (declared != nullptr && (declared->is_array || declared->type != GgufType::kU32)) {
      return Malformed("key 'general.alignment' is not of type u32");
    }
    PITH_ASSIGN(const int64_t alignment, file_.GetInt("general.alignment", 32));
    if (alignment < 1 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
      return Malformed("general.alignment is " + std::to_string(alignment) + ", not a power of two up to 2^20");
    }
    const auto step = static_cast<uint64_t>(alignment);
    file_.header_ = bytes_.first(position_);
    const uint64_t data_begin = (position_ + step - 1) / step * step;
    if (!infos_.empty() && data_begin > bytes_.size()) return Truncated("the padding before the tensor data");
    const uint64_t data_size = infos_.empty() ? 0 : bytes_.size() - data_begin;

    for (Info& info : infos_) {
      Tensor& tensor = info.tensor;
      const auto size = static_cast<uint64_t>(*TensorBytes(tensor.type, tensor.shape));
      if (info.offset % step != 0) {
        return Malformed("tensor " + Quoted(tensor.name) + " is at offset " + std::to_string(info.offset) +
                         ", which is no multiple of the alignment " + std::to_string(alignment));
      }
      if (info.offset > data_size || size > data_size - info.offset) {
        return Malformed("the data of tensor " + Quoted(tensor.name) + " (" + std::to_string(size) +
                         " bytes at offset " + std::to_string(info.offset) + ") lies outside the file");
      }
      tensor.data = bytes_.subspan(data_begin + info.offset, size);
      tensor.owner = file_.owner_;
      tensor.file = file_.file_;
    }
    PITH_RETURN_IF_ERROR(CheckOverlap());
    file_.tensors_.reserve(infos_.size());
    for (Info& info : infos_) file_.tensors_.push_back(std::move(info.tensor));
    return {};
  }

  Status CheckOverlap() const {
    std::vector<const Tensor*> order;
    order.reserve(infos_.size());
    for (const Info& info : infos_) order.push_back(&info.tensor);
    std::sort(order.begin(), order.end(),
              [](const Tensor* a, const Tensor* b) { return a->data.data() < b->data.data(); });
    for (size_t i = 1; i < order.size(); ++i) {
      const Tensor& before = *order[i - 1];
      if (before.data.data() + before.data.size() > order[i]->data.data()) {
        return Malformed("the data of tensors " + Quoted(before.name) + " and " + Quoted(order[i]->name) + " overlap");
      }
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  GgufFile& file_;
  uint64_t position_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t metadata_count_ = 0;
  std::vector<Info> infos_;
};

Result<std::shared_ptr<const GgufFile>> GgufFile::Open(const std::string& path) {
  PITH_ASSIGN(auto file, MappedFile::Open(path));
  std::shared_ptr<GgufFile> gguf(new GgufFile());
  gguf->what_ = "'" + path + "'";
  gguf->file_ = file;
  gguf->owner_ = file;
  PITH_RETURN_IF_ERROR(GgufParser(file->bytes(), gguf.get()).Run());
  return std::shared_ptr<const GgufFile>(std::move(gguf));
}

Result<std::shared_ptr<const GgufFile>> GgufFile::Parse(std::span<const std::byte> bytes,
                                                        std::shared_ptr<const void> owner, const std::string& what) {
  std::shared_ptr<GgufFile> gguf(new GgufFile());
  gguf->what_ = what;
  gguf->owner_ = std::move(owner);
  PITH_RETURN_IF_ERROR(GgufParser(bytes, gguf.get()).Run());
  return std::shared_ptr<const GgufFile>(std::move(gguf));
}

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

const Tensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

namespace {

Error Absent(const GgufFile& file, std::string_view key) {
  return {ErrorCode::kNotFound, file.what() + " has no metadata key " + Quoted(key)};
}

Error WrongType(const GgufFile& file, std::string_view key, const GgufValue& value, const char* wanted) {
  return {ErrorCode::kMalformed, file.what() + ": key " + Quoted(key) + " is " +
                                     (value.is_array ? "an array of " : "of type ") + GgufTypeName(value.type) +
                                     ", not " + wanted};
}

}  // namespace

Result<std::string_view> GgufFile::GetString(std::string_view key, std::optional<std::string_view> fallback) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return fallback ? Result<std::string_view>(*fallback) : Absent(*this, key);
  if (value->is_array || value->type != GgufType::kString) return WrongType(*this, key, *value, "a string");
  const std::byte* bytes = value->bytes.data();
  return DecodeString(&bytes);
}

Result<int64_t> GgufFile::GetInt(std::string_view key, std::optional<int64_t> fallback) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return fallback ? Result<int64_t>(*fallback) : Absent(*this, key);
  if (value->is_array || !IsInteger(value->type)) return WrongType(*this, key, *value, "an integer");
  const int64_t number = DecodeInt(value->type, value->bytes.data());
  if (value->type == GgufType::kU64 && number < 0) {
    return Error{ErrorCode::kMalformed, what_ + ": key " + Quoted(key) + " is larger than 2^63 - 1"};
  }
  return number;
}

Result<double> GgufFile::GetFloat(std::string_view key, std::optional<double> fallback) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return fallback ? Result<double>(*fallback) : Absent(*this, key);
  if (!value->is_array && value->type == GgufType::kF32) return double{Decode<float>(value->bytes.data())};
  if (!value->is_array && value->type == GgufType::kF64) return Decode<double>(value->bytes.data());
  if (value->is_array || !IsInteger(value->type)) return WrongType(*this, key, *value, "a number");
  PITH_ASSIGN(const int64_t number, GetInt(key));
  return static_cast<double>(number);
}

Result<bool> GgufFile::GetBool(std::string_view key, std::optional<bool> fallback) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return fallback ? Result<bool>(*fallback) : Absent(*this, key);
  if (value->is_array || value->type != GgufType::kBool) return WrongType(*this, key, *value, "a bool");
  return value->bytes[0] != std::byte{0};
}

Result<std::vector<std::string_view>> GgufFile::GetStrings(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return Absent(*this, key);
  if (!value->is_array || value->type != GgufType::kString) return WrongType(*this, key, *value, "an array of strings");
  std::vector<std::string_view> strings;
  strings.reserve(value->count);
  const std::byte* bytes = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i) strings.push_back(DecodeString(&bytes));
  return strings;
}

Result<std::vector<int64_t>> GgufFile::GetInts(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return Absent(*this, key);
  if (!value->is_array || !(IsInteger(value->type) || value->type == GgufType::kBool)) {
    return WrongType(*this, key, *value, "an array of integers");
  }
  std::vector<int64_t> numbers(value->count);
  const uint64_t size = ScalarBytes(value->type);
  for (uint64_t i = 0; i < value->count; ++i) {
    numbers[i] = DecodeInt(value->type, value->bytes.data() + i * size);
    if (value->type == GgufType::kU64 && numbers[i] < 0) {
      return Error{ErrorCode::kMalformed, what_ + ": a value of key " + Quoted(key) + " is larger than 2^63 - 1"};
    }
  }
  return numbers;
}

Result<std::vector<float>> GgufFile::GetFloats(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return Absent(*this, key);
  if (!value->is_array || (value->type != GgufType::kF32 && value->type != GgufType::kF64)) {
    return WrongType(*this, key, *value, "an array of floats");
  }
  std::vector<float> numbers(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::byte* bytes = value->bytes.data();
    numbers[i] = value->type == GgufType::kF32 ? Decode<float>(bytes + 4 * i)
                                               : static_cast<float>(Decode<double>(bytes + 8 * i));
  }
  return numbers;
}

}  // namespace pith
