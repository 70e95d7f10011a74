#include "deploy/genie.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/json.h"
#include "base/progress.h"
#include "model/hf_names.h"

namespace pith {

namespace {

constexpr Chip kChips[] = {{"8gen2", "Snapdragon 8 Gen 2", 43, 73, false},
                           {"8gen3", "Snapdragon 8 Gen 3", 57, 75, false},
                           {"8elite", "Snapdragon 8 Elite", 69, 79, false},
                           {"xelite", "Snapdragon X Elite", 60, 73, true}};

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr uint64_t kContextLimit = 4 * kGiB;  // of one context binary on HTP
constexpr int kWeightSharing = 73;            // Hexagon versions from which on a feature is there
// A model of 7 billion weights and 4096 places wants a phone of 16 GB: about 4 times its weights.
constexpr uint64_t kMemoryPerWeightByte = 4;

std::string ContextBinary(int64_t index, int64_t count) {
  return "weight_sharing_model_" + std::to_string(index) + "_of_" + std::to_string(count) + ".serialized.bin";
}

std::string AdapterBinary(const std::string& name, int64_t index, int64_t count) {
  return name + "_" + std::to_string(index) + "_of_" + std::to_string(count) + ".bin";
}

// Whether a part has factors of the adapter.
bool HasAdapter(const AdapterFile& adapter, const GraphPart& part) {
  return std::ranges::any_of(adapter.modules, [&](const LoraModule& module) {
    return module.kind == LinearKind::kLmHead ? part.head : module.layer >= part.begin && module.layer < part.end;
  });
}

// The keys of an object by its path; lists stand for their elements. '?' marks what may be left out.
using KeyTable = std::map<std::string, std::vector<std::string>>;
const KeyTable kGenieKeys = {
    {"", {"dialog"}},
    {"/dialog", {"version", "type", "context", "sampler", "tokenizer", "engine"}},
    {"/dialog/context", {"size", "n-vocab", "bos-token", "eos-token", "eot-token"}},
    {"/dialog/sampler", {"seed", "temp", "top-k", "top-p"}},
    {"/dialog/tokenizer", {"path"}},
    {"/dialog/engine", {"n-threads", "backend", "model"}},
    {"/dialog/engine/backend", {"type", "QnnHtp", "extensions"}},
    {"/dialog/engine/backend/QnnHtp",
     {"use-mmap", "spill-fill-bufsize", "mmap-budget", "poll", "cpu-mask", "kv-dim", "pos-id-dim", "rope-theta",
      "allow-async-init"}},
    {"/dialog/engine/model", {"type", "binary"}},
    {"/dialog/engine/model/binary", {"ctx-bins", "lora?"}},
    {"/dialog/engine/model/binary/lora", {"version", "lora-version", "alpha-tensor-name", "adapters"}},
    {"/dialog/engine/model/binary/lora/adapters", {"version", "name", "alphas", "bin-sections"}},
};
const KeyTable kHtpKeys = {
    {"", {"devices", "memory", "context"}},
    {"/devices", {"soc_model", "dsp_arch", "cores"}},
    {"/devices/cores", {"core_id", "perf_profile", "rpc_control_latency"}},
    {"/memory", {"mem_type"}},
    {"/context", {"weight_sharing_enabled"}},
};

// The depth of the tables bounds the recursion: a path that is not in the table must not hold an object.
Status CheckKeys(const Json& json, const std::string& path, const KeyTable& table, const std::string& what) {
  const auto bad = [&](const std::string& problem) {
    return Error{ErrorCode::kMalformed, what + ": " + (path.empty() ? "/" : path) + " " + problem};
  };
  if (json.is_array()) {
    for (const Json& item : json) {
      if (item.is_array()) return bad("holds a list of lists");
      PITH_RETURN_IF_ERROR(CheckKeys(item, path, table, what));
    }
    return {};
  }
  const auto entry = table.find(path);
  if (entry == table.end()) return json.is_object() ? Status(bad("is an object")) : Status();
  if (!json.is_object()) return bad("is not an object");
  for (const std::string& key : entry->second) {
    if (key.back() != '?' && !json.contains(key)) return bad("lacks '" + key + "'");
  }
  for (const auto& [key, value] : json.items()) {
    const bool known = std::ranges::find(entry->second, key) != entry->second.end() ||
                       std::ranges::find(entry->second, key + "?") != entry->second.end();
    if (!known) return bad("has '" + key + "', which GENIE refuses");
    PITH_RETURN_IF_ERROR(CheckKeys(value, path + "/" + key, table, what));
  }
  return {};
}

}  // namespace

Result<Chip> FindChip(std::string_view name) {
  std::string known;
  for (const Chip& chip : kChips) {
    if (name == chip.name) return chip;
    known += (known.empty() ? "" : ", ") + std::string(chip.name);
  }
  return Error{ErrorCode::kInvalidArgument, "'" + std::string(name) + "' is no chip that is known here: " + known};
}

GenieSizes ComputeGenieSizes(const ModelConfig& config, const std::vector<GraphPart>& parts, int64_t context,
                             const AdapterFile* adapter, GenieWeightBits bits) {
  GenieSizes sizes;
  uint64_t layer = 0;
  ModelConfig one = config;
  one.layers = 1;
  for (const ModelModule& module : ModulesOf(one)) {
    if (module.kind != ModuleKind::kLinear || module.name == "lm_head") continue;
    layer += static_cast<uint64_t>(module.shape[0]) * static_cast<uint64_t>(module.shape[1]) *
             static_cast<uint64_t>(bits.linears) / 8;
  }
  const uint64_t table = static_cast<uint64_t>(config.vocab) * static_cast<uint64_t>(config.hidden);
  sizes.bits = bits;
  sizes.embedding_bytes = table * static_cast<uint64_t>(bits.embedding) / 8;
  sizes.head_bytes = table * static_cast<uint64_t>(bits.head) / 8;
  sizes.layer_bytes = layer * static_cast<uint64_t>(config.layers);
  sizes.kv_bytes =
      static_cast<uint64_t>(2 * config.layers * config.kv_heads * config.head_dim) * static_cast<uint64_t>(context);
  for (const GraphPart& part : parts) {
    sizes.part_bytes.push_back(layer * static_cast<uint64_t>(part.end - part.begin) +
                               (part.embedding ? sizes.embedding_bytes : 0) + (part.head ? sizes.head_bytes : 0));
  }
  if (adapter == nullptr) return sizes;
  for (const LoraModule& module : adapter->modules) {
    const LinearShape shape = ShapeOf(config, module.kind);
    sizes.adapter_bytes += static_cast<uint64_t>(module.rank) * static_cast<uint64_t>(shape.in + shape.out);
  }
  return sizes;
}

std::vector<Finding> Preflight(const ModelConfig& config, const Chip& chip, const GenieOptions& options,
                               const GenieSizes& sizes) {
  std::vector<Finding> findings;
  const auto add = [&](bool blocks, const std::string& text) { findings.push_back({blocks, text}); };
  const uint64_t weights = sizes.embedding_bytes + sizes.layer_bytes + sizes.head_bytes;
  if (chip.hexagon < kWeightSharing) {
    add(true, std::string(chip.full_name) + " has Hexagon v" + std::to_string(chip.hexagon) +
                  "; sharing weights between the prompt's and the token's graph needs v73");
  }
  for (size_t i = 0; i < sizes.part_bytes.size(); ++i) {
    if (sizes.part_bytes[i] < kContextLimit) continue;
    add(true, "part " + std::to_string(i + 1) + " has " + HumanBytes(sizes.part_bytes[i]) +
                  " of weights; one context binary holds about 4 GiB: cut the layers into more parts");
  }
  if (options.parts == 1 && weights > kGiB) {
    // The embedding apart and runs of about 700 MiB, as AI Hub cuts Qwen2.5-7B into 6.
    const auto runs = static_cast<int64_t>(sizes.layer_bytes / (700 * (kGiB >> 10)) + 1);
    const int64_t parts = std::min(config.layers, runs) + 1;
    add(true, "all " + HumanBytes(weights) +
                  " of weights are in one part: models of this size are compiled in parts; " + "try " +
                  std::to_string(parts));
  }
  const uint64_t all = weights + sizes.adapter_bytes + sizes.kv_bytes;
  const uint64_t wanted = kMemoryPerWeightByte * weights;
  if (options.device_memory_gib > 0) {
    const uint64_t memory = static_cast<uint64_t>(options.device_memory_gib) * kGiB;
    if (all > memory / 2) {
      add(true, "weights, cache and adapter take " + HumanBytes(all) + " of a phone's " + HumanBytes(memory) +
                    "; no more than half of it can be had");
    } else if (wanted > memory) {
      add(false, "phones with " + HumanBytes(memory) + " are short of memory for this model (" + HumanBytes(weights) +
                     " of weights): 7B models want 16 GB");
    }
  } else if (wanted > 12 * kGiB) {
    add(false, "this model (" + HumanBytes(weights) + " of weights) wants a phone with 16 GB of memory or more");
  }
  if (options.context > config.max_position) {
    add(true, "a context of " + std::to_string(options.context) + " is beyond the model's " +
                  std::to_string(config.max_position));
  }
  if (options.context > 4096) {
    add(false, "a context of " + std::to_string(options.context) +
                   " makes every step of attention as long as that; 4096 is what such bundles are built for");
  }
  if (config.rope_scaling.kind != RopeScalingKind::kNone || !config.rope_frequency_divisors.empty()) {
    add(true,
        "the model scales its RoPE frequencies, and genie_config.json knows only rope-theta: GENIE would compute other "
        "positions (the graphs take cos and sin as inputs: a host of your own can feed those of export.json)");
  }
  if (!options.decodes) {
    add(true, "there is no graph for one new token, with which GENIE decodes: --tokens 128,1");
  }
  if (options.switcher) {
    add(true,
        "the graphs have inputs of the switcher, which GENIE's dialogs do not feed: a host of your own can; for GENIE "
        "export an adapter directory without a switcher");
  }
  if (config.head_dim % 32 != 0) {
    add(false, "heads of " + std::to_string(config.head_dim) + " are no multiple of 32, which the NPU pads to");
  }
  if (!options.adapter_name.empty()) {
    add(false,
        "the adapter's binaries must be made by the same version of the SDK as the base's; adapters of one base must "
        "have the same modules and the same largest rank");
  }
  return findings;
}

std::string GenieConfigText(const ModelConfig& config, const GenieOptions& options, const AdapterFile* adapter) {
  const auto eos = config.eos_ids.empty() ? int32_t{-1} : config.eos_ids.front();
  const auto eot = config.eos_ids.size() > 1 ? config.eos_ids[1] : eos;
  OrderedJson bins = OrderedJson::array();
  for (int64_t i = 1; i <= options.parts; ++i) bins.push_back(ContextBinary(i, options.parts));
  OrderedJson binary = {{"ctx-bins", bins}};
  if (adapter != nullptr) {
    OrderedJson sections = OrderedJson::array();
    const auto parts = PlanParts(config, options.parts);
    if (parts.ok()) {
      for (const GraphPart& part : *parts) {
        sections.push_back(HasAdapter(*adapter, part) ? AdapterBinary(options.adapter_name, part.index, part.count)
                                                      : "");
      }
    }
    binary["lora"] = {{"version", 1},
                      {"lora-version", 2},
                      {"alpha-tensor-name", "lora_alpha"},
                      {"adapters", OrderedJson::array({{{"version", 1},
                                                        {"name", options.adapter_name},
                                                        {"alphas", {"lora_alpha"}},
                                                        {"bin-sections", sections}}})}};
  }
  const OrderedJson json = {{"dialog",
                             {{"version", 1},
                              {"type", "basic"},
                              {"context",
                               {{"size", options.context},
                                {"n-vocab", config.vocab},
                                {"bos-token", config.bos_id < 0 ? static_cast<int64_t>(eot) : config.bos_id},
                                {"eos-token", eos},
                                {"eot-token", eot}}},
                              {"sampler", {{"seed", 42}, {"temp", 0.8}, {"top-k", 40}, {"top-p", 0.95}}},
                              {"tokenizer", {{"path", "tokenizer.json"}}},
                              {"engine",
                               {{"n-threads", 3},
                                {"backend",
                                 {{"type", "QnnHtp"},
                                  {"QnnHtp",
                                   {{"use-mmap", true},
                                    {"spill-fill-bufsize", 0},
                                    {"mmap-budget", 0},
                                    {"poll", true},
                                    {"cpu-mask", "0xe0"},
                                    {"kv-dim", config.head_dim},
                                    {"pos-id-dim", config.head_dim / 2},
                                    {"rope-theta", static_cast<int64_t>(std::llround(config.rope_theta))},
                                    {"allow-async-init", false}}},
                                  {"extensions", "htp_backend_ext_config.json"}}},
                                {"model", {{"type", "binary"}, {"binary", binary}}}}}}}};
  return json.dump(2) + "\n";
}

std::string HtpConfigText(const Chip& chip) {
  const OrderedJson json = {
      {"devices", OrderedJson::array(
                      {{{"soc_model", chip.soc_model},
                        {"dsp_arch", "v" + std::to_string(chip.hexagon)},
                        {"cores", OrderedJson::array(
                                      {{{"core_id", 0}, {"perf_profile", "burst"}, {"rpc_control_latency", 100}}})}}})},
      {"memory", {{"mem_type", "shared_buffer"}}},
      {"context", {{"weight_sharing_enabled", true}}}};
  return json.dump(2) + "\n";
}

std::string GenieCommands(const OnnxExportReport& exported, const Chip& chip, const GenieOptions& options) {
  const std::string target = chip.windows ? "aarch64-windows-msvc" : "aarch64-android";
  const bool adapter = !options.adapter_name.empty();
  std::string text =
      "#!/usr/bin/env bash\n"
      "# The vendor's commands for this bundle (QAIRT SDK 2.29 or later, QNN_SDK_ROOT set). pith was not able to run "
      "them:\n"
      "# names of options follow the SDK's documentation, and each step says what it makes.\n"
      "set -euo pipefail\ncd \"$(dirname \"$0\")\"\nsource \"$QNN_SDK_ROOT/bin/envsetup.sh\"\nmkdir -p build\n\n";
  for (const OnnxPartReport& part : exported.parts) {
    const std::string number = std::to_string(part.part.index) + "_of_" + std::to_string(part.part.count);
    std::string libraries;
    text += "# Part " + number + ": convert with our encodings, quantize what has none (biases), for every graph.\n";
    for (size_t i = 0; i < part.graphs.size(); ++i) {
      const std::string graph = part.graphs[i].substr(0, part.graphs[i].size() - 5);
      text += "qairt-converter --input_network " + graph + ".onnx --quantization_overrides " + graph +
              ".encodings --preserve_io datatype input_ids" +
              (adapter && part.adapter_bytes > 0 ? " --lora_weight_list updatable_tensors.txt" : "") +
              " --output_path build/" + graph + ".dlc\n";
      text += "qairt-quantizer --input_dlc build/" + graph + ".dlc --float_fallback --output_dlc build/" + graph +
              "_quantized.dlc\n";
      libraries += (libraries.empty() ? "" : ",") + std::string("build/") + graph + "_quantized.dlc";
    }
    if (adapter && part.adapter_bytes > 0) {
      text += "# The adapter's own binary of this part, " +
              AdapterBinary(options.adapter_name, part.part.index, part.part.count) +
              ", is made by qairt-lora-importer and the\n# context binary generator from the tensors in " +
              "updatable_tensors.txt; their options differ between SDK versions, see --help.\n";
    }
    text += "# One context binary for all graphs of the part, weights shared.\n";
    text += "qnn-context-binary-generator --backend \"$QNN_SDK_ROOT/lib/x86_64-linux-clang/libQnnHtp.so\" --dlc_path " +
            libraries + " --config_file htp_compile_config.json --binary_file weight_sharing_model_" + number +
            ".serialized --output_dir .\n\n";
  }
  if (chip.windows) {
    return text +
           "# On the machine: this folder beside genie-t2t-run.exe, then\n# genie-t2t-run.exe -c genie_config.json "
           "--prompt_file sample_prompt.txt" +
           (adapter ? " -l " + options.adapter_name + ",lora_alpha,1.0" : "") + "\n";
  }
  const std::string folder = "/data/local/tmp/pith";
  text += "# To the phone.\nadb shell mkdir -p " + folder + "\n";
  text += "adb push *.serialized.bin genie_config.json htp_backend_ext_config.json tokenizer.json sample_prompt.txt " +
          folder + "\n";
  if (adapter) {
    text += "adapter_bins=(" + options.adapter_name +
            "_*.bin)\nif [ -e \"${adapter_bins[0]}\" ]; then adb push \"${adapter_bins[@]}\" " + folder +
            "; fi\nadb push genie_config_base.json " + folder + "\n";
  }
  text += "adb push \"$QNN_SDK_ROOT\"/lib/" + target + "/lib{Genie,QnnHtp,QnnHtpV" + std::to_string(chip.hexagon) +
          "Stub,QnnHtpNetRunExtensions,QnnSystem}.so \"$QNN_SDK_ROOT\"/lib/hexagon-v" + std::to_string(chip.hexagon) +
          "/unsigned/libQnnHtpV" + std::to_string(chip.hexagon) + "Skel.so \"$QNN_SDK_ROOT\"/bin/" + target +
          "/genie-t2t-run " + folder + "\n";
  const auto run = [&](const std::string& file, const std::string& more) {
    return "adb shell \"cd " + folder + " && LD_LIBRARY_PATH=. ADSP_LIBRARY_PATH=. ./genie-t2t-run -c " + file +
           " --prompt_file sample_prompt.txt" + more + "\"\n";
  };
  if (!adapter) return text + "\n" + run("genie_config.json", "");
  return text + "\n# The base, then the adapter on.\n" + run("genie_config_base.json", "") +
         "if [ -e \"${adapter_bins[0]}\" ]; then\n  " +
         run("genie_config.json", " -l " + options.adapter_name + ",lora_alpha,1.0") +
         "else\n  echo \"the adapter's binaries are not made yet: see the notes at the parts above\" >&2\nfi\n";
}

Status ValidateGenieConfig(std::string_view json, const std::string& what) {
  PITH_ASSIGN(const Json parsed, ParseJson(json, what));
  return CheckKeys(parsed, "", kGenieKeys, what);
}

Status ValidateHtpConfig(std::string_view json, const std::string& what) {
  PITH_ASSIGN(const Json parsed, ParseJson(json, what));
  return CheckKeys(parsed, "", kHtpKeys, what);
}

}  // namespace pith
