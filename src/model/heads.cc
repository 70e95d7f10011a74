#include "model/heads.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/json.h"
#include "model/safetensors.h"

namespace pith {
namespace {

constexpr const char* kHeaderKey = "pith_head";
constexpr int64_t kMaxInner = 1024;
constexpr int64_t kMaxHidden = int64_t{1} << 20;
constexpr int64_t kMaxChunk = 65536;
constexpr size_t kMaxPrompt = 4096;  // bytes

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double Dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

Error Malformed(const std::string& path, const std::string& message) {
  return {ErrorCode::kMalformed, path + ": " + message};
}

// A head's file: the JSON header, and the tensors by name. Fields and tensors that are read are taken out, so that what
// is left is unknown.
class HeadFile {
 public:
  static Result<HeadFile> Open(const std::string& path, const std::string& kind, int64_t hidden) {
    HeadFile head;
    head.path_ = path;
    PITH_ASSIGN(head.file_, SafetensorsFile::Open(path));
    const auto found = head.file_->metadata().find(kHeaderKey);
    if (found == head.file_->metadata().end()) {
      return Malformed(path, std::string("no \"") + kHeaderKey + "\" in the metadata: not a head");
    }
    PITH_ASSIGN(head.header_, ParseJson(found->second, path + ": " + kHeaderKey));
    if (!head.header_.is_object()) return Malformed(path, "the header is not an object");
    for (const Tensor& tensor : head.file_->tensors()) head.unread_.insert(tensor.name);
    PITH_ASSIGN(const std::string stored_kind, head.Text("kind"));
    if (stored_kind != kind) {
      return Error{ErrorCode::kMismatch, path + ": the head is a " + stored_kind + ", not a " + kind};
    }
    PITH_ASSIGN(const int64_t version, head.Integer("version", 0, INT32_MAX));
    if (version != 1) {
      return Error{ErrorCode::kUnsupported, path + ": version " + std::to_string(version) + " of the format"};
    }
    PITH_ASSIGN(const int64_t stored_hidden, head.Integer("hidden_size", 1, kMaxHidden));
    if (stored_hidden != hidden) {
      return Error{ErrorCode::kMismatch, path + ": the head is for states of width " + std::to_string(stored_hidden) +
                                             ", the model's have " + std::to_string(hidden)};
    }
    return head;
  }

  Result<int64_t> Integer(const std::string& key, int64_t least, int64_t most) {
    PITH_ASSIGN(const Json value, Take(key));
    if (!value.is_number_integer()) return Malformed(path_, "\"" + key + "\" is not an integer");
    // Unsigned numbers above the range of int64 would wrap.
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return OutOfRange(key);
    }
    const auto number = value.get<int64_t>();
    if (number < least || number > most) return OutOfRange(key);
    return number;
  }

  Result<double> Number(const std::string& key, double least, double most) {
    PITH_ASSIGN(const Json value, Take(key));
    if (!value.is_number()) return Malformed(path_, "\"" + key + "\" is not a number");
    const auto number = value.get<double>();
    if (!(number >= least && number <= most)) return OutOfRange(key);
    return number;
  }

  Result<std::string> Text(const std::string& key) {
    PITH_ASSIGN(const Json value, Take(key));
    if (!value.is_string()) return Malformed(path_, "\"" + key + "\" is not a string");
    return value.get<std::string>();
  }

  Result<bool> Flag(const std::string& key) {
    PITH_ASSIGN(const Json value, Take(key));
    if (!value.is_boolean()) return Malformed(path_, "\"" + key + "\" is not true or false");
    return value.get<bool>();
  }

