#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "base/json.h"
#include "model/config_checks.h"

namespace pith {

const char* ArchitectureName(Architecture arch) {
  switch (arch) {
    case Architecture::kLlama: return "llama";
    case Architecture::kQwen2: return "qwen2";
    case Architecture::kQwen3: return "qwen3";
  }
  return "?";
}

std::optional<Architecture> ArchitectureByName(std::string_view name) {
  for (const Architecture arch : {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3}) {
    if (name == ArchitectureName(arch)) return arch;
  }
  return std::nullopt;
}

namespace {

double InverseFrequency(const ModelConfig& config, int64_t pair) {
  return std::pow(config.rope_theta, -2.0 * static_cast<double>(pair) / static_cast<double>(config.head_dim));
}

// Llama 3: wavelengths beyond the original context are stretched by `factor`, short ones stay, those between are
// blended.
double Llama3Frequency(const RopeScaling& scaling, double frequency) {
  const auto context = static_cast<double>(scaling.original_max_position);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < context / scaling.high_freq_factor) return frequency;
  if (wavelength > context / scaling.low_freq_factor) return frequency / scaling.factor;
  const double blend =
      (context / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

// YaRN (Peng et al. 2023, https://arxiv.org/abs/2309.00071, section 3.2): pairs that turn more than beta_fast times
// within the original context keep their frequency, those that turn less than beta_slow times are divided by `factor`,
// with a linear ramp over the pair index between the two.
std::vector<double> YarnFrequencies(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  const auto dim = static_cast<double>(config.head_dim);
  const auto pair_with_turns = [&](double turns) {
    const auto context = static_cast<double>(scaling.original_max_position);
    return dim * std::log(context / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(config.rope_theta));
  };
  const double low = std::max(std::floor(pair_with_turns(scaling.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_with_turns(scaling.beta_slow)), dim - 1.0);
  if (low == high) high += 0.001;
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < config.head_dim / 2; ++pair) {
    const double ramp = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
    const double frequency = InverseFrequency(config, pair);
    frequencies.push_back(frequency / scaling.factor * ramp + frequency * (1.0 - ramp));
  }
  return frequencies;
}

}  // namespace

RopeFrequencies ComputeRopeFrequencies(const ModelConfig& config) {
  RopeFrequencies result;
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind == RopeScalingKind::kYarn) {
    result.inv_freq = YarnFrequencies(config);
    result.attention_factor = scaling.attention_factor;
    if (result.attention_factor == 0.0) {
      result.attention_factor = scaling.factor <= 1.0 ? 1.0 : 0.1 * std::log(scaling.factor) + 1.0;
    }
  } else {
    for (int64_t pair = 0; pair < config.head_dim / 2; ++pair) {
      double frequency = InverseFrequency(config, pair);
      if (scaling.kind == RopeScalingKind::kLinear) frequency /= scaling.factor;
      if (scaling.kind == RopeScalingKind::kLlama3) frequency = Llama3Frequency(scaling, frequency);
      result.inv_freq.push_back(frequency);
    }
  }
  if (config.rope_frequency_divisors.size() == result.inv_freq.size()) {
    for (size_t pair = 0; pair < result.inv_freq.size(); ++pair) {
      result.inv_freq[pair] /= static_cast<double>(config.rope_frequency_divisors[pair]);
    }
  }
  return result;
}

Status CheckConfig(const ModelConfig& config, const std::string& what) {
  const auto malformed = [&](const std::string& message) {
    return Error{ErrorCode::kMalformed, what + ": " + message};
  };
  // The bounds are far above every real model and keep all products of two or three sizes inside int64.
  struct Bound {
    const char* name;
    int64_t value;
    int64_t max;
  };
  const Bound bounds[] = {
      {"the hidden size", config.hidden, 1 << 24},
      {"the MLP size", config.intermediate, 1 << 24},
      {"the number of layers", config.layers, 1 << 14},
      {"the number of attention heads", config.heads, 1 << 16},
      {"the number of key/value heads", config.kv_heads, 1 << 16},
      {"the head size", config.head_dim, 1 << 14},
      {"the vocabulary size", config.vocab, std::numeric_limits<int32_t>::max()},
      {"the maximum position", config.max_position, int64_t{1} << 40},
  };
  for (const Bound& bound : bounds) {
    if (bound.value < 1 || bound.value > bound.max) {
      return malformed(std::string(bound.name) + " is " + std::to_string(bound.value) + ", outside 1 to " +
                       std::to_string(bound.max));
    }
  }
  if (config.heads % config.kv_heads != 0) {
    return malformed(std::to_string(config.heads) + " attention heads cannot share " + std::to_string(config.kv_heads) +
                     " key/value heads");
  }
  if (config.head_dim % 2 != 0) return malformed("the head size " + std::to_string(config.head_dim) + " is odd");
  if (!std::isfinite(config.rms_eps) || config.rms_eps < 0.0 || config.rms_eps > 1.0) {
    return malformed("the RMS norm epsilon is outside 0 to 1");
  }
  if (!std::isfinite(config.rope_theta) || config.rope_theta <= 1.0) {
    return malformed("the RoPE base is not a number above 1");
  }
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind == RopeScalingKind::kNone) return {};
  const auto positive = [](double value) { return std::isfinite(value) && value > 0.0; };
  if (!positive(scaling.factor)) return malformed("the RoPE scaling factor is not a positive number");
  if (scaling.kind == RopeScalingKind::kLinear) return {};
  if (scaling.original_max_position < 1 || scaling.original_max_position > (int64_t{1} << 40)) {
    return malformed("the original maximum position of the RoPE scaling is " +
                     std::to_string(scaling.original_max_position));
  }
  if (scaling.kind == RopeScalingKind::kLlama3) {
    if (!positive(scaling.low_freq_factor) || !positive(scaling.high_freq_factor) ||
        scaling.high_freq_factor <= scaling.low_freq_factor) {
      return malformed("the RoPE scaling needs 0 < low_freq_factor < high_freq_factor");
    }
  } else if (!positive(scaling.beta_fast) || !positive(scaling.beta_slow) || !std::isfinite(scaling.attention_factor) ||
             scaling.attention_factor < 0.0) {
    return malformed("beta_fast, beta_slow or attention_factor of the RoPE scaling is not a positive number");
  }
  return {};
}

