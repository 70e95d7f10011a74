// pith inspect: what a model, adapter or tokenizer on disk is.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/progress.h"
#include "command.h"
#include "json_output.h"
#include "model/inspect.h"
#include "pull/catalogue.h"
#include "pull/model_cache.h"

namespace pith {

namespace {

struct InspectOptions {
  std::string path;
  bool tensors = false;
};

const char* RopeScalingName(RopeScalingKind kind) {
  switch (kind) {
    case RopeScalingKind::kNone: return "none";
    case RopeScalingKind::kLinear: return "linear";
    case RopeScalingKind::kLlama3: return "llama3";
    case RopeScalingKind::kYarn: return "yarn";
  }
  return "none";
}

OrderedJson ConfigJson(const ModelConfig& config) {
  OrderedJson json = {{"architecture", ArchitectureName(config.arch)},
                      {"hidden_size", config.hidden},
                      {"intermediate_size", config.intermediate},
                      {"num_hidden_layers", config.layers},
                      {"num_attention_heads", config.heads},
                      {"num_key_value_heads", config.kv_heads},
                      {"head_dim", config.head_dim},
                      {"vocab_size", config.vocab},
                      {"max_position_embeddings", config.max_position},
                      {"rms_norm_eps", config.rms_eps},
                      {"rope_theta", config.rope_theta},
                      {"rope_scaling", RopeScalingName(config.rope_scaling.kind)},
                      {"tie_word_embeddings", config.tied_embeddings},
                      {"attention_bias", config.attention_bias},
                      {"qk_norm", config.qk_norm}};
  json["bos_token_id"] = config.bos_id >= 0 ? OrderedJson(config.bos_id) : OrderedJson(nullptr);
  json["eos_token_ids"] = config.eos_ids;
  return json;
}

OrderedJson SchemeJson(const QuantScheme& scheme) {
  return {{"bits", scheme.bits}, {"group_size", scheme.group}, {"symmetric", scheme.symmetric}};
}

OrderedJson QuantizationJson(const QuantizationConfig& quantization) {
  OrderedJson json = {{"linear", SchemeJson(quantization.linear)}};
  for (const auto& [module, scheme] : quantization.by_module) json["by_module"][module] = SchemeJson(scheme);
  json["ignore"] = quantization.ignore;
  json["kv_bits"] = quantization.kv_bits ? OrderedJson(*quantization.kv_bits) : OrderedJson(nullptr);
  return json;
}

// How many tensors and bytes there are of each type.
OrderedJson TypesJson(const Inspection& inspection) {
  OrderedJson types = OrderedJson::object();
  for (const Tensor& tensor : inspection.tensors) {
    OrderedJson& type = types[DTypeName(tensor.type)];
    if (type.is_null()) type = {{"tensors", 0}, {"bytes", 0}};
    type["tensors"] = type["tensors"].get<int64_t>() + 1;
    type["bytes"] = type["bytes"].get<uint64_t>() + tensor.data.size();
  }
  return types;
}

OrderedJson InspectionJson(const std::string& path, const Inspection& inspection) {
  OrderedJson json = {
      {"path", path}, {"format", ArtefactKindName(inspection.kind)}, {"file_bytes", inspection.file_bytes}};
  if (inspection.checkpoint) {
    json["fingerprint"] = inspection.checkpoint->fingerprint();
    json["config"] = ConfigJson(inspection.checkpoint->config());
    const auto& quantization = inspection.checkpoint->quantization();
    json["quantization"] = quantization ? QuantizationJson(*quantization) : OrderedJson(nullptr);
    json["chat_template"] = inspection.template_family ? OrderedJson(TemplateFamilyName(*inspection.template_family))
                                                       : OrderedJson(nullptr);
    if (!inspection.template_error.empty()) json["chat_template_error"] = inspection.template_error;
  }
  if (inspection.kind == ArtefactKind::kAdapter) {
    OrderedJson ranks = OrderedJson::object();
    for (const auto& [rank, modules] : inspection.adapter_modules_by_rank) ranks[std::to_string(rank)] = modules;
    json["adapter"] = {{"target_modules", inspection.adapter_targets}, {"modules_by_rank", ranks}};
  }
  if (inspection.checkpoint || inspection.tokenizer_size) {
    json["tokenizer_size"] = inspection.tokenizer_size ? OrderedJson(*inspection.tokenizer_size) : OrderedJson(nullptr);
  }
  if (inspection.kind == ArtefactKind::kTokenizer) return json;
  json["parameters"] = inspection.parameters;
  json["total_bytes"] = inspection.tensor_bytes;
  json["bits_per_weight"] = inspection.bits_per_weight;
  json["types"] = TypesJson(inspection);
  if (!inspection.warnings.empty()) json["warnings"] = inspection.warnings;
  OrderedJson tensors = OrderedJson::array();
  for (const Tensor& tensor : inspection.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"type", DTypeName(tensor.type)},
                       {"shape", tensor.shape},
                       {"bytes", tensor.data.size()}});
  }
  json["tensors"] = tensors;
  return json;
}

std::string PlainText(const OrderedJson& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

void PrintText(const OrderedJson& json, const Inspection& inspection, bool tensors) {
  const auto line = [](const std::string& key, const std::string& text) {
    std::printf("%-26s %s\n", key.c_str(), text.c_str());
  };
  for (const auto& [key, value] : json.items()) {
    if (key == "config") {
      for (const auto& [name, field] : value.items()) line(name, PlainText(field));
    } else if (key == "types") {
      for (const auto& [type, sum] : value.items()) {
        line("type " + type, PlainText(sum["tensors"]) + " tensors, " + HumanBytes(sum["bytes"].get<uint64_t>()));
      }
    } else if (key == "bits_per_weight") {
      std::printf("%-26s %.3f\n", key.c_str(), value.get<double>());
    } else if (key != "tensors") {
      line(key, PlainText(value));
    }
  }
  if (!tensors) {
    line("tensors", std::to_string(inspection.tensors.size()) + " (--tensors lists them)");
    return;
  }
  for (const Tensor& tensor : inspection.tensors) {
    std::printf("%-56s %-6s %-20s %zu\n", tensor.name.c_str(), DTypeName(tensor.type), ShapeText(tensor.shape).c_str(),
                tensor.data.size());
  }
}

Status RunInspect(const Cli& cli, const InspectOptions& options) {
  // A name of the catalogue will do, but a path on disk comes first: this command is asked about files.
  std::string path = options.path;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    PITH_ASSIGN(path, ResolveModel(options.path));
  }
  PITH_ASSIGN(const Inspection inspection, InspectPath(path));
  const OrderedJson json = InspectionJson(path, inspection);
  if (cli.json()) {
    PrintJson(json);
  } else {
    PrintText(json, inspection, options.tensors);
  }
  return {};
}

}  // namespace

void AddInspectCommand(Cli& cli) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* app = cli.AddCommand("inspect", "Check a model, adapter or tokenizer on disk and say what it holds.",
                                 "pith inspect ~/models/SmolLM2-135M-Instruct --json");
  CLI::Option* path = app->add_option("path", options->path,
                                      "A model directory, GGUF or safetensors file, adapter directory, tokenizer.json, "
                                      "or a name of the catalogue");
  path->required()->type_name("PATH");
  SetCompletion(path, {CompletionHint::Kind::kModel, {}});
  app->add_flag("--tensors", options->tensors, "List the tensors too (--json always does)");
  cli.OnRun(app, [&cli, options] { return RunInspect(cli, *options); });
}

}  // namespace pith
