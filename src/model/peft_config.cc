#include "model/peft_config.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/json.h"
#include "model/adapter.h"

namespace pith {

// PEFT matches with Python's `re`; PCRE2 reads the same syntax for anything that is reasonable in a module name.
class NamePattern {
 public:
  // `field` names the config field in errors.
  static Result<std::shared_ptr<const NamePattern>> Compile(const std::string& expression, const std::string& source,
                                                            bool whole, const std::string& field) {
    if (source.size() > kMaxLength) {
      return Error{ErrorCode::kMalformed,
                   field + ": a regular expression of " + std::to_string(source.size()) + " bytes is too long"};
    }
    auto pattern = std::shared_ptr<NamePattern>(new NamePattern);
    pattern->field_ = field;
    pattern->source_ = source;
    int code = 0;
    PCRE2_SIZE offset = 0;
    const uint32_t options = PCRE2_ANCHORED | (whole ? PCRE2_ENDANCHORED : 0u) | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
    pattern->code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), options,
                                       &code, &offset, nullptr));
    if (pattern->code_ == nullptr) {
      PCRE2_UCHAR message[256] = "";
      pcre2_get_error_message(code, message, sizeof(message));
      return Error{ErrorCode::kMalformed,
                   field + ": '" + source + "' is not a regular expression: " + reinterpret_cast<const char*>(message)};
    }
    pattern->context_.reset(pcre2_match_context_create(nullptr));
    if (pattern->context_ == nullptr) return Error{ErrorCode::kInternal, "out of memory for a regular expression"};
    pcre2_set_match_limit(pattern->context_.get(), kMatchLimit);
    pcre2_set_heap_limit(pattern->context_.get(), kHeapLimitKiB);
    return std::shared_ptr<const NamePattern>(std::move(pattern));
  }

  // Whether the name matches; `group`, if given, receives the text of group 1 (nothing if the group took no part).
  Result<bool> Match(std::string_view name, std::optional<std::string>* group = nullptr) const {
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr), &pcre2_match_data_free);
    if (data == nullptr) return Error{ErrorCode::kInternal, "out of memory for a regular expression"};
    const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0, data.get(),
                                  context_.get());
    if (count == PCRE2_ERROR_NOMATCH) return false;
    if (count < 0) {
      return Error{ErrorCode::kMalformed, field_ + ": matching '" + source_ + "' takes too much work"};
    }
    if (group != nullptr) {
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
      *group = count > 1 && bounds[2] != PCRE2_UNSET
                   ? std::optional<std::string>(name.substr(bounds[2], bounds[3] - bounds[2]))
                   : std::nullopt;
    }
    return true;
  }

 private:
  static constexpr size_t kMaxLength = 16384;
  static constexpr uint32_t kMatchLimit = 100000;
  static constexpr uint32_t kHeapLimitKiB = 4096;

  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  };

  NamePattern() = default;
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_context, Free> context_;
  std::string field_;
  std::string source_;
};

namespace {

constexpr size_t kMaxPatterns = 8192;    // PEFT's own initialisers write at most one per linear
constexpr size_t kMaxInvocation = 4096;  // tokens

// Fields that do not touch the result of inference on a causal language model.
constexpr std::string_view kIgnored[] = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "inference_mode", "loftq_config",
    "lora_dropout", "megatron_core",           "peft_version", "revision",   "runtime_config", "qalora_group_size",
};

// Fields that must be null, false or empty, and what they mean.
struct Refusal {
  std::string_view field;
  std::string_view reason;
};
constexpr Refusal kRefused[] = {
    {"arrow_config", "adapters routed by Arrow"},
    {"fan_in_fan_out", "transposed weights"},
    {"layer_replication", "replicated layers"},
    {"lora_bias", "a bias on LoRA's B"},
    {"megatron_config", "Megatron layers"},
    {"modules_to_save", "full copies of modules; merge them into the base model, or train without them"},
    {"target_parameters", "LoRA on bare parameters"},
    {"trainable_token_indices", "trained embedding rows"},
    {"use_dora", "DoRA"},
    {"use_qalora", "QALoRA"},
};

// Initialisations that leave the base weights alone. The others subtract something from them, so that the saved factors
// are relative to a base that nobody has; PEFT converts them on saving when asked, and then records `true`.
constexpr std::string_view kPlainInits[] = {"gaussian", "eva", "orthogonal"};

