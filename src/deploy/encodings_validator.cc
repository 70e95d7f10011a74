// Checks encodings against the facts of their schemas; see encodings.h.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <set>

#include "base/json.h"
#include "deploy/encodings.h"

namespace pith {

namespace {

class Validator {
 public:
  Validator(std::string what, const std::map<std::string, GraphTensor>* tensors)
      : what_(std::move(what)), tensors_(tensors) {}

  Status Run(const Json& json) {
    if (!json.is_object()) return Malformed("", "is not an object");
    // Without a version the converter takes a file for one of the legacy form.
    const auto version = json.find("version");
    if (version == json.end() || !version->is_string()) return Malformed("", "has no 'version'");
    if (*version == "0.6.1" || *version == "1.0.0") {
      PITH_RETURN_IF_ERROR(
          Keys(json, "", {"version", "param_encodings", "activation_encodings", "quantizer_args"}, {}));
      for (const bool parameter : {true, false}) {
        const char* key = parameter ? "param_encodings" : "activation_encodings";
        PITH_RETURN_IF_ERROR(*version == "0.6.1" ? LegacyList(json[key], key, parameter)
                                                 : NamedList(json[key], key, parameter));
      }
    } else if (*version == "2.0.0") {
      PITH_RETURN_IF_ERROR(Keys(json, "", {"version", "encodings", "quantizer_args"}, {}));
      PITH_RETURN_IF_ERROR(OnnxList(json["encodings"]));
    } else {
      return Malformed("", "'version' is none of 0.6.1, 1.0.0, 2.0.0");
    }
    return QuantizerArgs(json["quantizer_args"]);
  }

 private:
  Error Malformed(const std::string& tensor, const std::string& problem) const {
    return {ErrorCode::kMalformed, what_ + ": " + (tensor.empty() ? "" : "'" + tensor + "': ") + problem};
  }
  Error Mismatch(const std::string& tensor, const std::string& problem) const {
    return {ErrorCode::kMismatch, what_ + ": '" + tensor + "' " + problem};
  }

  Status Keys(const Json& json, const std::string& tensor, std::initializer_list<const char*> required,
              std::initializer_list<const char*> optional) const {
    if (!json.is_object()) return Malformed(tensor, "an entry is not an object");
    std::set<std::string> known(required.begin(), required.end());
    for (const std::string& key : known) {
      if (!json.contains(key)) return Malformed(tensor, "'" + key + "' is missing");
    }
    known.insert(optional.begin(), optional.end());
    for (const auto& [key, value] : json.items()) {
      if (!known.contains(key)) return Malformed(tensor, "'" + key + "' is not a key of this version");
    }
    return {};
  }

  Status QuantizerArgs(const Json& json) const {
    PITH_RETURN_IF_ERROR(Keys(
        json, "quantizer_args",
        {"activation_bitwidth", "dtype", "is_symmetric", "param_bitwidth", "per_channel_quantization", "quant_scheme"},
        {}));
    const bool fits = json["activation_bitwidth"].is_number_integer() && json["dtype"].is_string() &&
                      json["is_symmetric"].is_boolean() && json["param_bitwidth"].is_number_integer() &&
                      json["per_channel_quantization"].is_boolean() && json["quant_scheme"].is_string();
    return fits ? Status() : Status(Malformed("quantizer_args", "a value has the wrong type"));
  }

  static bool IsScale(const Json& json) {
    return json.is_number() && std::isfinite(json.get<double>()) && json.get<double>() > 0;
  }

  Status Bits(const std::string& tensor, const Json& json, const char* key) const {
    if (!json.is_number_integer() || (json != 4 && json != 8 && json != 16)) {
      return Malformed(tensor, std::string("'") + key + "' is none of 4, 8, 16");
    }
    return {};
  }

  Status Offset(const std::string& tensor, const Json& json, int bits, bool symmetric) const {
    const int64_t lowest = -((int64_t{1} << bits) - 1);
    if (!json.is_number_integer() || json.get<int64_t>() < lowest || json.get<int64_t>() > 0) {
      return Malformed(tensor, "'offset' is not an integer from " + std::to_string(lowest) + " to 0");
    }
    if (symmetric && json.get<int64_t>() != -(int64_t{1} << (bits - 1))) {
      return Malformed(tensor, "'offset' of a symmetric encoding is not " + std::to_string(-(1 << (bits - 1))));
    }
    return {};
  }

