#include "model/adapter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/mapped_file.h"
#include "base/sha256.h"
#include "model/peft_config.h"
#include "model/safetensors.h"

namespace pith {

namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{4} << 20;

struct LinearNames {
  LinearKind kind;
  const char* name;
  const char* parent;  // module of the layer that holds it
};
constexpr std::array<LinearNames, 8> kLinears = {{
    {LinearKind::kQ, "q_proj", "self_attn"},
    {LinearKind::kK, "k_proj", "self_attn"},
    {LinearKind::kV, "v_proj", "self_attn"},
    {LinearKind::kO, "o_proj", "self_attn"},
    {LinearKind::kGate, "gate_proj", "mlp"},
    {LinearKind::kUp, "up_proj", "mlp"},
    {LinearKind::kDown, "down_proj", "mlp"},
    {LinearKind::kLmHead, "lm_head", nullptr},
}};

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace

const char* LinearKindName(LinearKind kind) { return kLinears[static_cast<size_t>(kind)].name; }

std::string LinearName(int64_t layer, LinearKind kind) {
  const LinearNames& names = kLinears[static_cast<size_t>(kind)];
  if (kind == LinearKind::kLmHead) return names.name;
  return "model.layers." + std::to_string(layer) + "." + names.parent + "." + names.name;
}

LinearShape ShapeOf(const ModelConfig& config, LinearKind kind) {
  const int64_t query = config.heads * config.head_dim;
  const int64_t key = config.kv_heads * config.head_dim;
  switch (kind) {
    case LinearKind::kQ: return {query, config.hidden};
    case LinearKind::kK:
    case LinearKind::kV: return {key, config.hidden};
    case LinearKind::kO: return {config.hidden, query};
    case LinearKind::kGate:
    case LinearKind::kUp: return {config.intermediate, config.hidden};
    case LinearKind::kDown: return {config.hidden, config.intermediate};
    case LinearKind::kLmHead: break;
  }
  return {config.vocab, config.hidden};
}

std::optional<size_t> FindInvocation(std::span<const int32_t> tokens, std::span<const int32_t> pattern) {
  if (pattern.empty()) return std::nullopt;
  const auto found = std::find_end(tokens.begin(), tokens.end(), pattern.begin(), pattern.end());
  if (found == tokens.end()) return std::nullopt;
  return static_cast<size_t>(found - tokens.begin());
}

namespace {

// A linear of the model; the LM head has layer -1 but sorts last.
struct ModuleKey {
  int64_t layer = 0;
  LinearKind kind = LinearKind::kQ;

  auto operator<=>(const ModuleKey& other) const {
    return std::pair(kind == LinearKind::kLmHead, std::pair(layer, kind)) <=>
           std::pair(other.kind == LinearKind::kLmHead, std::pair(other.layer, other.kind));
  }
  bool operator==(const ModuleKey&) const = default;
  std::string Name() const { return LinearName(layer, kind); }
};

std::vector<ModuleKey> AllLinears(const ModelConfig& config) {
  std::vector<ModuleKey> keys;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const LinearNames& linear : kLinears) {
      if (linear.kind != LinearKind::kLmHead) keys.push_back({layer, linear.kind});
    }
  }
  keys.push_back({-1, LinearKind::kLmHead});
  return keys;
}

// What a tensor name of the weights file stands for.
struct FactorName {
  ModuleKey module;
  bool is_b = false;
  bool is_scale = false;
  std::string_view adapter;  // name between "lora_A" and "weight", usually none
};

// "model.layers.3.self_attn.q_proj" -> (3, q); nothing for any other text. The layer may lie outside the model.
std::optional<ModuleKey> ParseModule(std::string_view name) {
  if (name == "lm_head") return ModuleKey{-1, LinearKind::kLmHead};
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || layer < 0) return std::nullopt;
  for (const LinearNames& linear : kLinears) {
    if (linear.parent == nullptr) continue;
    // Composed again and compared, so that "03" or "+3" is no layer.
    if (std::string_view(end, name.data() + name.size()) == std::string(".") + linear.parent + "." + linear.name &&
        std::to_string(layer) == std::string_view(name.data(), end)) {
      return ModuleKey{layer, linear.kind};
    }
  }
  return std::nullopt;
}

