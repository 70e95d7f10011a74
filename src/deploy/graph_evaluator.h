// Computes a graph of the kinds that decoder_graph.h makes, operator by operator in float32: what the exporter measures
// the ranges of activations with, and what tests compare with golden logits where no ONNX runtime is at hand.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "deploy/onnx_graph.h"

namespace pith {

// Values of one tensor, all types as floats (token ids are exact). Copies share the data.
struct GraphArray {
  std::vector<int64_t> shape;
  std::span<const float> data;
  std::shared_ptr<const std::vector<float>> owner;  // null for mapped constants

  static GraphArray Of(std::vector<int64_t> shape, std::vector<float> values);
};

class GraphEvaluator {
 public:
  // `folder` holds the constants' files. kUnsupported names an operator or type that is not one of the exporter's;
  // kMalformed a constant outside its file.
  static Result<std::unique_ptr<GraphEvaluator>> Create(OnnxGraph graph, const std::string& folder);

  const OnnxGraph& graph() const { return graph_; }

  // Computes the outputs. Inputs that have a constant of the same name may be left out. `on_value` sees every computed
  // value, when set. kInvalidArgument names an input that is missing or has another shape.
  Result<std::map<std::string, GraphArray>> Run(
      const std::map<std::string, GraphArray>& inputs,
      const std::function<void(const std::string& name, std::span<const float> values)>& on_value = {}) const;

 private:
  GraphEvaluator() = default;
  OnnxGraph graph_;
  std::map<std::string, GraphArray> constants_;
  std::map<std::string, std::vector<int64_t>> integers_;  // int64 constants: shapes and axes
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
  std::map<std::string, size_t> last_use_;  // index of the node that needs a value last
};

}  // namespace pith
