#include "deploy/encodings.h"

#include "base/json.h"
#include "model/activation_ranges.h"

namespace pith {

namespace {

constexpr std::pair<EncodingVersion, const char*> kVersions[] = {
    {EncodingVersion::k0_6_1, "0.6.1"}, {EncodingVersion::k1_0_0, "1.0.0"}, {EncodingVersion::k2_0_0, "2.0.0"}};

// What the converter assumes for tensors without an encoding.
OrderedJson QuantizerArgs() {
  return {{"activation_bitwidth", 16},        {"dtype", "int"},           {"is_symmetric", true}, {"param_bitwidth", 8},
          {"per_channel_quantization", true}, {"quant_scheme", "min_max"}};
}

OrderedJson Legacy(const TensorEncoding& encoding) {
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < encoding.scales.size(); ++i) {
    list.push_back({{"bitwidth", encoding.bits},
                    {"dtype", "int"},
                    {"is_symmetric", encoding.symmetric ? "True" : "False"},
                    {"max", encoding.Highest(i)},
                    {"min", encoding.Lowest(i)},
                    {"offset", encoding.offset},
                    {"scale", encoding.scales[i]}});
  }
  return list;
}

OrderedJson Named(const std::string& name, const TensorEncoding& encoding) {
  OrderedJson json = {{"name", name},
                      {"dtype", "INT"},
                      {"enc_type", encoding.block > 0           ? "PER_BLOCK"
                                   : encoding.scales.size() > 1 ? "PER_CHANNEL"
                                                                : "PER_TENSOR"},
                      {"bw", encoding.bits},
                      {"is_sym", encoding.symmetric},
                      {"scale", encoding.scales},
                      {"offset", std::vector<int32_t>(encoding.scales.size(), encoding.offset)}};
  if (encoding.block > 0) json["block_size"] = encoding.block;
  return json;
}

OrderedJson OnnxLike(const std::string& name, const TensorEncoding& encoding) {
  const std::string type = (encoding.symmetric ? "int" : "uint") + std::to_string(encoding.bits);
  OrderedJson json = {{"name", name}, {"output_dtype", type}};
  if (encoding.scales.size() > 1) {
    json["axis"] = 0;
    json["y_scale"] = encoding.scales;
  } else {
    json["y_scale"] = encoding.scales.front();
  }
  if (!encoding.symmetric) json["y_zero_point"] = -encoding.offset;
  return json;
}

}  // namespace

Result<EncodingVersion> ParseEncodingVersion(std::string_view text) {
  for (const auto& [version, name] : kVersions) {
    if (text == name) return version;
  }
  return Error{ErrorCode::kInvalidArgument,
               "'" + std::string(text) + "' is no version of encodings: 0.6.1, 1.0.0, 2.0.0"};
}

const char* EncodingVersionName(EncodingVersion version) {
  for (const auto& [known, name] : kVersions) {
    if (version == known) return name;
  }
  return "?";
}

double TensorEncoding::Lowest(size_t index) const {
  return static_cast<double>(scales[index]) * static_cast<double>(offset);
}

double TensorEncoding::Highest(size_t index) const {
  return static_cast<double>(scales[index]) * static_cast<double>((1 << bits) - 1 + offset);
}

TensorEncoding EncodeRange(float lowest, float highest, int bits, bool symmetric) {
  TensorEncoding encoding;
  encoding.bits = bits;
  encoding.symmetric = symmetric;
  const StaticQuantizer quantizer = StaticQuantizer::Of({lowest, highest}, bits, symmetric);
  encoding.scales = {quantizer.scale};
  encoding.offset = quantizer.lowest;
  return encoding;
}

Result<std::string> WriteEncodings(const Encodings& encodings, EncodingVersion version) {
  const bool legacy = version == EncodingVersion::k0_6_1;
  OrderedJson parameters = legacy ? OrderedJson::object() : OrderedJson::array();
  OrderedJson activations = parameters, all = OrderedJson::array();
  for (const auto& [name, encoding] : encodings) {
    if (encoding.block > 0 && version != EncodingVersion::k1_0_0) {
      return Error{ErrorCode::kUnsupported, "'" + name + "' has a scale per " + std::to_string(encoding.block) +
                                                " inputs; of the encodings only version 1.0.0 has words for that"};
    }
    OrderedJson& list = encoding.parameter ? parameters : activations;
    if (legacy) {
      list[name] = Legacy(encoding);
    } else if (version == EncodingVersion::k1_0_0) {
      list.push_back(Named(name, encoding));
    } else {
      all.push_back(OnnxLike(name, encoding));
    }
  }
  OrderedJson json = {{"version", EncodingVersionName(version)}};
  if (version == EncodingVersion::k2_0_0) {
    json["encodings"] = all;
  } else {
    json["param_encodings"] = parameters;
    json["activation_encodings"] = activations;
  }
  json["quantizer_args"] = QuantizerArgs();
  return json.dump(1) + "\n";
}

}  // namespace pith