Error TensorError(ErrorCode code, const std::string& tensor, const std::string& problem) {
  return {code, "tensor '" + tensor + "' " + problem};
}

Result<FactorName> ParseTensorName(const std::string& name, const ModelConfig& config) {
  constexpr std::string_view kPrefix = "base_model.model.";
  constexpr std::string_view kMark = ".lora_";
  const std::string_view text = name;
  const size_t mark = text.find(kMark);
  if (text.find(".modules_to_save.") != text.npos || (mark == text.npos && text.ends_with(".weight"))) {
    return TensorError(
        ErrorCode::kUnsupported, name,
        "is a full copy of a weight, which cannot be carried beside a shared base; merge it into the base model, "
        "or save the adapter without it (modules_to_save, save_embedding_layers=False)");
  }
  if (mark == text.npos) return TensorError(ErrorCode::kUnsupported, name, "is not a LoRA factor");

  FactorName factor;
  std::string_view rest = text.substr(mark + kMark.size());  // "A.weight", "A.default.weight"
  if (rest.starts_with("embedding_"))
    return TensorError(ErrorCode::kUnsupported, name, "adapts the embedding; only linears can be adapted");
  if (rest.starts_with("magnitude_vector")) return TensorError(ErrorCode::kUnsupported, name, "belongs to DoRA");
  if (rest.ends_with(".bias")) return TensorError(ErrorCode::kUnsupported, name, "is a bias on a LoRA factor");
  if (!rest.starts_with("A.") && !rest.starts_with("B."))
    return TensorError(ErrorCode::kUnsupported, name, "is not a LoRA factor A or B");
  factor.is_b = rest[0] == 'B';
  rest.remove_prefix(2);
  const size_t dot = rest.rfind('.');
  if (dot != rest.npos) {
    factor.adapter = rest.substr(0, dot);
    rest.remove_prefix(dot + 1);
  }
  factor.is_scale = rest == "weight_scale";
  if ((rest != "weight" && !factor.is_scale) || factor.adapter.find('.') != factor.adapter.npos) {
    return TensorError(ErrorCode::kUnsupported, name, "is not the weight of a LoRA factor");
  }

  std::string_view module = text.substr(0, mark);
  const bool prefixed = module.starts_with(kPrefix);
  if (prefixed) module.remove_prefix(kPrefix.size());
  const auto key = prefixed ? ParseModule(module) : std::nullopt;
  if (!key) {
    return TensorError(ErrorCode::kMismatch, name,
                       "names no linear of the model (expected 'base_model.model." + LinearName(0, LinearKind::kQ) +
                           ".lora_A.weight' and the like)");
  }
  if (key->layer >= config.layers) {
    return TensorError(ErrorCode::kMismatch, name,
                       "names a layer that the model does not have (it has " + std::to_string(config.layers) + ")");
  }
  factor.module = *key;
  return factor;
}

// Whether every element is finite; the type is F32, F16 or BF16. Reads element by element: a mapped file need not be
// aligned.
template <class Word>
bool AllFinite(std::span<const std::byte> data, Word exponent) {
  bool finite = true;
  for (size_t i = 0; i + sizeof(Word) <= data.size(); i += sizeof(Word)) {
    Word word;
    std::memcpy(&word, data.data() + i, sizeof(word));
    finite &= (word & exponent) != exponent;
  }
  return finite;
}

Status CheckValues(const Tensor& tensor) {
  bool finite = true;
  switch (tensor.type) {
    case DType::kF32: finite = AllFinite<uint32_t>(tensor.data, 0x7F800000u); break;
    case DType::kF16: finite = AllFinite<uint16_t>(tensor.data, uint16_t{0x7C00}); break;
    case DType::kBF16: finite = AllFinite<uint16_t>(tensor.data, uint16_t{0x7F80}); break;
    default: break;
  }
  if (!finite) return TensorError(ErrorCode::kNumeric, tensor.name, "holds NaN or infinity");
  return {};
}

// The tensors of one module, as they are found.
struct Factors {
  const Tensor* a = nullptr;
  const Tensor* b = nullptr;
  const Tensor* a_scale = nullptr;
  const Tensor* b_scale = nullptr;

