#include "deploy/onnx_weights.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <vector>

#include "deploy/lora_factors.h"
#include "deploy/matrix_reader.h"
#include "model/hf_names.h"

namespace pith {

namespace {

constexpr uint64_t kAlignment = 4096;
constexpr int64_t kChunkRows = 256;

// Appends constants to one file.
class DataFile {
 public:
  DataFile(const std::string& folder, std::string name, ExternalPlaces* places,
           const std::function<void(uint64_t)>& on_bytes)
      : path_(std::filesystem::path(folder) / name), name_(std::move(name)), places_(*places), on_bytes_(on_bytes) {}

  void Begin(const std::string& constant) {
    if (!file_.is_open()) file_.open(path_, std::ios::binary | std::ios::trunc);
    const std::string zeros((kAlignment - size_ % kAlignment) % kAlignment, '\0');
    file_.write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
    size_ += zeros.size();
    places_[constant] = {name_, size_};
    constant_ = constant;
  }

  Status Append(std::span<const float> values) {
    for (const float value : values) {
      if (!std::isfinite(value)) {
        return Error{ErrorCode::kNumeric, "'" + constant_ + "' holds a value that is not finite"};
      }
    }
    const auto bytes = std::as_bytes(values);
    file_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    size_ += bytes.size();
    if (on_bytes_) on_bytes_(bytes.size());
    return file_ ? Status() : Status(Failure());
  }

  Status Add(const std::string& constant, std::span<const float> values) {
    Begin(constant);
    return Append(values);
  }

  Result<uint64_t> Close() {
    if (!file_.is_open()) return uint64_t{0};
    file_.close();
    if (!file_) return Failure();
    return size_;
  }

 private:
  Error Failure() const { return {ErrorCode::kIo, "cannot write '" + path_.string() + "'"}; }
  std::filesystem::path path_;
  std::string name_;
  ExternalPlaces& places_;
  const std::function<void(uint64_t)>& on_bytes_;
  std::ofstream file_;
  std::string constant_;
  uint64_t size_ = 0;
};

bool BelongsTo(const std::string& module, const GraphPart& part) {
  if (module == "model.embed_tokens") return part.embedding;
  if (module == "lm_head" || module == "model.norm") return part.head;
  for (int64_t layer = part.begin; layer < part.end; ++layer) {
    if (module.starts_with("model.layers." + std::to_string(layer) + ".")) return true;
  }
  return false;
}

Status AddMatrix(const Checkpoint& checkpoint, const FoldedKeys& folded, const std::string& module, int64_t rows,
                 int64_t cols, const std::string& constant, DataFile* file) {
  PITH_ASSIGN(const MatrixReader reader, MatrixReader::Open(checkpoint, module, rows, cols));
  file->Begin(constant);
  std::vector<float> values(static_cast<size_t>(std::min(kChunkRows, rows) * cols));
  for (int64_t begin = 0; begin < rows; begin += kChunkRows) {
    const int64_t end = std::min(begin + kChunkRows, rows);
    for (int64_t row = begin; row < end; ++row) reader.ReadRow(row, values.data() + (row - begin) * cols);
    const auto chunk = std::span(values).first(static_cast<size_t>((end - begin) * cols));
    folded.Apply(module, begin, cols, chunk);
    PITH_RETURN_IF_ERROR(file->Append(chunk));
  }
  return {};
}

std::string Suffix(const GraphPart& part) {
  return std::to_string(part.index) + "_of_" + std::to_string(part.count) + ".bin";
}

}  // namespace

std::string WeightFileName(const GraphPart& part) { return "weights_" + Suffix(part); }
std::string AdapterFileName(const GraphPart& part) { return "adapter_" + Suffix(part); }

Result<PartWeights> WritePartWeights(const Checkpoint& checkpoint, const FoldedKeys& folded, const GraphPart& part,
                                     const AdapterFile* adapter, const SwitcherHead* switcher,
                                     const VerifierHead* verifier, const std::string& folder,
                                     const std::function<void(uint64_t bytes)>& on_bytes) {
  PartWeights weights;
  DataFile base(folder, WeightFileName(part), &weights.places, on_bytes);
  for (const ModelModule& module : ModulesOf(checkpoint.config())) {
    if (!BelongsTo(module.name, part)) continue;
    if (module.kind == ModuleKind::kNorm) {
      PITH_ASSIGN(std::vector<float> values, ReadVector(checkpoint, module.name, "weight", module.shape[0]));
      folded.Apply(module.name, 0, 1, values);
      PITH_RETURN_IF_ERROR(base.Add(module.name + ".weight", values));
      continue;
    }
    PITH_RETURN_IF_ERROR(
        AddMatrix(checkpoint, folded, module.name, module.shape[0], module.shape[1], module.name + ".weight", &base));
    if (!module.bias) continue;
    PITH_ASSIGN(std::vector<float> values, ReadVector(checkpoint, module.name, "bias", module.shape[0]));
    folded.Apply(module.name, 0, 1, values);
    PITH_RETURN_IF_ERROR(base.Add(module.name + ".bias", values));
  }
  const ModelConfig& config = checkpoint.config();
  if (part.head && config.tied_embeddings && !part.embedding) {
    PITH_RETURN_IF_ERROR(
        AddMatrix(checkpoint, folded, "lm_head", config.vocab, config.hidden, "lm_head.weight", &base));
  }
  if (part.head && verifier != nullptr) {
    PITH_RETURN_IF_ERROR(base.Add("verifier.weight", verifier->w));
    PITH_RETURN_IF_ERROR(base.Add("verifier.bias", std::span(&verifier->b, 1)));
  }
  if (part.head && switcher != nullptr) {
    PITH_RETURN_IF_ERROR(base.Add("switcher.fc1.weight", switcher->w1));
    PITH_RETURN_IF_ERROR(base.Add("switcher.fc1.bias", switcher->b1));
    PITH_RETURN_IF_ERROR(base.Add("switcher.fc2.weight", switcher->w2));
    PITH_RETURN_IF_ERROR(base.Add("switcher.fc2.bias", std::span(&switcher->b2, 1)));
  }
  PITH_ASSIGN(weights.base_bytes, base.Close());
  if (adapter == nullptr) return weights;
  DataFile factors(folder, AdapterFileName(part), &weights.places, on_bytes);
  for (const LoraModule& module : adapter->modules) {
    const std::string name = LinearName(module.layer, module.kind);
    if (!BelongsTo(name, part)) continue;
    PITH_ASSIGN(LoraFloats floats, ReadFactors(module));
    for (float& value : floats.b) value *= module.scaling;
    folded.Apply(name, 0, module.rank, floats.b);
    PITH_RETURN_IF_ERROR(factors.Add(name + ".lora_A", floats.a));
    PITH_RETURN_IF_ERROR(factors.Add(name + ".lora_B", floats.b));
  }
  PITH_ASSIGN(weights.adapter_bytes, factors.Close());
  return weights;
}

}  // namespace pith
