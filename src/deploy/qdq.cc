#include "deploy/qdq.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>

#include "base/mapped_file.h"

namespace pith {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kAlignment = 64;

std::string BytesOf(const void* data, size_t size) { return {static_cast<const char*>(data), size}; }

OnnxType IntegerType(const TensorEncoding& encoding) {
  if (encoding.bits == 4) return OnnxType::kInt4;
  if (encoding.bits == 8) return OnnxType::kInt8;
  return encoding.symmetric ? OnnxType::kInt16 : OnnxType::kUInt16;
}

class Quantizer {
 public:
  Quantizer(const OnnxGraph& graph, const Encodings& encodings, std::string folder, std::string file,
            std::map<std::string, uint64_t>* places)
      : source_(graph), encodings_(encodings), folder_(std::move(folder)), file_(std::move(file)), places_(*places) {}

  Result<OnnxGraph> Run() {
    GraphBuilder build(&graph_);
    graph_.name = source_.name;
    graph_.opset = source_.opset;
    graph_.inputs = source_.inputs;
    graph_.outputs = source_.outputs;
    graph_.values = source_.values;
    for (const OnnxConstant& constant : source_.constants) PITH_RETURN_IF_ERROR(AddConstant(constant, &build));
    std::map<std::string, std::string> renamed;  // inputs, for whoever reads them
    for (const OnnxValue& input : source_.inputs) {
      const auto found = encodings_.find(input.name);
      if (input.type != OnnxType::kFloat || found == encodings_.end() || found->second.parameter) continue;
      renamed[input.name] = AddPair(input.name, input.name + ".dq", found->second, &build);
    }
    static const std::set<std::string> kMoves = {"Reshape", "Transpose", "Slice", "Identity", "Concat"};
    for (OnnxNode node : source_.nodes) {
      for (std::string& input : node.inputs) {
        if (const auto found = renamed.find(input); found != renamed.end()) input = found->second;
      }
      const std::string name = node.outputs.front();
      const auto found = encodings_.find(name);
      if (kMoves.contains(node.op) || found == encodings_.end()) {
        graph_.nodes.push_back(std::move(node));
        continue;
      }
      const std::string raw = name + ".float";
      node.outputs = {raw};
      node.name = raw;
      graph_.values[raw] = {raw, OnnxType::kFloat, graph_.values.at(name).shape};
      graph_.nodes.push_back(std::move(node));
      AddPair(raw, name, found->second, &build);
    }
    return std::move(graph_);
  }

 private:
  // raw -> integers -> `name`.
  std::string AddPair(const std::string& raw, const std::string& name, const TensorEncoding& encoding,
                      GraphBuilder* build) {
    const float scale = encoding.scales.front();
    const std::string scale_name = build->Inline(name + ".scale", OnnxType::kFloat, {}, BytesOf(&scale, sizeof(scale)));
    const OnnxType type = IntegerType(encoding);
    // Signed integers have their zero at 0, unsigned ones at -offset.
    const auto zero = static_cast<uint16_t>(type == OnnxType::kUInt16 ? -encoding.offset : 0);
    const std::string zero_name =
        build->Inline(name + ".zero", type, {}, BytesOf(&zero, static_cast<size_t>(OnnxBytes(type, 1))));
    const std::vector<int64_t> shape = graph_.values.at(raw).shape;
    const std::string integers =
        build->Node("QuantizeLinear", name + ".q", {raw, scale_name, zero_name}, shape, {}, type);
    return build->Node("DequantizeLinear", name, {integers, scale_name, zero_name}, shape);
  }

