#include "model/quantization_config.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>

#include "base/json.h"

namespace pith {

const QuantScheme* QuantizationConfig::SchemeFor(const std::string& module) const {
  if (ignore.count(module) != 0) return nullptr;
  const auto found = by_module.find(module);
  return found == by_module.end() ? &linear : &found->second;
}

namespace {

constexpr size_t kMaxPatternBytes = 1000;
constexpr uint32_t kMatchLimit = 20'000;  // steps of one match; patterns of real files need tens

bool IsNull(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null();
}

// A target or ignore entry: a module name, a class name or a pattern.
class Target {
 public:
  static Result<Target> Make(const std::string& text, const std::string& what) {
    constexpr std::string_view kPattern = "re:";
    Target target;
    target.text_ = text;
    if (text.substr(0, kPattern.size()) != kPattern) return target;
    if (text.size() > kMaxPatternBytes) return Error{ErrorCode::kMalformed, what + ": a target pattern is too long"};
    const std::string pattern = text.substr(kPattern.size());
    int code = 0;
    PCRE2_SIZE offset = 0;
    target.regex_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_ANCHORED,
                                      &code, &offset, nullptr),
                        pcre2_code_free);
    if (target.regex_ == nullptr) {
      return Error{ErrorCode::kMalformed, what + ": target '" + text + "' is not a valid pattern"};
    }
    return target;
  }

  // How closely the target names the module: 3 by name, 2 by pattern, 1 by class, 0 not at all.
  Result<int> Match(const ModelModule& module, const std::string& what) const {
    if (regex_ == nullptr) {
      if (text_ == module.name) return 3;
      const char* class_name = module.kind == ModuleKind::kEmbedding ? "Embedding" : "Linear";
      return text_ == class_name ? 1 : 0;
    }
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(pcre2_match_data_create(1, nullptr),
                                                                                   pcre2_match_data_free);
    const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
        pcre2_match_context_create(nullptr), pcre2_match_context_free);
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_depth_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), 1024);  // KiB
    const int code = pcre2_match(regex_.get(), reinterpret_cast<PCRE2_SPTR>(module.name.data()), module.name.size(), 0,
                                 0, data.get(), context.get());
    if (code == PCRE2_ERROR_NOMATCH) return 0;
    if (code < 0)
      return Error{ErrorCode::kUnsupported, what + ": target '" + text_ + "' takes too many steps to match"};
    return 2;
  }

  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::shared_ptr<pcre2_code> regex_;
};

class Parser {
 public:
  Parser(const Json& json, const std::vector<ModelModule>& modules, std::string what)
      : json_(json), modules_(modules), what_(std::move(what)) {}

  Result<QuantizationConfig> Run() {
    if (!json_.is_object()) return Malformed("is not an object");
    PITH_RETURN_IF_ERROR(
        CheckKeys(json_, "",
                  {"quant_method", "format", "config_groups", "ignore", "kv_cache_scheme", "quantization_status",
                   "version", "global_compression_ratio", "sparsity_config", "transform_config"}));
    PITH_RETURN_IF_ERROR(RequireString(json_, "quant_method", "compressed-tensors"));
    PITH_RETURN_IF_ERROR(RequireString(json_, "format", "pack-quantized"));
    if (!IsNull(json_, "quantization_status")) {
      PITH_RETURN_IF_ERROR(RequireString(json_, "quantization_status", "compressed"));
    }
    for (const char* key : {"sparsity_config", "transform_config"}) {
      if (!IsNull(json_, key) && !json_[key].empty()) return Unsupported(std::string("'") + key + "' is not supported");
    }
    PITH_RETURN_IF_ERROR(ReadKvScheme());
    PITH_RETURN_IF_ERROR(ReadGroups());
    PITH_ASSIGN(const std::vector<Target> ignored, ReadTargets(json_, "ignore", "'ignore'"));
    PITH_RETURN_IF_ERROR(Resolve(ignored));
    return std::move(config_);
  }

 private:
  struct Group {
    std::string name;
    std::vector<Target> targets;
    QuantScheme scheme;
  };

  Error Malformed(const std::string& message) const { return {ErrorCode::kMalformed, what_ + ": " + message}; }
  Error Unsupported(const std::string& message) const { return {ErrorCode::kUnsupported, what_ + ": " + message}; }

