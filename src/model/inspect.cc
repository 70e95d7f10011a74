#include "model/inspect.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/mapped_file.h"
#include "model/peft_config.h"
#include "model/safetensors.h"
#include "model/tokenizer_file.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

void SetTensors(std::vector<Tensor> tensors, Inspection& inspection) {
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
  for (const Tensor& tensor : tensors) {
    inspection.tensor_bytes += tensor.data.size();
    inspection.parameters += tensor.elements();
  }
  inspection.tensors = std::move(tensors);
}

void SetBitsPerWeight(Inspection& inspection) {
  if (inspection.parameters == 0) return;
  inspection.bits_per_weight =
      8.0 * static_cast<double>(inspection.tensor_bytes) / static_cast<double>(inspection.parameters);
}

// The tokenizer: none is fine, a broken one is not.
Status InspectTokenizer(const Checkpoint& checkpoint, Inspection& inspection) {
  const auto tokenizer = CheckpointTokenizer(checkpoint);
  if (tokenizer.ok()) {
    inspection.tokenizer_size = (*tokenizer)->size();
  } else if (tokenizer.error().code == ErrorCode::kUnsupported) {
    inspection.warnings.push_back(tokenizer.error().message);
  } else if (tokenizer.error().code != ErrorCode::kNotFound) {
    return tokenizer.error();
  }
  return {};
}

Status InspectTemplate(const Checkpoint& checkpoint, Inspection& inspection) {
  const auto family = CheckpointTemplate(checkpoint);
  if (family.ok()) {
    inspection.template_family = *family;
  } else if (family.error().code == ErrorCode::kUnsupported) {
    inspection.template_error = family.error().message;
  } else if (family.error().code != ErrorCode::kNotFound) {
    return family.error();
  }
  return {};
}

Result<Inspection> InspectModel(const std::string& path) {
  Inspection inspection;
  PITH_ASSIGN(inspection.checkpoint, Checkpoint::Open(path));
  const Checkpoint& checkpoint = *inspection.checkpoint;
  inspection.kind = checkpoint.format() == CheckpointFormat::kGguf ? ArtefactKind::kGguf : ArtefactKind::kHuggingFace;
  inspection.file_bytes = checkpoint.file_bytes();
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : checkpoint.tensors()) tensors.push_back(tensor);
  SetTensors(std::move(tensors), inspection);
  inspection.parameters = CountParameters(checkpoint.config());
  SetBitsPerWeight(inspection);
  PITH_RETURN_IF_ERROR(InspectTokenizer(checkpoint, inspection));
  PITH_RETURN_IF_ERROR(InspectTemplate(checkpoint, inspection));
  return inspection;
}

// The module of a PEFT tensor: "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight" ->
// "model.layers.0.mlp.up_proj".
std::optional<std::string> ModuleOfLoraA(const std::string& tensor) {
  constexpr std::string_view kPrefix = "base_model.model.";
  const size_t end = tensor.rfind(".lora_A.");
  if (end == std::string::npos || tensor.rfind(kPrefix, 0) != 0 || end <= kPrefix.size()) return std::nullopt;
  return tensor.substr(kPrefix.size(), end - kPrefix.size());
}

Result<Inspection> InspectAdapter(const fs::path& folder) {
  Inspection inspection;
  inspection.kind = ArtefactKind::kAdapter;
  const std::string config_path = (folder / "adapter_config.json").string();
  PITH_ASSIGN(const auto config_file, MappedFile::Open(config_path));
  const std::string_view text{reinterpret_cast<const char*>(config_file->bytes().data()), config_file->size()};
  PITH_ASSIGN(const PeftConfig peft, PeftConfig::Parse(text, "'" + config_path + "'"));
  PITH_ASSIGN(const auto weights, SafetensorsFile::Open((folder / "adapter_model.safetensors").string()));
  inspection.file_bytes = config_file->size() + weights->file_bytes();
  SetTensors(weights->tensors(), inspection);
  SetBitsPerWeight(inspection);
  inspection.adapter_targets = peft.target_names();
  inspection.warnings = peft.warnings();
  for (const Tensor& tensor : inspection.tensors) {
    const auto module = ModuleOfLoraA(tensor.name);
    if (!module || tensor.shape.size() != 2) continue;
    PITH_ASSIGN(const int64_t declared, peft.Rank(*module));
    if (tensor.shape[0] != declared) {
      return Error{ErrorCode::kMismatch, "'" + tensor.name + "' has rank " + std::to_string(tensor.shape[0]) +
                                             ", adapter_config.json says " + std::to_string(declared)};
    }
    ++inspection.adapter_modules_by_rank[declared];
  }
  if (inspection.adapter_modules_by_rank.empty()) {
    return Error{ErrorCode::kMalformed, "'" + folder.string() + "' holds no lora_A tensor"};
  }
  return inspection;
}

Result<Inspection> InspectSafetensors(const std::string& path) {
  Inspection inspection;
  inspection.kind = ArtefactKind::kSafetensors;
  PITH_ASSIGN(const auto file, SafetensorsFile::Open(path));
  inspection.file_bytes = file->file_bytes();
  SetTensors(file->tensors(), inspection);
  SetBitsPerWeight(inspection);
  return inspection;
}

Result<Inspection> InspectTokenizerFile(const std::string& path) {
  Inspection inspection;
  inspection.kind = ArtefactKind::kTokenizer;
  std::error_code error;
  inspection.file_bytes = fs::file_size(path, error);
  PITH_ASSIGN(const auto tokenizer, OpenTokenizer(path));
  inspection.tokenizer_size = tokenizer->size();
  return inspection;
}

}  // namespace

const char* ArtefactKindName(ArtefactKind kind) {
  switch (kind) {
    case ArtefactKind::kHuggingFace: return "huggingface";
    case ArtefactKind::kGguf: return "gguf";
    case ArtefactKind::kSafetensors: return "safetensors";
    case ArtefactKind::kAdapter: return "adapter";
    case ArtefactKind::kTokenizer: return "tokenizer";
  }
  return "unknown";
}

int64_t CountParameters(const ModelConfig& config) {
  const int64_t q = config.heads * config.head_dim;
  const int64_t kv = config.kv_heads * config.head_dim;
  int64_t layer = config.hidden * (q + 2 * kv) + q * config.hidden;  // attention
  layer += 3 * config.hidden * config.intermediate;                  // MLP
  layer += 2 * config.hidden;                                        // norms
  if (config.attention_bias) layer += q + 2 * kv;
  if (config.attention_out_bias) layer += config.hidden;
  if (config.mlp_bias) layer += 2 * config.intermediate + config.hidden;
  if (config.qk_norm) layer += 2 * config.head_dim;
  const int64_t tables = config.vocab * config.hidden * (config.tied_embeddings ? 1 : 2);
  return tables + config.layers * layer + config.hidden;
}

Result<Inspection> InspectPath(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    if (fs::exists(fs::path(path) / "config.json", error)) return InspectModel(path);
    if (fs::exists(fs::path(path) / "adapter_config.json", error)) return InspectAdapter(path);
    return Error{ErrorCode::kUnsupported, "'" + path + "' holds neither a config.json nor an adapter_config.json"};
  }
  const std::string extension = fs::path(path).extension().string();
  if (extension == ".json") return InspectTokenizerFile(path);
  if (extension == ".safetensors") return InspectSafetensors(path);
  // Anything else must be GGUF; its reader says what is wrong.
  return InspectModel(path);
}

}  // namespace pith
