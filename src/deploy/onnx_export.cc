#include "deploy/onnx_export.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/cache_folder.h"
#include "base/json.h"
#include "deploy/onnx_file.h"
#include "deploy/onnx_weights.h"
#include "model/hf_names.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr int kFloatOpset = 17;
constexpr int kQdqOpset = 21;           // the first with integers of 4 and 16 bits
constexpr float kMaskFloor = -1000.0F;  // of float graphs; exp(-1000) is 0

Error Invalid(const std::string& message) { return {ErrorCode::kInvalidArgument, message}; }

Status CheckSizes(const ModelConfig& config, const OnnxExportOptions& options) {
  if (options.tokens.empty()) return Invalid("no number of new tokens is given");
  std::set<int64_t> seen;
  for (const int64_t tokens : options.tokens) {
    if (tokens < 1 || tokens > 4096) return Invalid("a graph for " + std::to_string(tokens) + " new tokens: 1 to 4096");
    if (!seen.insert(tokens).second) return Invalid(std::to_string(tokens) + " new tokens are asked for twice");
    if (tokens >= options.context) {
      return Invalid(std::to_string(tokens) + " new tokens do not fit a context of " + std::to_string(options.context));
    }
  }
  if (options.qdq && (options.qnn || options.lora_inputs)) {
    return Invalid("quantized graphs go with the generic target and with factors as constants");
  }
  if (options.context > config.max_position) {
    return Invalid("a context of " + std::to_string(options.context) + " is beyond the model's " +
                   std::to_string(config.max_position));
  }
  return {};
}

uint64_t FloatBytes(const ModelConfig& config) {
  uint64_t bytes = 0;
  for (const ModelModule& module : ModulesOf(config)) {
    uint64_t elements = 1;
    for (const int64_t size : module.shape) elements *= static_cast<uint64_t>(size);
    bytes += elements * 4;
  }
  return bytes;
}

class Exporter {
 public:
  Exporter(const Checkpoint& checkpoint, const OnnxExportOptions& options)
      : checkpoint_(checkpoint), config_(checkpoint.config()), options_(options) {}

  Result<OnnxExportReport> Run(const std::string& out_dir) {
    PITH_RETURN_IF_ERROR(CheckSizes(config_, options_));
    if (!OnnxIsBuiltIn()) return ErrorOf(WriteOnnx({}, out_dir));
    PITH_ASSIGN(const std::vector<GraphPart> parts, PlanParts(config_, options_.parts));
    std::error_code error;
    if (fs::exists(out_dir, error) && !(fs::is_directory(out_dir, error) && fs::is_empty(out_dir, error))) {
      return Invalid("'" + out_dir + "' is there already");
    }
    fs::path target = fs::path(out_dir).lexically_normal();
    if (!target.has_filename()) target = target.parent_path();
    folder_ = target.string() + "." + std::to_string(::getpid()) + ".partial";
    fs::remove_all(folder_, error);
    if (!fs::create_directories(folder_, error)) {
      return Error{ErrorCode::kIo, "cannot create '" + folder_.string() + "': " + error.message()};
    }
    PITH_ASSIGN(folded_, FoldedKeys::Of(checkpoint_));
    Status status = CheckFreeSpace(folder_.string(), FloatBytes(config_));
    total_ = FloatBytes(config_);
    for (const GraphPart& part : parts) {
      if (status.ok()) status = WritePart(part);
    }
    if (status.ok()) status = WriteManifest();
    if (status.ok()) {
      fs::rename(folder_, target, error);
      if (error) status = Error{ErrorCode::kIo, "cannot move the graphs to '" + out_dir + "': " + error.message()};
    }
    if (!status.ok()) {
      fs::remove_all(folder_, error);
      return status.error();
    }
    report_.path = out_dir;
    return std::move(report_);
  }

 private:
  Status WritePart(const GraphPart& part) {
    const auto on_bytes = [this](uint64_t bytes) {
      done_ += bytes;
      if (options_.on_progress) options_.on_progress(done_, std::max(done_, total_));
    };
    PITH_ASSIGN(const PartWeights weights,
                WritePartWeights(checkpoint_, folded_, part, options_.adapter, options_.switcher, options_.verifier,
                                 folder_.string(), on_bytes));
    OnnxPartReport& report = report_.parts.emplace_back();
    report.part = part;
    report.base_bytes = weights.base_bytes;
    report.adapter_bytes = weights.adapter_bytes;
    DecoderGraphOptions graph;
    graph.context = options_.context;
    graph.convolutions = options_.qnn;
    graph.per_head = options_.qnn;
    graph.opset = options_.qdq ? kQdqOpset : kFloatOpset;
    graph.lora_inputs = options_.lora_inputs;
    graph.switcher = options_.switcher;
    graph.verifier = options_.verifier;
    if (options_.adapter != nullptr) {
      for (const LoraModule& module : options_.adapter->modules) {
        graph.lora_ranks[LinearName(module.layer, module.kind)] = module.rank;
      }
    }
    for (const int64_t tokens : options_.tokens) {
      graph.tokens = tokens;
      const std::string file = GraphName(part, tokens, options_.context) + ".onnx";
      report.built.push_back(BuildDecoderGraph(config_, part, graph, weights.places));
      PITH_ASSIGN(const uint64_t bytes, WriteOnnx(report.built.back(), (folder_ / file).string()));
      report.graphs.push_back(file);
      report.graph_bytes += bytes;
    }
    for (const auto& [name, place] : weights.places) {
      if (place.file == AdapterFileName(part)) updatable_.push_back(name);
    }
    return {};
  }

