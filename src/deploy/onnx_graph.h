// An ONNX graph as plain data, and a builder that keeps the shape of every value. How it becomes a file is in
// onnx_file.h; nothing here knows of protobuf.
// Operators: https://github.com/onnx/onnx/blob/main/docs/Operators.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace pith {

// Element types, numbered as in ONNX's TensorProto.
enum class OnnxType : int32_t {
  kFloat = 1,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kInt4 = 22,
};
// Bytes of `elements` elements.
uint64_t OnnxBytes(OnnxType type, int64_t elements);

struct OnnxValue {
  std::string name;
  OnnxType type = OnnxType::kFloat;
  std::vector<int64_t> shape;

  int64_t elements() const;
};

// Where the bytes of a constant lie: in a file beside the graph, or here.
struct OnnxConstant {
  OnnxValue value;
  std::string file;  // empty: `bytes`
  uint64_t offset = 0;
  std::string bytes;
};

using OnnxAttribute = std::variant<int64_t, float, std::vector<int64_t>>;

struct OnnxNode {
  std::string op;
  std::string name;
  std::vector<std::string> inputs;  // an empty name is an input that is left out
  std::vector<std::string> outputs;
  std::map<std::string, OnnxAttribute> attributes;
};

struct OnnxGraph {
  std::string name;
  int opset = 17;
  std::vector<OnnxValue> inputs;
  std::vector<OnnxValue> outputs;
  std::vector<OnnxConstant> constants;
  std::vector<OnnxNode> nodes;              // in an order in which they can run
  std::map<std::string, OnnxValue> values;  // every value that a node computes, and every input and constant
};

// Adds nodes to a graph. Every function returns the name of the value that it made, which is also the node's.
class GraphBuilder {
 public:
  explicit GraphBuilder(OnnxGraph* graph) : graph_(*graph) {}

  const OnnxValue& At(const std::string& name) const { return graph_.values.at(name); }
  const std::vector<int64_t>& Shape(const std::string& name) const { return At(name).shape; }
  bool Has(const std::string& name) const { return graph_.values.count(name) != 0; }

  std::string Input(const std::string& name, OnnxType type, std::vector<int64_t> shape);
  void Output(const std::string& name);
  // A constant in a file; the same name again is the same constant.
  std::string External(const std::string& name, OnnxType type, std::vector<int64_t> shape, const std::string& file,
                       uint64_t offset);
  std::string Scalar(float value);                       // [] float
  std::string Ints(const std::vector<int64_t>& values);  // [n] int64
  std::string Inline(const std::string& name, OnnxType type, std::vector<int64_t> shape, std::string bytes);

  std::string Node(const std::string& op, const std::string& name, std::vector<std::string> inputs,
                   std::vector<int64_t> shape, std::map<std::string, OnnxAttribute> attributes = {},
                   OnnxType type = OnnxType::kFloat);

  // Operators whose result shape follows from their inputs.
  std::string Binary(const std::string& op, const std::string& name, const std::string& a, const std::string& b);
  std::string Unary(const std::string& op, const std::string& name, const std::string& x);
  std::string Reshape(const std::string& name, const std::string& x, std::vector<int64_t> shape);
  std::string Transpose(const std::string& name, const std::string& x, const std::vector<int64_t>& order);
  std::string Concat(const std::string& name, const std::vector<std::string>& parts, int64_t axis);
  std::string Slice(const std::string& name, const std::string& x, int64_t axis, int64_t begin, int64_t end);
  std::string MatMul(const std::string& name, const std::string& a, const std::string& b);
  std::string Softmax(const std::string& name, const std::string& x);        // over the last axis
  std::string MeanOfSquares(const std::string& name, const std::string& x);  // over the last axis, kept

 private:
  void Record(const std::string& name, OnnxType type, std::vector<int64_t> shape);
  OnnxGraph& graph_;
};

}  // namespace pith
