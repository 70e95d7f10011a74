#include "model/pack_config.h"

#include <algorithm>

#include "base/json.h"

namespace pith {

namespace {

OrderedJson WeightsJson(const QuantFormat& format) {
  OrderedJson json;
  json["num_bits"] = format.bits;
  json["type"] = "int";
  json["symmetric"] = format.zero == ZeroForm::kSymmetric;
  json["strategy"] = format.group == 0 ? "channel" : "group";
  json["group_size"] = format.group == 0 ? OrderedJson(nullptr) : OrderedJson(format.group);
  json["dynamic"] = false;
  if (format.zero == ZeroForm::kMinimum) json["minimum"] = true;
  return json;
}

// The storage type of the scales is that of their tensors; the configuration does not tell them apart.
bool SameScheme(const QuantFormat& a, const QuantFormat& b) {
  return a.bits == b.bits && a.group == b.group && a.zero == b.zero;
}

struct Group {
  QuantFormat format;
  std::vector<const ModelModule*> linears;
  const ModelModule* embedding = nullptr;
};

}  // namespace

Result<std::string> PackedConfigText(const std::string& config_text, const std::vector<StoredModule>& modules,
                                     bool tied, std::optional<int> kv_bits, const std::string& what) {
  OrderedJson config;
  {
    PITH_ASSIGN(const Json checked, ParseJson(config_text, what));
    if (!checked.is_object()) return Error{ErrorCode::kMalformed, what + ": the configuration is not a JSON object"};
    config = OrderedJson::parse(config_text);  // checked above; this one keeps the order of the keys
  }
  config["tie_word_embeddings"] = tied;
  config.erase("quantization_config");
  config.erase("compression_config");

  std::vector<Group> groups;
  OrderedJson ignored = OrderedJson::array();
  for (const StoredModule& stored : modules) {
    if (!stored.format) {
      if (stored.module.kind == ModuleKind::kLinear) ignored.push_back(stored.module.name);
      continue;
    }
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& g) { return SameScheme(g.format, *stored.format); });
    if (group == groups.end()) group = groups.insert(groups.end(), Group{*stored.format, {}, nullptr});
    if (stored.module.kind == ModuleKind::kEmbedding) {
      group->embedding = &stored.module;
    } else {
      group->linears.push_back(&stored.module);
    }
  }
  if (groups.empty()) return config.dump(2) + "\n";
  // The class "Linear" must not claim the head of a tied model: it has no weights of its own.
  if (tied) ignored.push_back("lm_head");

  // The first group with most linears stands for the class.
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.linears.size() > b.linears.size(); });
  // Readers match targets in the order of the file: the class comes last.
  OrderedJson config_groups;
  for (size_t i = groups.size(); i-- > 0;) {
    OrderedJson targets = OrderedJson::array();
    if (i == 0 && !groups[i].linears.empty()) {
      targets.push_back("Linear");
    } else {
      for (const ModelModule* linear : groups[i].linears) {
        targets.push_back(linear->name == "lm_head" ? "re:.*lm_head" : linear->name);
      }
    }
    if (groups[i].embedding != nullptr) targets.push_back("Embedding");
    OrderedJson& json = config_groups["group_" + std::to_string(i)];
    json["targets"] = targets;
    json["weights"] = WeightsJson(groups[i].format);
    json["input_activations"] = nullptr;
    json["output_activations"] = nullptr;
    json["format"] = "pack-quantized";
  }
  OrderedJson quantization;
  quantization["quant_method"] = "compressed-tensors";
  quantization["format"] = "pack-quantized";
  quantization["quantization_status"] = "compressed";
  quantization["config_groups"] = config_groups;
  quantization["ignore"] = ignored;
  if (kv_bits) {
    quantization["kv_cache_scheme"] = {
        {"num_bits", *kv_bits}, {"type", "int"}, {"symmetric", true}, {"strategy", "token"}, {"dynamic", true}};
  }
  config["quantization_config"] = quantization;
  return config.dump(2) + "\n";
}

}  // namespace pith
