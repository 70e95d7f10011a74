#include "deploy/onnx_graph.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace pith {

namespace {

// Shape of an elementwise operator by numpy's rules.
std::vector<int64_t> Broadcast(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> shape(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    shape[shape.size() - 1 - i] = x == 1 ? y : x;
  }
  return shape;
}

template <class T>
std::string BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

uint64_t OnnxBytes(OnnxType type, int64_t elements) {
  const auto n = static_cast<uint64_t>(elements);
  switch (type) {
    case OnnxType::kFloat:
    case OnnxType::kInt32: return n * 4;
    case OnnxType::kInt64: return n * 8;
    case OnnxType::kInt16:
    case OnnxType::kUInt16: return n * 2;
    case OnnxType::kInt8: return n;
    case OnnxType::kInt4: return (n + 1) / 2;
  }
  return 0;
}

int64_t OnnxValue::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

void GraphBuilder::Record(const std::string& name, OnnxType type, std::vector<int64_t> shape) {
  graph_.values[name] = {name, type, std::move(shape)};
}

std::string GraphBuilder::Input(const std::string& name, OnnxType type, std::vector<int64_t> shape) {
  graph_.inputs.push_back({name, type, shape});
  Record(name, type, std::move(shape));
  return name;
}

void GraphBuilder::Output(const std::string& name) { graph_.outputs.push_back(At(name)); }

std::string GraphBuilder::External(const std::string& name, OnnxType type, std::vector<int64_t> shape,
                                   const std::string& file, uint64_t offset) {
  if (Has(name)) return name;
  graph_.constants.push_back({{name, type, shape}, file, offset, {}});
  Record(name, type, std::move(shape));
  return name;
}

std::string GraphBuilder::Inline(const std::string& name, OnnxType type, std::vector<int64_t> shape,
                                 std::string bytes) {
  if (Has(name)) return name;
  graph_.constants.push_back({{name, type, shape}, "", 0, std::move(bytes)});
  Record(name, type, std::move(shape));
  return name;
}

std::string GraphBuilder::Scalar(float value) {
  char text[32];
  std::snprintf(text, sizeof(text), "const.%.9g", static_cast<double>(value));
  return Inline(text, OnnxType::kFloat, {}, BytesOf(std::vector<float>{value}));
}

std::string GraphBuilder::Ints(const std::vector<int64_t>& values) {
  std::string name = "ints";
  for (const int64_t value : values) name += "." + std::to_string(value);
  return Inline(name, OnnxType::kInt64, {static_cast<int64_t>(values.size())}, BytesOf(values));
}

std::string GraphBuilder::Node(const std::string& op, const std::string& name, std::vector<std::string> inputs,
                               std::vector<int64_t> shape, std::map<std::string, OnnxAttribute> attributes,
                               OnnxType type) {
  graph_.nodes.push_back({op, name, std::move(inputs), {name}, std::move(attributes)});
  Record(name, type, std::move(shape));
  return name;
}

std::string GraphBuilder::Binary(const std::string& op, const std::string& name, const std::string& a,
                                 const std::string& b) {
  return Node(op, name, {a, b}, Broadcast(Shape(a), Shape(b)));
}

std::string GraphBuilder::Unary(const std::string& op, const std::string& name, const std::string& x) {
  return Node(op, name, {x}, Shape(x));
}

std::string GraphBuilder::Reshape(const std::string& name, const std::string& x, std::vector<int64_t> shape) {
  return Node("Reshape", name, {x, Ints(shape)}, shape, {}, At(x).type);
}

std::string GraphBuilder::Transpose(const std::string& name, const std::string& x, const std::vector<int64_t>& order) {
  std::vector<int64_t> shape;
  for (const int64_t axis : order) shape.push_back(Shape(x)[static_cast<size_t>(axis)]);
  return Node("Transpose", name, {x}, shape, {{"perm", order}}, At(x).type);
}

std::string GraphBuilder::Concat(const std::string& name, const std::vector<std::string>& parts, int64_t axis) {
  std::vector<int64_t> shape = Shape(parts.front());
  shape[static_cast<size_t>(axis)] = 0;
  for (const std::string& part : parts) shape[static_cast<size_t>(axis)] += Shape(part)[static_cast<size_t>(axis)];
  return Node("Concat", name, parts, shape, {{"axis", axis}}, At(parts.front()).type);
}

std::string GraphBuilder::Slice(const std::string& name, const std::string& x, int64_t axis, int64_t begin,
                                int64_t end) {
  std::vector<int64_t> shape = Shape(x);
  shape[static_cast<size_t>(axis)] = end - begin;
  return Node("Slice", name, {x, Ints({begin}), Ints({end}), Ints({axis})}, shape, {}, At(x).type);
}

std::string GraphBuilder::MatMul(const std::string& name, const std::string& a, const std::string& b) {
  const std::vector<int64_t>&x = Shape(a), &y = Shape(b);
  std::vector<int64_t> shape = Broadcast({x.begin(), x.end() - 2}, {y.begin(), y.end() - 2});
  shape.push_back(x[x.size() - 2]);
  shape.push_back(y.back());
  return Node("MatMul", name, {a, b}, shape);
}

std::string GraphBuilder::Softmax(const std::string& name, const std::string& x) {
  return Node("Softmax", name, {x}, Shape(x), {{"axis", int64_t{-1}}});
}

std::string GraphBuilder::MeanOfSquares(const std::string& name, const std::string& x) {
  const std::string squares = Binary("Mul", name + ".squares", x, x);
  std::vector<int64_t> shape = Shape(x);
  shape.back() = 1;
  if (graph_.opset < 18) {
    return Node("ReduceMean", name, {squares}, shape, {{"axes", std::vector<int64_t>{-1}}, {"keepdims", int64_t{1}}});
  }
  return Node("ReduceMean", name, {squares, Ints({-1})}, shape, {{"keepdims", int64_t{1}}});
}

}  // namespace pith
