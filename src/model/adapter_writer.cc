#include "model/adapter_writer.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "base/durable_file.h"
#include "base/json.h"
#include "model/safetensors.h"

namespace pith {

namespace {

constexpr const char* kPeftVersion = "0.18.0";  // whose rules the config follows

std::string NameOf(const LoraWeights& module) { return LinearName(module.layer, module.kind); }

// The name as a regular expression that matches only itself.
std::string Escaped(const std::string& name) {
  std::string text;
  for (const char c : name) text += c == '.' ? std::string("\\.") : std::string(1, c);
  return text;
}

// Short names ("q_proj") if they select exactly these modules, else full names.
std::vector<std::string> TargetModules(const ModelConfig& config, std::span<const LoraWeights> modules) {
  std::map<LinearKind, int64_t> count;
  for (const LoraWeights& module : modules) ++count[module.kind];
  const bool all_layers = std::ranges::all_of(
      count, [&](const auto& entry) { return entry.first == LinearKind::kLmHead || entry.second == config.layers; });
  std::vector<std::string> names;
  if (all_layers) {
    for (const auto& [kind, number] : count) names.emplace_back(LinearKindName(kind));
  } else {
    for (const LoraWeights& module : modules) names.push_back(NameOf(module));
  }
  std::ranges::sort(names);
  return names;
}

// JSON as PEFT writes it: whole numbers without a fraction.
OrderedJson Number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

std::string ConfigText(const ModelConfig& config, std::span<const LoraWeights> modules,
                       const AdapterWriteOptions& options) {
  // The values of the first module are the general ones; the others are named where they differ.
  const int64_t rank = modules.front().rank;
  const double alpha = modules.front().alpha;
  OrderedJson ranks = OrderedJson::object();
  OrderedJson alphas = OrderedJson::object();
  for (const LoraWeights& module : modules) {
    if (module.rank != rank) ranks[Escaped(NameOf(module))] = module.rank;
    if (module.alpha != alpha) alphas[Escaped(NameOf(module))] = Number(module.alpha);
  }
  OrderedJson json = OrderedJson::object();
  json["alora_invocation_tokens"] = options.invocation.empty() ? OrderedJson() : OrderedJson(options.invocation);
  json["alpha_pattern"] = alphas;
  json["base_model_name_or_path"] = options.base_model.empty() ? OrderedJson() : OrderedJson(options.base_model);
  json["bias"] = "none";
  json["fan_in_fan_out"] = false;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  json["lora_alpha"] = Number(alpha);
  json["lora_dropout"] = options.dropout;
  json["modules_to_save"] = nullptr;
  json["peft_type"] = options.storage == AdapterStorage::kInt8 ? kInt8PeftType : "LORA";
  json["peft_version"] = kPeftVersion;
  json["r"] = rank;
  json["rank_pattern"] = ranks;
  json["target_modules"] = TargetModules(config, modules);
  json["task_type"] = "CAUSAL_LM";
  json["use_dora"] = false;
  json["use_rslora"] = options.rslora;
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

// One factor as it goes to disk.
struct Factor {
  std::string name;  // without ".weight"
  int64_t rows;
  int64_t cols;
  std::span<const float> values;
};

std::vector<Factor> FactorsOf(const ModelConfig& config, std::span<const LoraWeights> modules) {
  std::vector<Factor> factors;
  for (const LoraWeights& module : modules) {
    const LinearShape shape = ShapeOf(config, module.kind);
    const std::string prefix = "base_model.model." + NameOf(module);
    factors.push_back({prefix + ".lora_A", module.rank, shape.in, module.a});
    factors.push_back({prefix + ".lora_B", shape.out, module.rank, module.b});
  }
  return factors;
}

// Symmetric, one scale per row. A row whose scale would not be a normal number is stored as zeros.
struct Int8Rows {
  std::vector<int8_t> values;
  std::vector<float> scales;
};
Int8Rows QuantizeRows(const Factor& factor) {
  Int8Rows rows{std::vector<int8_t>(factor.values.size()), std::vector<float>(static_cast<size_t>(factor.rows))};
  const auto cols = static_cast<size_t>(factor.cols);
  for (size_t r = 0; r < rows.scales.size(); ++r) {
    const auto row = factor.values.subspan(r * cols, cols);
    float largest = 0;
    for (const float value : row) largest = std::max(largest, std::abs(value));
    const float scale = largest / 127.0f;
    if (scale < FLT_MIN) continue;
    rows.scales[r] = scale;
    for (size_t c = 0; c < cols; ++c) {
      rows.values[r * cols + c] = static_cast<int8_t>(std::clamp(std::nearbyint(row[c] / scale), -127.0f, 127.0f));
    }
  }
  return rows;
}

template <class T>
std::span<const std::byte> BytesOf(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

Status WriteFloats(SafetensorsWriter& writer, const std::vector<Factor>& factors, AdapterStorage storage) {
  for (const Factor& factor : factors) {
    const std::string name = factor.name + ".weight";
    if (storage == AdapterStorage::kF32) {
      PITH_RETURN_IF_ERROR(writer.Write(name, std::as_bytes(factor.values)));
      continue;
    }
    std::vector<uint16_t> rounded(factor.values.size());
    std::ranges::transform(factor.values, rounded.begin(), F32ToBF16);
    PITH_RETURN_IF_ERROR(writer.Write(name, BytesOf(rounded)));
  }
  return {};
}

Status WriteInt8(SafetensorsWriter& writer, const std::vector<Factor>& factors) {
  std::vector<Int8Rows> rows;
  for (const Factor& factor : factors) rows.push_back(QuantizeRows(factor));
  for (size_t i = 0; i < rows.size(); ++i)
    PITH_RETURN_IF_ERROR(writer.Write(factors[i].name + ".weight_scale", BytesOf(rows[i].scales)));
  for (size_t i = 0; i < rows.size(); ++i)
    PITH_RETURN_IF_ERROR(writer.Write(factors[i].name + ".weight", BytesOf(rows[i].values)));
  return {};
}

std::vector<SafetensorsEntry> EntriesOf(const std::vector<Factor>& factors, AdapterStorage storage) {
  std::vector<SafetensorsEntry> entries;
  if (storage == AdapterStorage::kInt8) {  // wide types first keep the scales aligned
    for (const Factor& factor : factors) entries.push_back({factor.name + ".weight_scale", DType::kF32, {factor.rows}});
  }
  const DType type = storage == AdapterStorage::kF32    ? DType::kF32
                     : storage == AdapterStorage::kBF16 ? DType::kBF16
                                                        : DType::kI8;
  for (const Factor& factor : factors) entries.push_back({factor.name + ".weight", type, {factor.rows, factor.cols}});
  return entries;
}

}  // namespace

Status CheckLoraWeights(const ModelConfig& config, std::span<const LoraWeights> modules) {
  if (modules.empty()) return Error{ErrorCode::kInvalidArgument, "an adapter needs at least one module"};
  std::set<std::string> seen;
  for (const LoraWeights& module : modules) {
    const std::string name = NameOf(module);
    const auto bad = [&](const std::string& problem) {
      return Error{ErrorCode::kInvalidArgument, "module '" + name + "' " + problem};
    };
    if (module.kind != LinearKind::kLmHead && (module.layer < 0 || module.layer >= config.layers))
      return bad("lies outside the model");
    if (!seen.insert(name).second) return bad("comes twice");
    if (module.rank < 1 || module.rank > kMaxLoraRank) return bad("has rank " + std::to_string(module.rank));
    if (!std::isfinite(module.alpha)) return bad("has an alpha that is not finite");
    const LinearShape shape = ShapeOf(config, module.kind);
    if (static_cast<int64_t>(module.a.size()) != module.rank * shape.in) return bad("has a factor A of the wrong size");
    if (static_cast<int64_t>(module.b.size()) != module.rank * shape.out)
      return bad("has a factor B of the wrong size");
    const auto finite = [](float value) { return std::isfinite(value); };
    if (!std::ranges::all_of(module.a, finite) || !std::ranges::all_of(module.b, finite))
      return bad("holds NaN or infinity");
  }
  return {};
}

Status WriteAdapter(const std::string& dir, const ModelConfig& config, std::span<const LoraWeights> modules,
                    const AdapterWriteOptions& options) {
  PITH_RETURN_IF_ERROR(CheckLoraWeights(config, modules));
  if (!(options.dropout >= 0 && options.dropout < 1))
    return Error{ErrorCode::kInvalidArgument, "dropout is outside [0, 1)"};
  for (const int32_t id : options.invocation) {
    if (id < 0 || id >= config.vocab) {
      return Error{ErrorCode::kInvalidArgument,
                   "invocation token " + std::to_string(id) + " is outside the vocabulary"};
    }
  }
  std::error_code error;
  const std::filesystem::path folder = dir;
  std::filesystem::create_directories(folder, error);
  if (error) return Error{ErrorCode::kIo, "cannot create '" + dir + "': " + error.message()};

  const std::vector<Factor> factors = FactorsOf(config, modules);
  PITH_ASSIGN(const auto writer, SafetensorsWriter::Create((folder / "adapter_model.safetensors").string(),
                                                           EntriesOf(factors, options.storage), {{"format", "pt"}}));
  if (options.storage == AdapterStorage::kInt8) {
    PITH_RETURN_IF_ERROR(WriteInt8(*writer, factors));
  } else {
    PITH_RETURN_IF_ERROR(WriteFloats(*writer, factors, options.storage));
  }
  PITH_RETURN_IF_ERROR(writer->Finish());
  return WriteFileDurably((folder / "adapter_config.json").string(), ConfigText(config, modules, options));
}

}  // namespace pith