  Result<std::vector<float>> Floats(const std::string& name, const std::vector<int64_t>& shape) {
    const Tensor* tensor = file_->Find(name);
    if (tensor == nullptr) return Malformed(path_, "no tensor \"" + name + "\"");
    unread_.erase(name);
    if (tensor->shape != shape) {
      return Malformed(path_,
                       "tensor \"" + name + "\" has shape " + ShapeText(tensor->shape) + ", not " + ShapeText(shape));
    }
    if (tensor->type != DType::kF32 && tensor->type != DType::kF16 && tensor->type != DType::kBF16) {
      return Error{ErrorCode::kUnsupported,
                   path_ + ": tensor \"" + name + "\" is " + DTypeName(tensor->type) + "; F32, F16 and BF16 are read"};
    }
    PITH_ASSIGN(auto values, ToFloats(*tensor));
    if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) {
      return Error{ErrorCode::kNumeric, path_ + ": tensor \"" + name + "\" holds NaN or infinite values"};
    }
    return values;
  }

  Status ExpectNothingElse() const {
    if (!header_.empty()) return Malformed(path_, "unknown field \"" + header_.begin().key() + "\" in the header");
    if (!unread_.empty()) return Malformed(path_, "unknown tensor \"" + *unread_.begin() + "\"");
    return {};
  }

 private:
  Result<Json> Take(const std::string& key) {
    const auto found = header_.find(key);
    if (found == header_.end()) return Malformed(path_, "no \"" + key + "\" in the header");
    Json value = *found;
    header_.erase(found);
    return value;
  }
  Error OutOfRange(const std::string& key) const { return Malformed(path_, "\"" + key + "\" is out of range"); }

  std::string path_;
  std::shared_ptr<const SafetensorsFile> file_;
  Json header_;
  std::set<std::string> unread_;
};

struct NamedFloats {
  std::string name;
  std::vector<int64_t> shape;
  std::span<const float> values;
};

Status WriteHead(const std::string& path, const OrderedJson& header, const std::vector<NamedFloats>& tensors,
                 const std::string& training) {
  std::vector<SafetensorsEntry> entries;
  for (const NamedFloats& tensor : tensors) {
    const auto size = TensorBytes(DType::kF32, tensor.shape);
    if (!size || static_cast<uint64_t>(*size) != tensor.values.size_bytes()) {
      return Error{ErrorCode::kInvalidArgument, "head: \"" + tensor.name + "\" has " +
                                                    std::to_string(tensor.values.size()) + " values, its shape is " +
                                                    ShapeText(tensor.shape)};
    }
    if (!std::all_of(tensor.values.begin(), tensor.values.end(), [](float value) { return std::isfinite(value); })) {
      return Error{ErrorCode::kInvalidArgument, "head: \"" + tensor.name + "\" holds NaN or infinite values"};
    }
    entries.push_back({tensor.name, DType::kF32, tensor.shape});
  }
  std::map<std::string, std::string> metadata{{kHeaderKey, header.dump()}};
  if (!training.empty()) metadata[kHeadTrainingKey] = training;
  PITH_ASSIGN(const auto writer, SafetensorsWriter::Create(path, entries, metadata));
  for (const NamedFloats& tensor : tensors) {
    PITH_RETURN_IF_ERROR(writer->Write(tensor.name, std::as_bytes(tensor.values)));
  }
  return writer->Finish();
}

Status CheckRange(bool ok, const char* what) {
  if (ok) return {};
  return Error{ErrorCode::kInvalidArgument, std::string("head: ") + what + " is out of range"};
}

}  // namespace

double SwitcherHead::Score(std::span<const float> state) const {
  double logit = b2;
  for (int64_t i = 0; i < inner; ++i) {
    const auto at = static_cast<size_t>(i);
    const double value = Dot(w1.data() + i * hidden, state.data(), hidden) + static_cast<double>(b1[at]);
    logit += std::max(value, 0.0) * static_cast<double>(w2[at]);
  }
  return Sigmoid(logit);
}

double VerifierHead::Score(std::span<const float> state) const {
  return Sigmoid(Dot(w.data(), state.data(), hidden) + static_cast<double>(b));
}

