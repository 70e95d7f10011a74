#include "deploy/onnx_encodings.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "base/json.h"
#include "deploy/folded_keys.h"
#include "deploy/graph_evaluator.h"
#include "deploy/graph_host.h"
#include "deploy/matrix_reader.h"
#include "deploy/onnx_file.h"
#include "deploy/qdq.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr int kActivationBits = kStaticActivationBits;
constexpr int kCacheBits = kStaticCacheBits;
constexpr float kMaskFloor = kStaticMaskFloor;

bool IsCache(const std::string& name) { return name.starts_with("past_key_") || name.starts_with("past_value_"); }

// "layer0.k.rope.3.low" of head 3 as "layer0.k.rope.low".
std::string WithoutHead(const std::string& name) {
  std::string result;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (part.empty() || part.find_first_not_of("0123456789") != std::string::npos) {
      result += (begin == 0 ? "" : ".") + part;
    }
    begin = end + 1;
  }
  return result;
}

// What is inside of an RMSNorm. The converter makes one operator of it, whose inner numbers are no integers; in 16 bits
// the squares of one large token would leave nothing of the others.
bool IsInsideNorm(const std::string& name) {
  if (name.find("norm") == std::string::npos) return false;
  for (const char* end : {".mean", ".squares", ".sum", ".root", ".normed"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

// Values that must have one encoding: what only moves numbers, what is joined, and the two ends of the cache.
class Ties {
 public:
  explicit Ties(const OnnxGraph& graph) {
    std::set<std::string> constants;
    for (const OnnxConstant& constant : graph.constants) constants.insert(constant.value.name);
    static const std::set<std::string> kMoves = {"Reshape", "Transpose", "Slice", "Identity", "Concat"};
    for (const OnnxNode& node : graph.nodes) {
      if (!kMoves.contains(node.op)) continue;
      for (const std::string& input : node.inputs) {
        if (!constants.contains(input)) Join(input, node.outputs.front());
      }
    }
    for (const OnnxValue& input : graph.inputs) {
      if (IsCache(input.name)) Join(input.name, input.name.substr(0, input.name.size() - 2) + "out");
    }
    if (graph.values.contains("switcher_state_in")) Join("switcher_state_in", "switcher_state_out");
  }

  std::string Root(const std::string& name) {
    std::string root = name;
    while (parent_.contains(root) && parent_[root] != root) root = parent_[root];
    return parent_[name] = root;
  }

 private:
  void Join(const std::string& a, const std::string& b) {
    const std::string x = Root(a), y = Root(b);
    parent_[x] = y;
  }
  std::map<std::string, std::string> parent_;
};

// Ranges of inputs that no node computes.
void AddInputRanges(const OnnxGraph& graph, const ModelConfig& config, ValueRanges* ranges) {
  for (const OnnxValue& input : graph.inputs) {
    if (input.name == "attention_mask") (*ranges)[input.name] = {kMaskFloor, 0};
    if (input.name == "position_ids_cos" || input.name == "position_ids_sin") {
      (*ranges)[input.name] = RopeRange(config);
    }
    if (input.name == "lora_alpha" || input.name == "switcher_weights" || input.name == "switcher_blend") {
      (*ranges)[input.name] = {0, 1};
    }
  }
}

TensorEncoding OneScale(std::span<const float> values, int bits) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  TensorEncoding encoding = EncodeRange(*low, *high, bits, true);
  encoding.parameter = true;
  return encoding;
}

class Encoder {
 public:
  Encoder(const Checkpoint& checkpoint, const OnnxExportReport& exported, const OnnxExportOptions& export_options,
          const EncodingOptions& options)
      : checkpoint_(checkpoint), exported_(exported), export_options_(export_options), options_(options) {}

  Result<EncodingReport> Run() {
    PITH_ASSIGN(folded_, FoldedKeys::Of(checkpoint_));
    if (options_.ranges != nullptr) {
      PITH_RETURN_IF_ERROR(TakeRanges());
    } else {
      PITH_RETURN_IF_ERROR(Measure());
    }
    for (const OnnxPartReport& part : exported_.parts) {
      places_.clear();
      for (size_t i = 0; i < part.built.size(); ++i) PITH_RETURN_IF_ERROR(WriteGraph(part, i));
    }
    PITH_RETURN_IF_ERROR(UpdateManifest());
    report_.parameters = static_cast<int64_t>(parameters_.size());
    report_.activations = static_cast<int64_t>(activation_names_.size());
    return std::move(report_);
  }

 private:
  // The stored ranges; what goes from part to part has that of the value that is handed on.
  Status TakeRanges() {
    if (export_options_.adapter != nullptr) {
      return Error{ErrorCode::kInvalidArgument, "the stored activation ranges do not know the adapter"};
    }
    ranges_ = options_.ranges->values;
    for (const OnnxPartReport& part : exported_.parts) {
      const std::string last =
          part.part.end > 0 ? ActivationName(ActivationSite::kSum, part.part.end - 1) : std::string("embedding");
      ranges_["hidden_" + std::to_string(part.part.index)] = ranges_.at(last);
    }
    return {};
  }

  // Runs the graphs for the most new tokens over the calibration text.
  Status Measure() {
    const auto most = std::max_element(export_options_.tokens.begin(), export_options_.tokens.end());
    const auto index = static_cast<size_t>(most - export_options_.tokens.begin());
    std::vector<std::unique_ptr<GraphEvaluator>> evaluators;
    std::vector<const GraphEvaluator*> parts;
    bool switcher = false;
    for (const OnnxPartReport& part : exported_.parts) {
      PITH_ASSIGN(auto evaluator, GraphEvaluator::Create(part.built[index], exported_.path));
      switcher = switcher || part.built[index].values.contains("switcher_weights");
      parts.push_back(evaluator.get());
      evaluators.push_back(std::move(evaluator));
    }
    const ModelConfig& config = checkpoint_.config();
    GraphHost host(config, parts, *most, export_options_.context, kMaskFloor);
    const int64_t room = export_options_.context - *most;
    const auto total = std::min(static_cast<int64_t>(options_.tokens.size()), room);
    if (total < 1) return Error{ErrorCode::kInvalidArgument, "the calibration text has no tokens"};
    const auto see = [this](const std::string& name, std::span<const float> values) {
      const auto [low, high] = std::minmax_element(values.begin(), values.end());
      const auto [range, added] = ranges_.try_emplace(name, ValueRange{*low, *high});
      range->second = {std::min(range->second.lowest, *low), std::max(range->second.highest, *high)};
    };
    const bool adapter = export_options_.adapter != nullptr;
    const int64_t half = adapter ? total / 2 : total;
    for (int64_t begin = 0; begin < total;) {
      const int64_t limit = begin < half ? half : total;
      const int64_t end = std::min(begin + *most, limit);
      const auto ids = std::span(options_.tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      std::map<std::string, GraphArray> extra;
      if (switcher) {
        std::vector<float> weights(static_cast<size_t>(*most), 1.0F / static_cast<float>(*most));
        extra["switcher_weights"] = GraphArray::Of({1, *most}, std::move(weights));
        extra["switcher_blend"] = GraphArray::Of({1}, {1.0F});
        extra["switcher_state_in"] =
            GraphArray::Of({1, config.hidden}, std::vector<float>(static_cast<size_t>(config.hidden)));
      }
      PITH_RETURN_IF_ERROR(host.Feed(ids, begin < half ? 0.0F : 1.0F, extra, see));
      begin = end;
      if (options_.on_tokens) options_.on_tokens(begin, total);
    }
    return {};
  }

  // Integers of a linear or of the embedding as they are packed, or quantized here.
  Result<TensorEncoding> MatrixEncoding(const std::string& module, int64_t rows, int64_t cols, int64_t begin,
                                        int64_t count) {
    PITH_ASSIGN(const MatrixReader reader, MatrixReader::Open(checkpoint_, module, rows, cols));
    TensorEncoding encoding;
    encoding.parameter = true;
    encoding.symmetric = true;
    const bool packed = reader.format() && reader.format()->zero == ZeroForm::kSymmetric;
    const bool wide = module == "lm_head" || module == "model.embed_tokens";
    encoding.bits = packed ? reader.format()->bits : wide ? options_.head_bits : options_.linear_bits;
    encoding.offset = -(1 << (encoding.bits - 1));
    if (packed) encoding.block = reader.format()->group;
    bool again = reader.format().has_value() && !packed;
    if (!reader.format()) ++report_.quantized;
    CodeRow row;
    std::vector<float> values(static_cast<size_t>(cols));
    const std::span<const float> factors = folded_.Of(module);
    const auto group = static_cast<size_t>(encoding.block == 0 ? cols : encoding.block);
    // The scale of `group` values of the row, chosen anew.
    std::vector<uint8_t> codes(group);
    const auto new_scale = [&](size_t g) {
      const QuantFormat format{encoding.bits, 0, ZeroForm::kSymmetric, DType::kF32};
      float scale = 0;
      QuantizeRow({format, QuantMethod::kLp, 2.0}, values.data() + g * group, static_cast<int64_t>(group), nullptr,
                  {codes.data(), &scale, nullptr, nullptr});
      return scale;
    };
    for (int64_t r = begin; r < begin + count; ++r) {
      if (packed) {
        reader.ReadCodes(r, &row);
        bool read = false;
        for (size_t g = 0; g < row.scales.size(); ++g) {
          // A negative scale reads as a positive one with the integers turned around, unless one is the lowest: then
          // this group, and no other, is quantized again.
          const auto own = std::span(row.codes).subspan(g * group, group);
          if (row.scales[g] < 0 && std::find(own.begin(), own.end(), 0) != own.end()) {
            if (!read) reader.ReadRow(r, values.data());
            read = again = true;
            row.scales[g] = new_scale(g);
          }
        }
      } else {
        reader.ReadRow(r, values.data());
        row.scales.assign(1, new_scale(0));
      }
      for (float& scale : row.scales) scale = std::max(std::fabs(scale), std::numeric_limits<float>::min());
      for (const float scale : row.scales) {
        encoding.scales.push_back(factors.empty() ? scale : scale * factors[static_cast<size_t>(r)]);
      }
    }
    report_.requantized += again ? 1 : 0;
    return encoding;
  }

  // A constant of a graph; nothing for those that stay as they are (biases, shapes, scalars).
  Status AddParameter(const OnnxConstant& constant, Encodings* encodings) {
    const std::string& name = constant.value.name;
    if (constant.file.empty() || name.ends_with(".bias")) return {};
    if (const auto known = parameters_.find(name); known != parameters_.end()) {
      (*encodings)[name] = known->second;
      return {};
    }
    std::string stored = name;
    int64_t begin = 0;
    if (const size_t at = name.rfind(".rows"); at != std::string::npos) {
      begin = std::stoll(name.substr(at + 5));
      stored = name.substr(0, at);
    }
    if (stored.ends_with(".bias")) return {};
    const std::vector<int64_t>& shape = constant.value.shape;
    const bool matrix = shape.size() >= 2 && stored.ends_with(".weight") && !stored.starts_with("switcher.") &&
                        !stored.starts_with("verifier.");
    TensorEncoding encoding;
    if (matrix) {
      const std::string module = stored.substr(0, stored.size() - 7);
      PITH_ASSIGN(const int64_t rows, RowsOf(module));
      PITH_ASSIGN(encoding, MatrixEncoding(module, rows, shape[1], begin, shape[0]));
    } else {
      // Norms and heads: 16 bits. Factors of the adapter: 8 bits per row.
      PITH_ASSIGN(const auto file, MappedFile::Open((fs::path(exported_.path) / constant.file).string()));
      const std::span values(reinterpret_cast<const float*>(file->bytes().data() + constant.offset),
                             static_cast<size_t>(constant.value.elements()));
      if (stored.ends_with(".lora_A") || stored.ends_with(".lora_B")) {
        const auto cols = static_cast<size_t>(shape[1]);
        for (size_t r = 0; r < static_cast<size_t>(shape[0]); ++r) {
          const TensorEncoding row = OneScale(values.subspan(r * cols, cols), 8);
          encoding.scales.push_back(row.scales[0]);
          encoding.offset = row.offset;
        }
        encoding.parameter = encoding.symmetric = true;
        encoding.bits = 8;
      } else {
        encoding = OneScale(values, kActivationBits);
      }
    }
    parameters_[name] = encoding;
    (*encodings)[name] = encoding;
    return {};
  }

  Result<int64_t> RowsOf(const std::string& module) const {
    const ModelConfig& config = checkpoint_.config();
    if (module == "lm_head" || module == "model.embed_tokens") return config.vocab;
    for (const LinearKind kind : {LinearKind::kQ, LinearKind::kK, LinearKind::kV, LinearKind::kO, LinearKind::kGate,
                                  LinearKind::kUp, LinearKind::kDown}) {
      if (module.ends_with(std::string(".") + LinearKindName(kind))) return ShapeOf(config, kind).out;
    }
    return Error{ErrorCode::kInternal, "'" + module + "' is no matrix of the model"};
  }

  Status WriteGraph(const OnnxPartReport& part, size_t index) {
    const OnnxGraph& graph = part.built[index];
    const std::string& file = part.graphs[index];
    ValueRanges ranges = ranges_;
    AddInputRanges(graph, checkpoint_.config(), &ranges);
    PITH_ASSIGN(Encodings encodings, ActivationEncodings(graph, ranges));
    for (const auto& [name, encoding] : encodings) activation_names_.insert(name);
    for (const OnnxConstant& constant : graph.constants) PITH_RETURN_IF_ERROR(AddParameter(constant, &encodings));
    PITH_ASSIGN(const std::string text, WriteEncodings(encodings, options_.version));
    std::map<std::string, GraphTensor> tensors;
    for (const auto& [name, value] : graph.values) tensors[name] = {value.shape, false};
    for (const OnnxConstant& constant : graph.constants) tensors[constant.value.name].constant = true;
    const std::string name = fs::path(file).stem().string() + ".encodings";
    PITH_RETURN_IF_ERROR(ValidateEncodings(text, "'" + name + "'", &tensors));
    std::ofstream out(fs::path(exported_.path) / name, std::ios::binary);
    out << text;
    out.close();
    if (!out) return Error{ErrorCode::kIo, "cannot write '" + (fs::path(exported_.path) / name).string() + "'"};
    report_.files.push_back(name);
    if (!export_options_.qdq) return {};
    const std::string integers =
        "integers_" + std::to_string(part.part.index) + "_of_" + std::to_string(part.part.count) + ".bin";
    PITH_ASSIGN(const OnnxGraph quantized, QuantizeGraph(graph, encodings, exported_.path, integers, &places_));
    PITH_RETURN_IF_ERROR(WriteOnnx(quantized, (fs::path(exported_.path) / file).string()));
    return {};
  }

  Status UpdateManifest() const {
    const fs::path path = fs::path(exported_.path) / kExportManifest;
    PITH_ASSIGN(const Json read, ReadJsonFile(path.string()));
    OrderedJson json = read;
    json["encodings"] = {{"version", EncodingVersionName(options_.version)},
                         {"activation_bits", kActivationBits},
                         {"kv_bits", kCacheBits},
                         {"mask_floor", kMaskFloor},
                         {"ranges", options_.ranges != nullptr ? "stored" : "measured"},
                         {"ranges_digest", options_.ranges != nullptr ? DigestOf(*options_.ranges) : ""},
                         {"exact_weights", report_.requantized == 0 && report_.quantized == 0},
                         {"files", report_.files}};
    if (export_options_.qdq) {
      json["scheme"] = "qdq";
      json["mask_floor"] = kMaskFloor;
      json["kv_bits"] = kCacheBits;
    }
    std::ofstream file(path, std::ios::binary);
    file << json.dump(2) << "\n";
    file.close();
    return file ? Status() : Status(Error{ErrorCode::kIo, "cannot write '" + path.string() + "'"});
  }

  const Checkpoint& checkpoint_;
  const OnnxExportReport& exported_;
  const OnnxExportOptions& export_options_;
  const EncodingOptions& options_;
  FoldedKeys folded_;
  ValueRanges ranges_;
  Encodings parameters_;
  std::set<std::string> activation_names_;
  std::map<std::string, uint64_t> places_;  // of integers in the part's file
  EncodingReport report_;
};

}  // namespace

Result<Encodings> ActivationEncodings(const OnnxGraph& graph, const ValueRanges& ranges) {
  Ties ties(graph);
  std::set<std::string> constants, fixed;
  for (const OnnxConstant& constant : graph.constants) constants.insert(constant.value.name);
  // Values of constants alone are folded by the converter.
  for (const OnnxNode& node : graph.nodes) {
    const bool folds = std::all_of(node.inputs.begin(), node.inputs.end(), [&](const std::string& input) {
      return constants.contains(input) || fixed.contains(input);
    });
    if (folds) fixed.insert(node.outputs.front());
  }
  struct Group {
    ValueRange range;
    bool cache = false;
    bool seen = false;
  };
  std::map<std::string, Group> groups;
  std::set<std::string> softmax;
  for (const OnnxNode& node : graph.nodes) {
    if (node.op == "Softmax") softmax.insert(node.outputs.front());
  }
  std::vector<std::string> names;
  for (const auto& [name, value] : graph.values) {
    if (value.type != OnnxType::kFloat || constants.contains(name) || fixed.contains(name)) continue;
    if (IsInsideNorm(name)) continue;
    names.push_back(name);
    Group& group = groups[ties.Root(name)];
    group.cache = group.cache || IsCache(name);
    auto found = ranges.find(name);
    if (found == ranges.end()) found = ranges.find(WithoutHead(name));
    if (found == ranges.end() && !softmax.contains(name)) continue;
    const ValueRange range = softmax.contains(name) ? ValueRange{0, 1} : found->second;
    group.range.lowest = std::min(group.range.lowest, range.lowest);
    group.range.highest = std::max(group.range.highest, range.highest);
    group.seen = true;
  }
  Encodings encodings;
  for (const std::string& name : names) {
    const Group& group = groups[ties.Root(name)];
    if (!group.seen) return Error{ErrorCode::kInternal, "no range of '" + name + "' was measured"};
    encodings[name] =
        EncodeRange(group.range.lowest, group.range.highest, group.cache ? kCacheBits : kActivationBits, group.cache);
  }
  return encodings;
}

Result<EncodingReport> AddEncodings(const Checkpoint& checkpoint, const OnnxExportReport& exported,
                                    const OnnxExportOptions& export_options, const EncodingOptions& options) {
  return Encoder(checkpoint, exported, export_options, options).Run();
}

}  // namespace pith