  // The name, once in the file, and what the graph says of it. `channels`: scales, 1 = one for the tensor.
  Status Tensor(const std::string& name, std::optional<bool> parameter, size_t channels, int64_t block) {
    if (name.empty()) return Malformed("", "an entry has an empty name");
    if (!seen_.insert(name).second) return Malformed(name, "comes twice");
    if (channels == 0) return Malformed(name, "has no scale");
    if (parameter == false && channels > 1) return Malformed(name, "an activation has more than one scale");
    if (tensors_ == nullptr) return {};
    const auto found = tensors_->find(name);
    if (found == tensors_->end()) return Mismatch(name, "is not in the graph");
    if (parameter && *parameter != found->second.constant) {
      return Mismatch(name, *parameter ? "is not a constant of the graph" : "is a constant, not an activation");
    }
    if (channels == 1 && block == 0) return {};
    const std::vector<int64_t>& shape = found->second.shape;
    int64_t wanted = shape.empty() ? 1 : shape[0];
    if (block > 0) {
      if (shape.size() < 2 || shape[1] % block != 0) return Mismatch(name, "cannot be cut into blocks of that size");
      wanted *= shape[1] / block;
    }
    if (static_cast<int64_t>(channels) != wanted) {
      return Mismatch(
          name, "has " + std::to_string(channels) + " scales, the graph's tensor needs " + std::to_string(wanted));
    }
    return {};
  }

  Status LegacyList(const Json& json, const char* key, bool parameter) {
    if (!json.is_object()) return Malformed("", std::string("'") + key + "' is not an object");
    for (const auto& [name, entries] : json.items()) {
      if (!entries.is_array()) return Malformed(name, "is not a list");
      for (const Json& entry : entries) PITH_RETURN_IF_ERROR(LegacyEntry(name, entry));
      PITH_RETURN_IF_ERROR(Tensor(name, parameter, entries.size(), 0));
    }
    return {};
  }

  Status LegacyEntry(const std::string& name, const Json& json) const {
    PITH_RETURN_IF_ERROR(Keys(json, name, {"bitwidth", "dtype", "is_symmetric", "max", "min", "offset", "scale"}, {}));
    PITH_RETURN_IF_ERROR(Bits(name, json["bitwidth"], "bitwidth"));
    if (json["dtype"] != "int") return Malformed(name, "'dtype' is not \"int\"");
    if (json["is_symmetric"] != "True" && json["is_symmetric"] != "False") {
      return Malformed(name, "'is_symmetric' is neither \"True\" nor \"False\"");
    }
    if (!IsScale(json["scale"])) return Malformed(name, "'scale' is not a positive number");
    const int bits = json["bitwidth"].get<int>();
    PITH_RETURN_IF_ERROR(Offset(name, json["offset"], bits, json["is_symmetric"] == "True"));
    const double scale = json["scale"].get<double>();
    const double low = scale * json["offset"].get<double>();
    const double high = scale * (json["offset"].get<double>() + static_cast<double>((1 << bits) - 1));
    for (const auto& [key, want] : {std::pair{"min", low}, std::pair{"max", high}}) {
      if (!json[key].is_number() ||
          !(std::fabs(json[key].get<double>() - want) <= 1e-3 * scale + 1e-6 * std::fabs(want))) {
        return Malformed(name, std::string("'") + key + "' is not what scale and offset give");
      }
    }
    return {};
  }