namespace {

// Reads typed keys of one JSON object. An absent key and null mean the same, as they do for transformers.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string what) : object_(object), what_(std::move(what)) {}

  const Json* Find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  Error Malformed(const std::string& message) const { return {ErrorCode::kMalformed, what_ + ": " + message}; }
  Error Unsupported(const std::string& message) const { return {ErrorCode::kUnsupported, what_ + ": " + message}; }

  Status ReadInt(const char* key, int64_t* value, bool required = false) const {
    const Json* json = Find(key);
    if (json == nullptr) return required ? Status(Malformed(std::string("'") + key + "' is missing")) : Status();
    if (!json->is_number_integer() ||
        (json->is_number_unsigned() &&
         json->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
      return Malformed(std::string("'") + key + "' is not an integer in range");
    }
    *value = json->get<int64_t>();
    return {};
  }

  Status ReadDouble(const char* key, double* value, bool required = false) const {
    const Json* json = Find(key);
    if (json == nullptr) return required ? Status(Malformed(std::string("'") + key + "' is missing")) : Status();
    if (!json->is_number()) return Malformed(std::string("'") + key + "' is not a number");
    *value = json->get<double>();
    return {};
  }

  Status ReadBool(const char* key, bool* value) const {
    const Json* json = Find(key);
    if (json == nullptr) return {};
    if (!json->is_boolean()) return Malformed(std::string("'") + key + "' is not true or false");
    *value = json->get<bool>();
    return {};
  }

  Status ReadString(const char* key, std::string* value) const {
    const Json* json = Find(key);
    if (json == nullptr) return {};
    if (!json->is_string()) return Malformed(std::string("'") + key + "' is not a string");
    *value = json->get<std::string>();
    return {};
  }

 private:
  const Json& object_;
  std::string what_;
};

Status AppendTokenId(const ObjectReader& reader, const char* key, const Json& json, std::vector<int32_t>* ids) {
  if (!json.is_number_integer() || json.get<double>() < 0.0 ||
      json.get<double>() > static_cast<double>(std::numeric_limits<int32_t>::max())) {
    return reader.Malformed(std::string("'") + key + "' holds something that is not a token id");
  }
  const auto id = json.get<int32_t>();
  if (std::find(ids->begin(), ids->end(), id) == ids->end()) ids->push_back(id);
  return {};
}

// An id, a list of ids, or nothing.
Status ReadTokenIds(const ObjectReader& reader, const char* key, std::vector<int32_t>* ids) {
  const Json* json = reader.Find(key);
  if (json == nullptr) return {};
  if (!json->is_array()) return AppendTokenId(reader, key, *json, ids);
  for (const Json& id : *json) PITH_RETURN_IF_ERROR(AppendTokenId(reader, key, id, ids));
  return {};
}

// transformers 4 writes `rope_theta` beside `rope_scaling`; transformers 5 puts both into `rope_parameters`.
Status ReadRope(const ObjectReader& reader, ModelConfig* config, const std::string& what) {
  PITH_RETURN_IF_ERROR(reader.ReadDouble("rope_theta", &config->rope_theta));
  const Json* parameters = reader.Find("rope_parameters");
  const Json* json = parameters != nullptr ? parameters : reader.Find("rope_scaling");
  if (json == nullptr) return {};
  const std::string key = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  if (parameters != nullptr && reader.Find("rope_scaling") != nullptr && *reader.Find("rope_scaling") != *parameters) {
    return reader.Malformed("'rope_scaling' and 'rope_parameters' differ");
  }
  if (!json->is_object()) return reader.Malformed("'" + key + "' is not an object");

  const ObjectReader rope(*json, what + ": '" + key + "'");
  PITH_RETURN_IF_ERROR(rope.ReadDouble("rope_theta", &config->rope_theta));
  double rotary_part = 1.0;
  PITH_RETURN_IF_ERROR(rope.ReadDouble("partial_rotary_factor", &rotary_part));
  if (rotary_part != 1.0) return rope.Unsupported("'partial_rotary_factor' other than 1 is not supported");

  std::string type = "default";
  PITH_RETURN_IF_ERROR(rope.ReadString("type", &type));
  PITH_RETURN_IF_ERROR(rope.ReadString("rope_type", &type));
  RopeScaling& scaling = config->rope_scaling;
  if (type == "default") return {};
  if (type == "linear") {
    scaling.kind = RopeScalingKind::kLinear;
    return rope.ReadDouble("factor", &scaling.factor, true);
  }
  if (type == "llama3") {
    scaling.kind = RopeScalingKind::kLlama3;
    PITH_RETURN_IF_ERROR(rope.ReadDouble("factor", &scaling.factor, true));
    PITH_RETURN_IF_ERROR(rope.ReadDouble("low_freq_factor", &scaling.low_freq_factor, true));
    PITH_RETURN_IF_ERROR(rope.ReadDouble("high_freq_factor", &scaling.high_freq_factor, true));
    return rope.ReadInt("original_max_position_embeddings", &scaling.original_max_position, true);
  }
  if (type == "yarn") {
    scaling.kind = RopeScalingKind::kYarn;
    scaling.original_max_position = config->max_position;
    PITH_RETURN_IF_ERROR(rope.ReadDouble("factor", &scaling.factor, true));
    PITH_RETURN_IF_ERROR(rope.ReadInt("original_max_position_embeddings", &scaling.original_max_position));
    PITH_RETURN_IF_ERROR(rope.ReadDouble("beta_fast", &scaling.beta_fast));
    PITH_RETURN_IF_ERROR(rope.ReadDouble("beta_slow", &scaling.beta_slow));
    PITH_RETURN_IF_ERROR(rope.ReadDouble("attention_factor", &scaling.attention_factor));
    bool truncate = true;
    PITH_RETURN_IF_ERROR(rope.ReadBool("truncate", &truncate));
    if (!truncate) return rope.Unsupported("'truncate': false is not supported");
    double mscale = 0.0, mscale_all = 0.0;
    PITH_RETURN_IF_ERROR(rope.ReadDouble("mscale", &mscale));
    PITH_RETURN_IF_ERROR(rope.ReadDouble("mscale_all_dim", &mscale_all));
    if (rope.Find("attention_factor") == nullptr && mscale != 0.0 && mscale_all != 0.0 && scaling.factor > 1.0) {
      const double log_factor = 0.1 * std::log(scaling.factor);
      scaling.attention_factor = (mscale * log_factor + 1.0) / (mscale_all * log_factor + 1.0);
    }
    return {};
  }
  return rope.Unsupported("RoPE type '" + type + "' is not supported");
}

Status RefuseUnsupported(const ObjectReader& reader, const ModelConfig& config) {
  std::string activation = "silu";
  PITH_RETURN_IF_ERROR(reader.ReadString("hidden_act", &activation));
  if (activation != "silu" && activation != "swish") {
    return reader.Unsupported("activation '" + activation + "' is not supported");
  }
  double rotary_part = 1.0;
  PITH_RETURN_IF_ERROR(reader.ReadDouble("partial_rotary_factor", &rotary_part));
  if (rotary_part != 1.0) return reader.Unsupported("'partial_rotary_factor' other than 1 is not supported");
  bool interleaved = false;
  PITH_RETURN_IF_ERROR(reader.ReadBool("rope_interleaved", &interleaved));
  if (interleaved) return reader.Unsupported("'rope_interleaved': true is not supported");

  // Sliding-window attention changes results only in the layers that use it: those from max_window_layers on, or those
  // that layer_types names.
  bool sliding = false;
  int64_t full_layers = 0;
  PITH_RETURN_IF_ERROR(reader.ReadBool("use_sliding_window", &sliding));
  PITH_RETURN_IF_ERROR(reader.ReadInt("max_window_layers", &full_layers));
  const Json* window = reader.Find("sliding_window");
  const Json* layer_types = reader.Find("layer_types");
  if (layer_types != nullptr) {
    if (!layer_types->is_array()) return reader.Malformed("'layer_types' is not a list");
    for (const Json& type : *layer_types) {
      if (type != "full_attention") {
        return reader.Unsupported("'layer_types' holds " + type.dump(-1, ' ', true, Json::error_handler_t::replace) +
                                  "; only full_attention is supported");
      }
    }
  } else if (sliding && window != nullptr && full_layers < config.layers) {
    return reader.Unsupported("sliding-window attention is not supported");
  } else if (reader.Find("use_sliding_window") == nullptr && window != nullptr && *window != Json(0) &&
             config.arch == Architecture::kLlama) {
    return reader.Unsupported("'sliding_window' is not supported");
  }
  return {};
}

Result<Architecture> ReadArchitecture(const ObjectReader& reader) {
  std::string type;
  PITH_RETURN_IF_ERROR(reader.ReadString("model_type", &type));
  if (type.empty()) return reader.Malformed("'model_type' is missing");
  const std::optional<Architecture> arch = ArchitectureByName(type);
  if (!arch) return reader.Unsupported("model type '" + type + "' is not supported (llama, qwen2 and qwen3 are)");
  // A classifier of the same family has no LM head; a missing list is fine.
  const Json* classes = reader.Find("architectures");
  if (classes != nullptr && classes->is_array() && !classes->empty()) {
    const char* expected = *arch == Architecture::kLlama   ? "LlamaForCausalLM"
                           : *arch == Architecture::kQwen2 ? "Qwen2ForCausalLM"
                                                           : "Qwen3ForCausalLM";
    if (std::find(classes->begin(), classes->end(), Json(expected)) == classes->end()) {
      return reader.Unsupported(std::string("'architectures' does not name ") + expected);
    }
  }
  return *arch;
}

}  // namespace