  OrderedJson ModelJson() const {
    const RopeFrequencies rope = ComputeRopeFrequencies(config_);
    return {{"architecture", ArchitectureName(config_.arch)},
            {"fingerprint", checkpoint_.fingerprint()},
            {"layers", config_.layers},
            {"hidden_size", config_.hidden},
            {"heads", config_.heads},
            {"kv_heads", config_.kv_heads},
            {"head_dim", config_.head_dim},
            {"vocab_size", config_.vocab},
            {"rope_inv_freq", rope.inv_freq},
            {"rope_factor", rope.attention_factor},
            {"eos_ids", config_.eos_ids}};
  }

  Status WriteManifest() const {
    OrderedJson parts = OrderedJson::array();
    for (const OnnxPartReport& report : report_.parts) {
      OrderedJson graphs = OrderedJson::object();
      for (size_t i = 0; i < report.graphs.size(); ++i) {
        graphs[std::to_string(options_.tokens[i])] = report.graphs[i];
      }
      OrderedJson part = {{"layers", {report.part.begin, report.part.end}},
                          {"embedding", report.part.embedding},
                          {"head", report.part.head},
                          {"graphs", graphs},
                          {"weights", WeightFileName(report.part)},
                          {"weight_bytes", report.base_bytes}};
      if (report.adapter_bytes > 0) {
        part["adapter"] = AdapterFileName(report.part);
        part["adapter_bytes"] = report.adapter_bytes;
      }
      parts.push_back(part);
    }
    OrderedJson json = {{"pith_export", kExportVersion},
                        {"kind", "onnx"},
                        {"scheme", "float32"},
                        {"opset", options_.qdq ? kQdqOpset : kFloatOpset},
                        {"target", options_.qnn ? "qnn" : "generic"},
                        {"context", options_.context},
                        {"tokens", options_.tokens},
                        {"mask_floor", kMaskFloor},
                        {"kv_bits", 32},
                        {"keys_scaled", true},
                        {"keys_equalized", true},
                        {"model", ModelJson()},
                        {"parts", parts}};
    if (options_.adapter != nullptr) {
      json["lora"] = {{"fingerprint", options_.adapter->fingerprint},
                      {"alpha", "lora_alpha"},
                      {"max_rank", options_.adapter->max_rank},
                      {"inputs", options_.lora_inputs},
                      {"invocation_tokens", options_.adapter->invocation},
                      {"updatable", updatable_}};
    }
    if (options_.verifier != nullptr) {
      json["verifier"] = {{"prompt", options_.verifier->prompt}, {"adapter", options_.verifier->adapter}};
    }
    if (options_.switcher != nullptr) {
      json["switcher"] = {{"chunk", options_.switcher->pooling.chunk},
                          {"alpha", options_.switcher->pooling.alpha},
                          {"threshold", options_.switcher->threshold}};
    }
    std::ofstream file(folder_ / kExportManifest, std::ios::binary);
    file << json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
    file.close();
    if (!file) return Error{ErrorCode::kIo, "cannot write '" + (folder_ / kExportManifest).string() + "'"};
    return {};
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const OnnxExportOptions& options_;
  fs::path folder_;
  FoldedKeys folded_;
  OnnxExportReport report_;
  std::vector<std::string> updatable_;  // constants of the adapter
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

uint64_t OnnxExportReport::total_bytes() const {
  uint64_t bytes = 0;
  for (const OnnxPartReport& part : parts) bytes += part.base_bytes + part.adapter_bytes + part.graph_bytes;
  return bytes;
}

Result<std::vector<GraphPart>> PlanParts(const ModelConfig& config, int64_t parts) {
  if (parts == 1) return std::vector<GraphPart>{{1, 1, 0, config.layers, true, true}};
  if (parts < 1 || parts - 1 > config.layers) {
    return Invalid(std::to_string(parts) + " parts: 1, or 2 to " + std::to_string(config.layers + 1) +
                   " for this model (the embedding and runs of layers)");
  }
  std::vector<GraphPart> plan = {{1, parts, 0, 0, true, false}};
  const int64_t runs = parts - 1;
  for (int64_t i = 0; i < runs; ++i) {
    plan.push_back({i + 2, parts, i * config.layers / runs, (i + 1) * config.layers / runs, false, i + 1 == runs});
  }
  return plan;
}

Result<OnnxExportReport> ExportOnnx(const Checkpoint& checkpoint, const std::string& out_dir,
                                    const OnnxExportOptions& options) {
  return Exporter(checkpoint, options).Run(out_dir);
}

}  // namespace pith