  Status AddConstant(const OnnxConstant& constant, GraphBuilder* build) {
    const std::string& name = constant.value.name;
    const auto found = encodings_.find(name);
    const bool matrix = constant.value.shape.size() == 2 && !constant.file.empty() && found != encodings_.end() &&
                        (found->second.scales.size() > 1 || found->second.bits <= 8);
    if (!matrix) {
      graph_.constants.push_back(constant);
      return {};
    }
    if (name.find(".rows") != std::string::npos) {
      return Error{ErrorCode::kUnsupported, "'" + name + "' is a part of a matrix; QDQ goes with the generic target"};
    }
    const TensorEncoding& encoding = found->second;
    const OnnxType type = IntegerType(encoding);
    const int64_t rows = constant.value.shape[0], cols = constant.value.shape[1];
    const std::string integers = name + ".integers", scales = name + ".scales";
    if (!places_.contains(integers)) PITH_RETURN_IF_ERROR(WriteIntegers(constant, encoding));
    build->External(integers, type, {rows, cols}, file_, places_.at(integers));
    std::map<std::string, OnnxAttribute> attributes = {{"axis", int64_t{encoding.block > 0 ? 1 : 0}}};
    std::vector<int64_t> shape = {rows};
    if (encoding.block > 0) {
      attributes["block_size"] = encoding.block;
      shape = {rows, cols / encoding.block};
    }
    if (encoding.scales.size() == 1) shape = {1};
    build->External(scales, OnnxType::kFloat, shape, file_, places_.at(scales));
    graph_.values.erase(name);
    build->Node("DequantizeLinear", name, {integers, scales}, {rows, cols}, attributes);
    return {};
  }

  // The integers of a matrix, from its floats; those of packed matrices lie on the grid.
  Status WriteIntegers(const OnnxConstant& constant, const TensorEncoding& encoding) {
    PITH_ASSIGN(const auto source, MappedFile::Open((fs::path(folder_) / constant.file).string()));
    const auto* values = reinterpret_cast<const float*>(source->bytes().data() + constant.offset);
    const int64_t rows = constant.value.shape[0], cols = constant.value.shape[1];
    const int64_t groups = encoding.block > 0 ? cols / encoding.block : 1;
    const auto half = static_cast<float>(1 << (encoding.bits - 1));
    std::ofstream out(fs::path(folder_) / file_, std::ios::binary | std::ios::app);
    const auto begin = [&](const std::string& name) {
      uint64_t at = static_cast<uint64_t>(out.tellp());
      const std::string zeros((kAlignment - at % kAlignment) % kAlignment, '\0');
      out.write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
      places_[name] = at + zeros.size();
    };
    out.seekp(0, std::ios::end);
    begin(constant.value.name + ".integers");
    std::string row(static_cast<size_t>(OnnxBytes(IntegerType(encoding), cols)), '\0');
    for (int64_t r = 0; r < rows; ++r) {
      std::fill(row.begin(), row.end(), '\0');
      for (int64_t c = 0; c < cols; ++c) {
        const size_t group = static_cast<size_t>(encoding.scales.size() == 1 ? 0 : r * groups + c * groups / cols);
        const float q = std::clamp(std::nearbyint(values[r * cols + c] / encoding.scales[group]), -half, half - 1);
        const auto integer = static_cast<int>(q);
        char& byte = row[static_cast<size_t>(encoding.bits == 4 ? c / 2 : c)];
        byte =
            encoding.bits == 4 ? static_cast<char>(byte | ((integer & 15) << (c % 2 * 4))) : static_cast<char>(integer);
      }
      out.write(row.data(), static_cast<std::streamsize>(row.size()));
    }
    begin(constant.value.name + ".scales");
    out.write(reinterpret_cast<const char*>(encoding.scales.data()),
              static_cast<std::streamsize>(encoding.scales.size() * sizeof(float)));
    out.close();
    return out ? Status()
               : Status(Error{ErrorCode::kIo, "cannot write '" + (fs::path(folder_) / file_).string() + "'"});
  }

  const OnnxGraph& source_;
  const Encodings& encodings_;
  std::string folder_, file_;
  std::map<std::string, uint64_t>& places_;
  OnnxGraph graph_;
};

}  // namespace

Result<OnnxGraph> QuantizeGraph(const OnnxGraph& graph, const Encodings& encodings, const std::string& folder,
                                const std::string& file, std::map<std::string, uint64_t>* places) {
  return Quantizer(graph, encodings, folder, file, places).Run();
}

}  // namespace pith