Result<ModelConfig> ParseHfConfig(const std::string& text, const std::string& what) {
  PITH_ASSIGN(const Json json, ParseJson(text, what));
  if (!json.is_object()) return Error{ErrorCode::kMalformed, what + ": the configuration is not a JSON object"};
  const ObjectReader reader(json, what);
  ModelConfig config;
  PITH_ASSIGN(config.arch, ReadArchitecture(reader));
  PITH_RETURN_IF_ERROR(reader.ReadInt("hidden_size", &config.hidden, true));
  PITH_RETURN_IF_ERROR(reader.ReadInt("intermediate_size", &config.intermediate, true));
  PITH_RETURN_IF_ERROR(reader.ReadInt("num_hidden_layers", &config.layers, true));
  PITH_RETURN_IF_ERROR(reader.ReadInt("num_attention_heads", &config.heads, true));
  PITH_RETURN_IF_ERROR(reader.ReadInt("vocab_size", &config.vocab, true));
  config.kv_heads = config.heads;
  PITH_RETURN_IF_ERROR(reader.ReadInt("num_key_value_heads", &config.kv_heads));
  if (reader.Find("head_dim") != nullptr) {
    PITH_RETURN_IF_ERROR(reader.ReadInt("head_dim", &config.head_dim));
  } else if (config.arch == Architecture::kQwen3) {
    config.head_dim = 128;  // the default of the class
  } else {
    if (config.heads < 1 || config.hidden % config.heads != 0) {
      return reader.Malformed("'hidden_size' is no multiple of 'num_attention_heads' and 'head_dim' is missing");
    }
    config.head_dim = config.hidden / config.heads;
  }
  config.max_position = config.arch == Architecture::kLlama ? 2048 : 32768;  // the defaults of the classes
  PITH_RETURN_IF_ERROR(reader.ReadInt("max_position_embeddings", &config.max_position));
  PITH_RETURN_IF_ERROR(reader.ReadDouble("rms_norm_eps", &config.rms_eps));
  PITH_RETURN_IF_ERROR(reader.ReadBool("tie_word_embeddings", &config.tied_embeddings));

  if (config.arch == Architecture::kQwen2) {
    config.attention_bias = true;
  } else {
    PITH_RETURN_IF_ERROR(reader.ReadBool("attention_bias", &config.attention_bias));
    config.attention_out_bias = config.attention_bias;
  }
  if (config.arch == Architecture::kLlama) PITH_RETURN_IF_ERROR(reader.ReadBool("mlp_bias", &config.mlp_bias));
  config.qk_norm = config.arch == Architecture::kQwen3;

  PITH_RETURN_IF_ERROR(ReadRope(reader, &config, what));
  PITH_RETURN_IF_ERROR(RefuseUnsupported(reader, config));
  std::vector<int32_t> bos;
  PITH_RETURN_IF_ERROR(ReadTokenIds(reader, "bos_token_id", &bos));
  if (!bos.empty()) config.bos_id = bos.front();
  PITH_RETURN_IF_ERROR(ReadTokenIds(reader, "eos_token_id", &config.eos_ids));
  PITH_RETURN_IF_ERROR(CheckConfig(config, what));
  return config;
}

Status MergeGenerationConfig(const std::string& text, const std::string& what, ModelConfig* config) {
  PITH_ASSIGN(const Json json, ParseJson(text, what));
  if (!json.is_object()) return Error{ErrorCode::kMalformed, what + ": the configuration is not a JSON object"};
  return ReadTokenIds(ObjectReader(json, what), "eos_token_id", &config->eos_ids);
}

}  // namespace pith