  // Fields that are not known could change what the numbers mean.
  Status CheckKeys(const Json& object, const std::string& where, std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end() && !value.is_null()) {
        return Unsupported(where + "field '" + key + "' is not known");
      }
    }
    return {};
  }

  Status RequireString(const Json& object, const char* key, const char* expected) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) return Malformed(std::string("'") + key + "' is not a string");
    const std::string value = found->get<std::string>();
    if (value == expected) return {};
    return Unsupported(std::string("'") + key + "' is '" + value + "'; only '" + expected + "' is supported");
  }

  Result<std::vector<Target>> ReadTargets(const Json& object, const char* key, const std::string& where) const {
    std::vector<Target> targets;
    if (IsNull(object, key)) return targets;
    const Json& list = object[key];
    if (!list.is_array()) return Malformed(where + " is not a list");
    for (const Json& item : list) {
      if (!item.is_string()) return Malformed(where + " holds something that is not a string");
      PITH_ASSIGN(Target target, Target::Make(item.get<std::string>(), what_));
      targets.push_back(std::move(target));
    }
    return targets;
  }

  // num_bits, type, symmetric and dynamic, which weights and KV have in common. The observer fields tell only how the
  // numbers were found, and the *_dtype ones repeat the tensors' own types.
  Status ReadNumbers(const Json& json, const std::string& where, int* bits, bool* symmetric,
                     bool* minimum = nullptr) const {
    if (!json.is_object()) return Malformed(where + " is not an object");
    PITH_RETURN_IF_ERROR(
        CheckKeys(json, where + ": ",
                  {"num_bits", "type", "symmetric", "strategy", "group_size", "dynamic", "actorder", "block_structure",
                   "observer", "observer_kwargs", "scale_dtype", "zp_dtype", "minimum"}));
    const auto bits_json = json.find("num_bits");
    if (bits_json == json.end() || !bits_json->is_number_integer()) {
      return Malformed(where + ": 'num_bits' is not an integer");
    }
    if (*bits_json != 4 && *bits_json != 8) {
      return Unsupported(where + ": 'num_bits' is " + bits_json->dump() + "; 4 and 8 are supported");
    }
    *bits = bits_json->get<int>();
    if (!IsNull(json, "type") && json["type"] != "int") return Unsupported(where + ": 'type' is not 'int'");
    *symmetric = true;
    if (!IsNull(json, "symmetric")) {
      if (!json["symmetric"].is_boolean()) return Malformed(where + ": 'symmetric' is not true or false");
      *symmetric = json["symmetric"].get<bool>();
    }
    // pith's own: a float minimum in place of the zero point (docs/formats.md). Other readers refuse the unknown field.
    if (!IsNull(json, "minimum")) {
      if (!json["minimum"].is_boolean()) return Malformed(where + ": 'minimum' is not true or false");
      const bool value = json["minimum"].get<bool>();
      if (value && (*symmetric || minimum == nullptr)) {
        return Malformed(where + ": 'minimum' needs weights with 'symmetric': false");
      }
      if (minimum != nullptr) *minimum = value;
    }
    if (!IsNull(json, "block_structure")) return Unsupported(where + ": 'block_structure' is not supported");
    return {};
  }

  Status ReadKvScheme() {
    if (IsNull(json_, "kv_cache_scheme")) return {};
    const std::string where = "'kv_cache_scheme'";
    int bits = 0;
    bool symmetric = true;
    PITH_RETURN_IF_ERROR(ReadNumbers(json_["kv_cache_scheme"], where, &bits, &symmetric));
    if (bits != 8 || !symmetric) return Unsupported(where + " is not 8 bits, symmetric");
    config_.kv_bits = bits;
    return {};
  }

  Result<QuantScheme> ReadScheme(const Json& json, const std::string& where) const {
    QuantScheme scheme;
    PITH_RETURN_IF_ERROR(ReadNumbers(json, where, &scheme.bits, &scheme.symmetric, &scheme.minimum));
    if (!IsNull(json, "dynamic") && json["dynamic"] != false) return Unsupported(where + ": 'dynamic' weights");
    if (!IsNull(json, "actorder") && json["actorder"] != "static" && json["actorder"] != "weight") {
      return Unsupported(where + ": 'actorder' that permutes inputs is not supported");
    }
    int64_t group = -1;
    if (!IsNull(json, "group_size")) {
      if (!json["group_size"].is_number_integer()) return Malformed(where + ": 'group_size' is not an integer");
      const double value = json["group_size"].get<double>();
      if (value != -1.0 && !(value >= 1.0 && value <= 1 << 24)) {
        return Malformed(where + ": 'group_size' is out of range");
      }
      group = json["group_size"].get<int64_t>();
    }
    std::string strategy = group > 0 ? "group" : group == -1 && !IsNull(json, "group_size") ? "channel" : "tensor";
    if (!IsNull(json, "strategy")) {
      if (!json["strategy"].is_string()) return Malformed(where + ": 'strategy' is not a string");
      strategy = json["strategy"].get<std::string>();
    }
    if (strategy == "group") {
      if (group < 1) return Malformed(where + ": strategy 'group' needs a positive 'group_size'");
      scheme.group = group;
    } else if (strategy != "channel") {
      return Unsupported(where + ": strategy '" + strategy + "'; 'channel' and 'group' are supported");
    } else if (group > 0) {
      return Malformed(where + ": strategy 'channel' has a 'group_size'");
    }
    return scheme;
  }

  Status ReadGroups() {
    if (IsNull(json_, "config_groups") || !json_["config_groups"].is_object() || json_["config_groups"].empty()) {
      return Malformed("'config_groups' is not an object with at least one group");
    }
    for (const auto& [name, json] : json_["config_groups"].items()) {
      const std::string where = "group '" + name + "'";
      if (!json.is_object()) return Malformed(where + " is not an object");
      PITH_RETURN_IF_ERROR(
          CheckKeys(json, where + ": ", {"targets", "weights", "input_activations", "output_activations", "format"}));
      for (const char* key : {"input_activations", "output_activations"}) {
        if (!IsNull(json, key)) return Unsupported(where + ": '" + key + "' is not supported (weights only)");
      }
      if (!IsNull(json, "format")) PITH_RETURN_IF_ERROR(RequireString(json, "format", "pack-quantized"));
      Group group;
      group.name = name;
      PITH_ASSIGN(group.targets, ReadTargets(json, "targets", where + ": 'targets'"));
      if (group.targets.empty()) return Malformed(where + ": 'targets' is empty");
      if (IsNull(json, "weights")) return Unsupported(where + " has no 'weights'");
      PITH_ASSIGN(group.scheme, ReadScheme(json["weights"], where + ": 'weights'"));
      groups_.push_back(std::move(group));
    }
    // `linear` is the scheme of the group for the class Linear, or of the first group when none names the class.
    config_.linear = groups_.front().scheme;
    for (const Group& group : groups_) {
      for (const Target& target : group.targets) {
        if (target.text() == "Linear") config_.linear = group.scheme;
      }
    }
    return {};
  }

  Status Resolve(const std::vector<Target>& ignored) {
    for (const ModelModule& module : modules_) {
      if (module.kind == ModuleKind::kNorm) continue;
      bool is_ignored = false;
      for (const Target& target : ignored) {
        PITH_ASSIGN(const int closeness, target.Match(module, what_));
        is_ignored = is_ignored || closeness > 0;
      }
      const Group* chosen = nullptr;
      int best = 0;
      for (const Group& group : groups_) {
        for (const Target& target : group.targets) {
          PITH_ASSIGN(const int closeness, target.Match(module, what_));
          if (closeness == 0 || closeness < best) continue;
          if (closeness == best && chosen != &group && !Same(chosen->scheme, group.scheme)) {
            return Malformed("module '" + module.name + "' is a target of groups '" + chosen->name + "' and '" +
                             group.name + "', which differ");
          }
          best = closeness;
          chosen = &group;
        }
      }
      if (is_ignored || chosen == nullptr) {
        config_.ignore.insert(module.name);
      } else if (!Same(chosen->scheme, config_.linear)) {
        config_.by_module.emplace(module.name, chosen->scheme);
      }
    }
    return {};
  }

  static bool Same(const QuantScheme& a, const QuantScheme& b) {
    return a.bits == b.bits && a.group == b.group && a.symmetric == b.symmetric && a.minimum == b.minimum;
  }

  const Json& json_;
  const std::vector<ModelModule>& modules_;
  std::string what_;
  QuantizationConfig config_;
  std::vector<Group> groups_;
};

}  // namespace

Result<std::optional<QuantizationConfig>> ParseQuantizationConfig(const std::string& config_json,
                                                                  const std::vector<ModelModule>& modules,
                                                                  const std::string& what) {
  PITH_ASSIGN(const Json json, ParseJson(config_json, what));
  if (!json.is_object()) return Error{ErrorCode::kMalformed, what + ": the configuration is not a JSON object"};
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (IsNull(json, key)) continue;
    PITH_ASSIGN(QuantizationConfig config, Parser(json[key], modules, what + ": '" + key + "'").Run());
    return std::optional(std::move(config));
  }
  return std::optional<QuantizationConfig>();
}

}  // namespace pith