  const Tensor*& Slot(const FactorName& name) {
    if (name.is_scale) return name.is_b ? b_scale : a_scale;
    return name.is_b ? b : a;
  }
};

Result<std::map<ModuleKey, Factors>> CollectFactors(const SafetensorsFile& weights, const ModelConfig& config) {
  std::map<ModuleKey, Factors> found;
  std::optional<std::string_view> adapter;
  for (const Tensor& tensor : weights.tensors()) {
    PITH_ASSIGN(const FactorName name, ParseTensorName(tensor.name, config));
    if (!adapter) adapter = name.adapter;
    if (*adapter != name.adapter) {
      return TensorError(ErrorCode::kUnsupported, tensor.name, "belongs to a second adapter in the same file");
    }
    const Tensor*& slot = found[name.module].Slot(name);
    if (slot != nullptr) return TensorError(ErrorCode::kMalformed, tensor.name, "comes twice");
    slot = &tensor;
  }
  return found;
}

Status CheckFactor(const Tensor& tensor, const Tensor* scale, int64_t rows, int64_t cols) {
  if (tensor.type != DType::kF32 && tensor.type != DType::kF16 && tensor.type != DType::kBF16 &&
      tensor.type != DType::kI8) {
    return TensorError(ErrorCode::kUnsupported, tensor.name,
                       std::string("has type ") + DTypeName(tensor.type) + ", not F32, F16, BF16 or I8");
  }
  if (tensor.shape != std::vector<int64_t>{rows, cols}) {
    return TensorError(ErrorCode::kMismatch, tensor.name,
                       "has shape " + ShapeText(tensor.shape) + ", not " + ShapeText({rows, cols}) +
                           " as the model and the declared rank give");
  }
  PITH_RETURN_IF_ERROR(CheckValues(tensor));
  if (tensor.type != DType::kI8) {
    if (scale != nullptr)
      return TensorError(ErrorCode::kMismatch, scale->name, "is a scale of a tensor that is not I8");
    return {};
  }
  if (scale == nullptr)
    return TensorError(ErrorCode::kMismatch, tensor.name, "is I8 but has no weight_scale beside it");
  if (scale->type != DType::kF32 || scale->shape != std::vector<int64_t>{rows}) {
    return TensorError(ErrorCode::kMismatch, scale->name,
                       "is not F32 with one scale for each of " + std::to_string(rows) + " rows");
  }
  return CheckValues(*scale);
}

Result<LoraModule> BindModule(const ModuleKey& key, const Factors& factors, const ModelConfig& config,
                              const PeftConfig& peft) {
  const std::string name = key.Name();
  if (factors.a == nullptr || factors.b == nullptr) {
    return Error{ErrorCode::kMismatch,
                 "module '" + name + "' has no tensor " + (factors.a == nullptr ? "lora_A" : "lora_B")};
  }
  LoraModule module;
  module.layer = key.layer;
  module.kind = key.kind;
  PITH_ASSIGN(module.rank, peft.Rank(name));
  PITH_ASSIGN(const double alpha, peft.Alpha(name));
  module.scaling = static_cast<float>(peft.Scaling(module.rank, alpha));
  const LinearShape shape = ShapeOf(config, key.kind);
  PITH_RETURN_IF_ERROR(CheckFactor(*factors.a, factors.a_scale, module.rank, shape.in));
  PITH_RETURN_IF_ERROR(CheckFactor(*factors.b, factors.b_scale, shape.out, module.rank));
  if ((factors.a->type == DType::kI8) != (factors.b->type == DType::kI8)) {
    return Error{ErrorCode::kMismatch,
                 "module '" + name + "': lora_A and lora_B must both be I8 or both be floating point"};
  }
  module.a = *factors.a;
  module.b = *factors.b;
  if (factors.a_scale != nullptr) {
    module.a_scale = *factors.a_scale;
    module.b_scale = *factors.b_scale;
  }
  return module;
}