  Status NamedList(const Json& json, const char* key, bool parameter) {
    if (!json.is_array()) return Malformed("", std::string("'") + key + "' is not a list");
    for (const Json& entry : json) {
      PITH_RETURN_IF_ERROR(
          Keys(entry, "", {"name", "dtype", "enc_type", "bw", "is_sym", "scale", "offset"}, {"block_size"}));
      if (!entry["name"].is_string()) return Malformed("", "'name' is not a string");
      const std::string name = entry["name"].get<std::string>();
      PITH_RETURN_IF_ERROR(Bits(name, entry["bw"], "bw"));
      if (entry["dtype"] != "INT") return Malformed(name, "'dtype' is not \"INT\"");
      if (!entry["is_sym"].is_boolean()) return Malformed(name, "'is_sym' is neither true nor false");
      const Json &scales = entry["scale"], &offsets = entry["offset"];
      if (!scales.is_array() || !std::all_of(scales.begin(), scales.end(), IsScale)) {
        return Malformed(name, "'scale' is not a list of positive numbers");
      }
      if (!offsets.is_array() || offsets.size() != scales.size()) {
        return Malformed(name, "'offset' has not as many entries as 'scale'");
      }
      for (const Json& offset : offsets) {
        PITH_RETURN_IF_ERROR(Offset(name, offset, entry["bw"].get<int>(), entry["is_sym"].get<bool>()));
      }
      const Json& type = entry["enc_type"];
      const bool blocks = type == "PER_BLOCK";
      if (type != "PER_TENSOR" && type != "PER_CHANNEL" && !blocks) {
        return Malformed(name, "'enc_type' is none of PER_TENSOR, PER_CHANNEL, PER_BLOCK");
      }
      if (type == "PER_TENSOR" && scales.size() != 1) return Malformed(name, "PER_TENSOR has more than one scale");
      if (blocks != entry.contains("block_size")) return Malformed(name, "'block_size' goes with PER_BLOCK");
      if (blocks && !(entry["block_size"].is_number_integer() && entry["block_size"] > 0)) {
        return Malformed(name, "'block_size' is not a positive integer");
      }
      PITH_RETURN_IF_ERROR(Tensor(name, parameter, scales.size(), blocks ? entry["block_size"].get<int64_t>() : 0));
    }
    return {};
  }

  Status OnnxList(const Json& json) {
    if (!json.is_array()) return Malformed("", "'encodings' is not a list");
    for (const Json& entry : json) {
      PITH_RETURN_IF_ERROR(Keys(entry, "", {"name", "output_dtype", "y_scale"}, {"axis", "y_zero_point"}));
      if (!entry["name"].is_string()) return Malformed("", "'name' is not a string");
      const std::string name = entry["name"].get<std::string>();
      const Json& type = entry["output_dtype"];
      const bool is_signed = type == "int4" || type == "int8" || type == "int16";
      if (!is_signed && type != "uint4" && type != "uint8" && type != "uint16") {
        return Malformed(name, "'output_dtype' is no integer type of 4, 8 or 16 bits");
      }
      const Json& scale = entry["y_scale"];
      const bool channels = entry.contains("axis");
      if (channels && entry["axis"] != 0) return Malformed(name, "'axis' is not 0");
      if (channels != scale.is_array()) return Malformed(name, "'axis' goes with a list of scales");
      if (channels ? !std::all_of(scale.begin(), scale.end(), IsScale) : !IsScale(scale)) {
        return Malformed(name, "'y_scale' is not positive");
      }
      if (is_signed == entry.contains("y_zero_point")) {
        return Malformed(name, "'y_zero_point' goes with unsigned types");
      }
      if (!is_signed) {
        const int64_t highest = type == "uint4" ? 15 : type == "uint8" ? 255 : 65535;
        const Json& zero = entry["y_zero_point"];
        if (!zero.is_number_integer() || zero.get<int64_t>() < 0 || zero.get<int64_t>() > highest) {
          return Malformed(name, "'y_zero_point' is outside 0 to " + std::to_string(highest));
        }
      }
      PITH_RETURN_IF_ERROR(Tensor(name, std::nullopt, channels ? scale.size() : 1, 0));
    }
    return {};
  }

  std::string what_;
  const std::map<std::string, GraphTensor>* tensors_;
  std::set<std::string> seen_;
};

}  // namespace

Status ValidateEncodings(std::string_view json, const std::string& what,
                         const std::map<std::string, GraphTensor>* tensors) {
  PITH_ASSIGN(const Json parsed, ParseJson(json, what));
  return Validator(what, tensors).Run(parsed);
}

}  // namespace pith