Result<SwitcherHead> ReadSwitcher(const std::string& path, int64_t hidden) {
  PITH_ASSIGN(HeadFile file, HeadFile::Open(path, "switcher", hidden));
  SwitcherHead head;
  head.hidden = hidden;
  PITH_ASSIGN(head.inner, file.Integer("inner_size", 1, kMaxInner));
  PITH_ASSIGN(head.pooling.chunk, file.Integer("chunk", 1, kMaxChunk));
  PITH_ASSIGN(head.pooling.alpha, file.Number("alpha", 1e-6, 1));
  PITH_ASSIGN(head.threshold, file.Number("threshold", 0, 1));
  PITH_ASSIGN(head.w1, file.Floats("fc1.weight", {head.inner, hidden}));
  PITH_ASSIGN(head.b1, file.Floats("fc1.bias", {head.inner}));
  PITH_ASSIGN(head.w2, file.Floats("fc2.weight", {1, head.inner}));
  PITH_ASSIGN(const auto b2, file.Floats("fc2.bias", {1}));
  head.b2 = b2[0];
  PITH_RETURN_IF_ERROR(file.ExpectNothingElse());
  return head;
}

Result<VerifierHead> ReadVerifier(const std::string& path, int64_t hidden) {
  PITH_ASSIGN(HeadFile file, HeadFile::Open(path, "verifier", hidden));
  VerifierHead head;
  head.hidden = hidden;
  PITH_ASSIGN(head.prompt, file.Text("prompt"));
  if (head.prompt.empty() || head.prompt.size() > kMaxPrompt) {
    return Malformed(path, "\"prompt\" must have 1 to " + std::to_string(kMaxPrompt) + " bytes");
  }
  PITH_ASSIGN(head.adapter, file.Flag("adapter"));
  PITH_ASSIGN(head.w, file.Floats("weight", {1, hidden}));
  PITH_ASSIGN(const auto b, file.Floats("bias", {1}));
  head.b = b[0];
  PITH_RETURN_IF_ERROR(file.ExpectNothingElse());
  return head;
}

Status WriteSwitcher(const std::string& path, const SwitcherHead& head, const std::string& training) {
  PITH_RETURN_IF_ERROR(CheckRange(head.hidden >= 1 && head.hidden <= kMaxHidden, "hidden"));
  PITH_RETURN_IF_ERROR(CheckRange(head.inner >= 1 && head.inner <= kMaxInner, "inner"));
  PITH_RETURN_IF_ERROR(CheckRange(head.pooling.chunk >= 1 && head.pooling.chunk <= kMaxChunk, "chunk"));
  PITH_RETURN_IF_ERROR(CheckRange(head.pooling.alpha >= 1e-6 && head.pooling.alpha <= 1, "alpha"));
  PITH_RETURN_IF_ERROR(CheckRange(head.threshold >= 0 && head.threshold <= 1, "threshold"));
  const OrderedJson header{{"kind", "switcher"},          {"version", 1},
                           {"hidden_size", head.hidden},  {"inner_size", head.inner},
                           {"chunk", head.pooling.chunk}, {"alpha", head.pooling.alpha},
                           {"threshold", head.threshold}};
  return WriteHead(path, header,
                   {{"fc1.weight", {head.inner, head.hidden}, head.w1},
                    {"fc1.bias", {head.inner}, head.b1},
                    {"fc2.weight", {1, head.inner}, head.w2},
                    {"fc2.bias", {1}, {&head.b2, 1}}},
                   training);
}

Status WriteVerifier(const std::string& path, const VerifierHead& head, const std::string& training) {
  PITH_RETURN_IF_ERROR(CheckRange(head.hidden >= 1 && head.hidden <= kMaxHidden, "hidden"));
  PITH_RETURN_IF_ERROR(
      CheckRange(!head.prompt.empty() && head.prompt.size() <= kMaxPrompt, "the length of the prompt"));
  const OrderedJson header{{"kind", "verifier"},
                           {"version", 1},
                           {"hidden_size", head.hidden},
                           {"prompt", head.prompt},
                           {"adapter", head.adapter}};
  // A prompt that is not UTF-8 cannot be JSON.
  try {
    (void)header.dump();
  } catch (const Json::exception&) {
    return Error{ErrorCode::kInvalidArgument, "head: the prompt is not valid UTF-8"};
  }
  return WriteHead(path, header, {{"weight", {1, head.hidden}, head.w}, {"bias", {1}, {&head.b, 1}}}, training);
}

}  // namespace pith