// The modules with tensors must be exactly those that the config declares.
Status CheckDeclared(const std::map<ModuleKey, Factors>& found, const ModelConfig& config, const PeftConfig& peft) {
  const std::vector<ModuleKey> linears = AllLinears(config);
  for (const std::string& target : peft.target_names()) {
    const bool known = std::ranges::any_of(linears, [&](const ModuleKey& key) {
      const std::string name = key.Name();
      return name == target || name.ends_with("." + target);
    });
    if (!known) return Error{ErrorCode::kMismatch, "target_modules: '" + target + "' is no linear of the model"};
  }
  size_t declared = 0;
  for (const ModuleKey& key : linears) {
    const std::string name = key.Name();
    PITH_ASSIGN(const bool target, peft.Targets(name));
    const bool present = found.contains(key);
    if (target) ++declared;
    if (target && !present)
      return Error{ErrorCode::kMismatch, "module '" + name + "' is declared by target_modules but has no tensors"};
    if (present && !target)
      return Error{ErrorCode::kMismatch, "module '" + name + "' has tensors but is not declared by target_modules"};
  }
  if (declared == 0) return Error{ErrorCode::kMismatch, "target_modules declares no linear of the model"};
  return {};
}

Result<std::shared_ptr<const MappedFile>> OpenConfigFile(const std::string& path) {
  PITH_ASSIGN(auto file, MappedFile::Open(path));
  if (file->size() > kMaxConfigBytes) {
    return Error{ErrorCode::kMalformed, "'" + path + "' is too large (" + std::to_string(file->size()) + " bytes)"};
  }
  return file;
}

Result<std::shared_ptr<const SafetensorsFile>> OpenWeights(const std::filesystem::path& folder) {
  const auto path = folder / "adapter_model.safetensors";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored) && std::filesystem::exists(folder / "adapter_model.bin", ignored)) {
    return Error{ErrorCode::kUnsupported,
                 "'" + (folder / "adapter_model.bin").string() + "' is a pickle; save the adapter as safetensors"};
  }
  return SafetensorsFile::Open(path.string());
}

std::string Fingerprint(std::span<const std::byte> config, const SafetensorsFile& weights) {
  Digest digest;
  digest.Update("pith adapter 1 " + std::to_string(config.size()) + "\n");
  digest.Update(config);
  digest.Update(weights.header());
  for (const Tensor& tensor : weights.tensors()) digest.Update(tensor.data);
  return digest.Finish();
}

}  // namespace

Result<std::shared_ptr<const AdapterFile>> AdapterFile::Open(const std::string& dir, const ModelConfig& config) {
  const std::filesystem::path folder = dir;
  const std::string config_path = (folder / "adapter_config.json").string();
  PITH_ASSIGN(const auto config_file, OpenConfigFile(config_path));
  const auto config_bytes = config_file->bytes();
  PITH_ASSIGN(const PeftConfig peft,
              PeftConfig::Parse({reinterpret_cast<const char*>(config_bytes.data()), config_bytes.size()},
                                "'" + config_path + "'"));
  for (const int32_t id : peft.invocation()) {
    if (id >= config.vocab) {
      return Error{ErrorCode::kMismatch, "'" + config_path + "': alora_invocation_tokens: " + std::to_string(id) +
                                             " is outside the vocabulary of " + std::to_string(config.vocab)};
    }
  }
  PITH_ASSIGN(const auto weights, OpenWeights(folder));

  const std::string context = "adapter '" + dir + "'";
  auto found = CollectFactors(*weights, config);
  if (!found.ok()) return found.error().Wrap(context);
  if (const Status status = CheckDeclared(*found, config, peft); !status.ok()) return status.error().Wrap(context);

  auto adapter = std::make_shared<AdapterFile>();
  adapter->path = dir;
  adapter->invocation = peft.invocation();
  adapter->warnings = peft.warnings();
  adapter->file_bytes = config_file->size() + weights->file_bytes();
  size_t silent = 0;
  for (const auto& [key, factors] : *found) {
    auto module = BindModule(key, factors, config, peft);
    if (!module.ok()) return module.error().Wrap(context);
    adapter->max_rank = std::max(adapter->max_rank, module->rank);
    silent += module->scaling == 0 ? 1 : 0;
    adapter->modules.push_back(std::move(*module));
  }
  if (silent > 0)
    adapter->warnings.push_back(context + ": " + std::to_string(silent) + " modules have scaling 0 and no effect");
  adapter->fingerprint = Fingerprint(config_bytes, *weights);
  return std::shared_ptr<const AdapterFile>(std::move(adapter));
}

}  // namespace pith