bool IsTrivial(const Json& value) {
  return value.is_null() || value == false || ((value.is_array() || value.is_object()) && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

std::string Shortened(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace

// Walks the fields once; every key of the file is looked at.
class PeftConfigReader {
 public:
  PeftConfigReader(const Json& json, const OrderedJson& ordered, const std::string& what)
      : json_(json), ordered_(ordered) {
    config_.what_ = what;
  }

  Result<PeftConfig> Read() {
    PITH_RETURN_IF_ERROR(CheckMethod());
    for (const auto& [field, value] : json_.items()) PITH_RETURN_IF_ERROR(ReadField(field, value));
    PITH_RETURN_IF_ERROR(CheckTargets());
    if (!json_.contains("lora_alpha")) Warn("lora_alpha is missing; PEFT's default 8 is used");
    if (!json_.contains("r")) Warn("r is missing; PEFT's default 8 is used");
    return std::move(config_);
  }

 private:
  Error Bad(const std::string& field, const std::string& problem) const {
    return {ErrorCode::kMalformed, config_.what_ + ": " + field + " " + problem};
  }
  Error Refused(const std::string& field, const Json& value, std::string_view reason) const {
    return {ErrorCode::kUnsupported, config_.what_ + ": " + field + " = " + Shortened(value) + " is not supported (" +
                                         std::string(reason) + ")"};
  }
  void Warn(const std::string& sentence) { config_.warnings_.push_back(config_.what_ + ": " + sentence); }

  Status CheckMethod() const {
    const auto type = json_.find("peft_type");
    if (type == json_.end() || !type->is_string()) return Bad("peft_type", "is missing or not a string");
    if (*type != "LORA" && *type != kInt8PeftType) return Refused("peft_type", *type, "only LORA");
    return {};
  }

  Status ReadField(const std::string& field, const Json& value) {
    if (field == "peft_type" || std::ranges::count(kIgnored, field) > 0) return {};
    for (const Refusal& refusal : kRefused) {
      if (field == refusal.field) return IsTrivial(value) ? Status() : Refused(field, value, refusal.reason);
    }
    if (field == "r") return ReadRank(field, value, config_.rank_);
    if (field == "lora_alpha") return ReadAlpha(field, value, config_.alpha_);
    if (field == "use_rslora") return ReadBool(field, value, config_.rslora_);
    if (field == "rank_pattern") return ReadPatterns(field, &PeftConfigReader::ReadRank, config_.rank_pattern_);
    if (field == "alpha_pattern") return ReadPatterns(field, &PeftConfigReader::ReadAlpha, config_.alpha_pattern_);
    if (field == "target_modules") return ReadTargets(field, value);
    if (field == "exclude_modules")
      return ReadNamesOrPattern(field, value, config_.exclude_names_, config_.exclude_pattern_);
    if (field == "layers_to_transform") return ReadLayers(field, value);
    if (field == "layers_pattern") return ReadLayerPatterns(field, value);
    if (field == "init_lora_weights") return CheckInit(field, value);
    if (field == "alora_invocation_tokens") return ReadInvocation(field, value);
    if (field == "bias") return value == "none" || value.is_null() ? Status() : Refused(field, value, "trained biases");
    if (field == "task_type") {
      if (!value.is_null() && value != "CAUSAL_LM")
        Warn("task_type " + Shortened(value) + " is run as a causal language model");
      return {};
    }
    if (!IsTrivial(value)) Warn("unknown field " + field + " = " + Shortened(value) + " is ignored");
    return {};
  }

  Status ReadBool(const std::string& field, const Json& value, bool& out) {
    if (value.is_null()) return {};
    if (!value.is_boolean()) return Bad(field, "is not true or false");
    out = value.get<bool>();
    return {};
  }

  template <class AnyJson>
  static std::optional<int64_t> Integer(const AnyJson& value) {
    if (!value.is_number_integer()) return std::nullopt;
    if (value.is_number_unsigned() && value.template get<uint64_t>() > std::numeric_limits<int64_t>::max())
      return std::nullopt;
    return value.template get<int64_t>();
  }

  template <class AnyJson>
  Status ReadRank(const std::string& field, const AnyJson& value, int64_t& out) const {
    const auto rank = Integer(value);
    if (!rank) return Bad(field, "is not an integer");
    if (*rank < 1 || *rank > kMaxLoraRank) {
      return Bad(field, "is " + std::to_string(*rank) + ", outside 1 to " + std::to_string(kMaxLoraRank));
    }
    out = *rank;
    return {};
  }

  template <class AnyJson>
  Status ReadAlpha(const std::string& field, const AnyJson& value, double& out) const {
    if (!value.is_number()) return Bad(field, "is not a number");
    out = value.template get<double>();
    // The scaling is used as a float; alpha / rank must stay one.
    if (!std::isfinite(out) || std::abs(out) > 1e30) return Bad(field, "is out of range");
    return {};
  }

  template <class Value>
  Status ReadPatterns(const std::string& field,
                      Status (PeftConfigReader::*read)(const std::string&, const OrderedJson&, Value&) const,
                      std::vector<std::pair<std::shared_ptr<const NamePattern>, Value>>& out) const {
    const OrderedJson& table = ordered_[field];
    if (table.is_null()) return {};
    if (!table.is_object()) return Bad(field, "is not an object");
    if (table.size() > kMaxPatterns) return Bad(field, "has " + std::to_string(table.size()) + " entries, too many");
    for (const auto& [key, value] : table.items()) {
      Value parsed{};
      PITH_RETURN_IF_ERROR((this->*read)(field + "['" + key + "']", value, parsed));
      // A key matches whole name parts at the end of a module name.
      PITH_ASSIGN(auto pattern,
                  NamePattern::Compile("(.*\\.)?(" + key + ")$", key, false, config_.what_ + ": " + field));
      out.emplace_back(std::move(pattern), parsed);
    }
    return {};
  }

  Status ReadNames(const std::string& field, const Json& value, std::vector<std::string>& out) const {
    for (const Json& name : value) {
      if (!name.is_string()) return Bad(field, "holds something that is not a string");
      out.push_back(name.get<std::string>());
    }
    if (out.size() > kMaxPatterns) return Bad(field, "has " + std::to_string(out.size()) + " entries, too many");
    return {};
  }

  Status ReadNamesOrPattern(const std::string& field, const Json& value, std::vector<std::string>& names,
                            std::shared_ptr<const NamePattern>& pattern) const {
    if (IsTrivial(value)) return {};
    if (value.is_array()) return ReadNames(field, value, names);
    if (!value.is_string()) return Bad(field, "is neither a list of names nor a string");
    const auto& source = value.get_ref<const std::string&>();
    PITH_ASSIGN(pattern, NamePattern::Compile(source, source, true, config_.what_ + ": " + field));
    return {};
  }

  Status ReadTargets(const std::string& field, const Json& value) {
    if (value.is_string()) {
      std::string lower = value.get<std::string>();
      for (char& c : lower) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      }
      if (lower == "all-linear") {
        config_.all_linear_ = true;
        return {};
      }
    }
    return ReadNamesOrPattern(field, value, config_.target_names_, config_.target_pattern_);
  }

  Status ReadLayers(const std::string& field, const Json& value) {
    if (value.is_null()) return {};
    const Json list = value.is_array() ? value : Json::array({value});
    for (const Json& layer : list) {
      const auto index = Integer(layer);
      if (!index || *index < 0) return Bad(field, "holds something that is not a layer index");
      config_.layers_.push_back(*index);
    }
    std::ranges::sort(config_.layers_);
    return {};
  }

  Status ReadLayerPatterns(const std::string& field, const Json& value) {
    if (IsTrivial(value)) return {};
    std::vector<std::string> names;
    if (value.is_string()) {
      names.push_back(value.get<std::string>());
    } else if (value.is_array()) {
      PITH_RETURN_IF_ERROR(ReadNames(field, value, names));
    } else {
      return Bad(field, "is neither a string nor a list of strings");
    }
    for (const std::string& name : names) {
      PITH_ASSIGN(auto pattern,
                  NamePattern::Compile(".*\\." + name + "\\.(\\d+)\\.", name, false, config_.what_ + ": " + field));
      config_.layer_patterns_.push_back(std::move(pattern));
    }
    return {};
  }

  Status CheckInit(const std::string& field, const Json& value) const {
    if (value.is_boolean() || value.is_null()) return {};
    if (!value.is_string()) return Bad(field, "is neither a boolean nor a string");
    if (std::ranges::count(kPlainInits, value.get<std::string>()) > 0) return {};
    return Refused(
        field, value,
        "the factors are relative to changed base weights; save them with path_initial_model_for_weight_conversion");
  }

  Status ReadInvocation(const std::string& field, const Json& value) {
    if (value.is_null()) return {};
    if (!value.is_array() || value.empty()) return Bad(field, "is not a list of token ids");
    if (value.size() > kMaxInvocation) return Bad(field, "has " + std::to_string(value.size()) + " tokens, too many");
    for (const Json& token : value) {
      const auto id = Integer(token);
      if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max())
        return Bad(field, "holds something that is not a token id");
      config_.invocation_.push_back(static_cast<int32_t>(*id));
    }
    return {};
  }

  Status CheckTargets() const {
    if (!config_.all_linear_ && config_.target_pattern_ == nullptr && config_.target_names_.empty()) {
      return Bad("target_modules", "names no module");
    }
    const bool by_pattern = config_.all_linear_ || config_.target_pattern_ != nullptr;
    if (by_pattern && !config_.layers_.empty())
      return Bad("layers_to_transform", "needs target_modules to be a list of names");
    if (!config_.layer_patterns_.empty() && config_.layers_.empty())
      return Bad("layers_pattern", "needs layers_to_transform");
    return {};
  }

  const Json& json_;
  const OrderedJson& ordered_;
  PeftConfig config_;
};

Result<PeftConfig> PeftConfig::Parse(std::string_view text, const std::string& what) {
  PITH_ASSIGN(const Json json, ParseJson(text, what));
  if (!json.is_object()) return Error{ErrorCode::kMalformed, what + ": is not a JSON object"};
  // The text again with the order of keys, which the patterns need; ParseJson has bounded its depth.
  const OrderedJson ordered = OrderedJson::parse(text, nullptr, false);
  return PeftConfigReader(json, ordered, what).Read();
}

namespace {

// A name of a list matches a module with exactly this name or whose last parts are it.
bool NamesModule(const std::vector<std::string>& names, const std::string& module) {
  return std::ranges::any_of(names, [&](const std::string& name) {
    return module == name ||
           (module.size() > name.size() && module.ends_with(name) && module[module.size() - name.size() - 1] == '.');
  });
}

template <class Pattern, class Value>
Result<Value> FirstMatch(const std::vector<std::pair<Pattern, Value>>& table, const std::string& name,
                         Value otherwise) {
  for (const auto& [pattern, value] : table) {
    PITH_ASSIGN(const bool match, pattern->Match(name));
    if (match) return value;
  }
  return otherwise;
}

}  // namespace

Result<int64_t> PeftConfig::Rank(const std::string& name) const { return FirstMatch(rank_pattern_, name, rank_); }

Result<double> PeftConfig::Alpha(const std::string& name) const { return FirstMatch(alpha_pattern_, name, alpha_); }

double PeftConfig::Scaling(int64_t rank, double alpha) const {
  const auto r = static_cast<double>(rank);
  return rslora_ ? alpha / std::sqrt(r) : alpha / r;
}

Result<bool> PeftConfig::Targets(const std::string& name) const {
  if (exclude_pattern_ != nullptr) {
    PITH_ASSIGN(const bool excluded, exclude_pattern_->Match(name));
    if (excluded) return false;
  }
  if (NamesModule(exclude_names_, name)) return false;
  if (all_linear_) return name != "lm_head";  // "all-linear" leaves the output layer out
  if (target_pattern_ != nullptr) return target_pattern_->Match(name);
  if (!NamesModule(target_names_, name)) return false;
  if (layers_.empty()) return true;
  return LayerIsChosen(name);
}

Result<bool> PeftConfig::LayerIsChosen(const std::string& name) const {
  std::optional<std::string> index;
  if (layer_patterns_.empty()) {
    // The first number that follows a name part and is followed by more.
    PITH_ASSIGN(const auto any_list, NamePattern::Compile(".*\\.[^.]*\\.(\\d+)\\.", "layers", false, what_));
    PITH_RETURN_IF_ERROR(any_list->Match(name, &index));
  } else {
    for (const auto& pattern : layer_patterns_) {
      PITH_ASSIGN(const bool match, pattern->Match(name, &index));
      if (match) break;
    }
  }
  if (!index) return false;
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(index->data(), index->data() + index->size(), layer);
  return error == std::errc() && end == index->data() + index->size() && std::ranges::binary_search(layers_, layer);
}

}  // namespace pith
