#include "deploy/graph_evaluator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "kernels/float_matmul.h"

namespace pith {

namespace {

using Shape = std::vector<int64_t>;

int64_t Count(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

Shape Strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

// One node with its inputs at hand.
class NodeRunner {
 public:
  NodeRunner(const OnnxNode& node, const Shape& shape, std::vector<const GraphArray*> inputs,
             std::vector<const std::vector<int64_t>*> integers)
      : node_(node), shape_(shape), inputs_(std::move(inputs)), integers_(std::move(integers)) {}

  GraphArray Run() {
    const std::string& op = node_.op;
    if (op == "Reshape" || op == "Identity") {
      GraphArray same = In(0);
      same.shape = shape_;
      return same;
    }
    out_.resize(static_cast<size_t>(Count(shape_)));
    if (op == "Gather") {
      Gather();
    } else if (op == "Gemm") {
      Gemm();
    } else if (op == "Conv") {
      Conv();
    } else if (op == "MatMul") {
      MatMul();
    } else if (op == "Transpose") {
      Transpose();
    } else if (op == "Concat") {
      Concat();
    } else if (op == "Slice") {
      Slice();
    } else if (op == "Softmax") {
      Softmax();
    } else if (op == "ReduceMean") {
      Mean();
    } else if (In(0).data.size() == out_.size() && inputs_.size() == 1) {
      Unary();
    } else {
      Binary();
    }
    return GraphArray::Of(shape_, std::move(out_));
  }

  static bool Knows(const std::string& op) {
    static const std::set<std::string> kKnown = {"Add",      "Concat", "Conv",    "Div",        "Gather", "Gemm",
                                                 "Identity", "MatMul", "Mul",     "ReduceMean", "Relu",   "Reshape",
                                                 "Sigmoid",  "Slice",  "Softmax", "Sqrt",       "Sub",    "Transpose"};
    return kKnown.contains(op);
  }

 private:
  const GraphArray& In(size_t i) const { return *inputs_[i]; }
  int64_t Integer(size_t input) const { return integers_[input]->front(); }

  void Gather() {
    const int64_t width = In(0).shape[1];
    for (size_t i = 0; i < In(1).data.size(); ++i) {
      std::copy_n(In(0).data.data() + static_cast<int64_t>(In(1).data[i]) * width, width,
                  out_.data() + static_cast<int64_t>(i) * width);
    }
  }

  // x [rows, in] times W^T, W [out, in], plus a bias.
  static void Product(const float* x, int64_t rows, int64_t in, const float* weight, int64_t out, float* y) {
    const FloatMatrix matrix{FloatType::kF32, reinterpret_cast<const std::byte*>(weight), out, in};
    FloatMatmul(x, in, rows, matrix, 0, out, 1.0F, false, y, out);
  }

  void Gemm() {
    const int64_t rows = In(0).shape[0], in = In(0).shape[1], out = In(1).shape[0];
    Product(In(0).data.data(), rows, in, In(1).data.data(), out, out_.data());
    if (inputs_.size() < 3) return;
    for (size_t i = 0; i < out_.size(); ++i) out_[i] += In(2).data[i % static_cast<size_t>(out)];
  }

  // [1, in, 1, S] by [out, in, 1, 1].
  void Conv() {
    const int64_t in = In(0).shape[1], rows = In(0).shape[3], out = In(1).shape[0];
    std::vector<float> x(static_cast<size_t>(rows * in)), y(static_cast<size_t>(rows * out));
    for (int64_t c = 0; c < in; ++c) {
      for (int64_t r = 0; r < rows; ++r)
        x[static_cast<size_t>(r * in + c)] = In(0).data[static_cast<size_t>(c * rows + r)];
    }
    Product(x.data(), rows, in, In(1).data.data(), out, y.data());
    for (int64_t c = 0; c < out; ++c) {
      const float bias = inputs_.size() < 3 ? 0.0F : In(2).data[static_cast<size_t>(c)];
      for (int64_t r = 0; r < rows; ++r) {
        out_[static_cast<size_t>(c * rows + r)] = y[static_cast<size_t>(r * out + c)] + bias;
      }
    }
  }

  // Batched product, batch dimensions by numpy's rules; rank 2 or more.
  void MatMul() {
    const Shape &a = In(0).shape, &b = In(1).shape;
    const int64_t rows = a[a.size() - 2], inner = a.back(), cols = b.back();
    const int64_t batches = static_cast<int64_t>(out_.size()) / (rows * cols);
    std::vector<float> turned(static_cast<size_t>(inner * cols));
    for (int64_t batch = 0; batch < batches; ++batch) {
      const float* x = In(0).data.data() + BatchIndex(batch, a) * rows * inner;
      const float* y = In(1).data.data() + BatchIndex(batch, b) * inner * cols;
      for (int64_t i = 0; i < inner; ++i) {
        for (int64_t j = 0; j < cols; ++j) turned[static_cast<size_t>(j * inner + i)] = y[i * cols + j];
      }
      Product(x, rows, inner, turned.data(), cols, out_.data() + batch * rows * cols);
    }
  }

  // Which matrix of an operand goes with matrix `batch` of the result.
  int64_t BatchIndex(int64_t batch, const Shape& operand) const {
    int64_t index = 0, stride = 1;
    const size_t rank = shape_.size() - 2, own = operand.size() - 2;
    for (size_t i = 0; i < rank; ++i) {  // from the innermost batch dimension
      const int64_t size = shape_[rank - 1 - i];
      const int64_t at = batch % size;
      batch /= size;
      if (i >= own) continue;
      const int64_t own_size = operand[own - 1 - i];
      index += (own_size == 1 ? 0 : at) * stride;
      stride *= own_size;
    }
    return index;
  }

  void Transpose() {
    const auto& order = std::get<std::vector<int64_t>>(node_.attributes.at("perm"));
    const Shape from = Strides(In(0).shape);
    Shape at(shape_.size(), 0);
    for (float& value : out_) {
      int64_t index = 0;
      for (size_t i = 0; i < at.size(); ++i) index += at[i] * from[static_cast<size_t>(order[i])];
      value = In(0).data[static_cast<size_t>(index)];
      for (size_t i = at.size(); i-- > 0;) {
        if (++at[i] < shape_[i]) break;
        at[i] = 0;
      }
    }
  }

  void Concat() {
    const auto axis = static_cast<size_t>(std::get<int64_t>(node_.attributes.at("axis")));
    const int64_t outer = Count({shape_.begin(), shape_.begin() + static_cast<int64_t>(axis)});
    const int64_t total = static_cast<int64_t>(out_.size()) / outer;
    int64_t offset = 0;
    for (const GraphArray* part : inputs_) {
      const int64_t width = static_cast<int64_t>(part->data.size()) / outer;
      for (int64_t o = 0; o < outer; ++o) {
        std::copy_n(part->data.data() + o * width, width, out_.data() + o * total + offset);
      }
      offset += width;
    }
  }

  void Slice() {
    const auto axis = static_cast<size_t>(Integer(3));
    const Shape& from = In(0).shape;
    const int64_t outer = Count({from.begin(), from.begin() + static_cast<int64_t>(axis)});
    const int64_t inner = Count({from.begin() + static_cast<int64_t>(axis) + 1, from.end()});
    const int64_t length = shape_[axis] * inner;
    for (int64_t o = 0; o < outer; ++o) {
      std::copy_n(In(0).data.data() + (o * from[axis] + Integer(1)) * inner, length, out_.data() + o * length);
    }
  }

  void Softmax() {
    const auto width = static_cast<size_t>(shape_.back());
    for (size_t begin = 0; begin < out_.size(); begin += width) {
      const auto row = In(0).data.subspan(begin, width);
      const float largest = *std::max_element(row.begin(), row.end());
      float sum = 0;
      for (size_t i = 0; i < width; ++i) sum += out_[begin + i] = std::exp(row[i] - largest);
      for (size_t i = 0; i < width; ++i) out_[begin + i] /= sum;
    }
  }

  void Mean() {
    const auto width = static_cast<size_t>(In(0).shape.back());
    for (size_t row = 0; row < out_.size(); ++row) {
      double sum = 0;
      for (const float value : In(0).data.subspan(row * width, width)) sum += static_cast<double>(value);
      out_[row] = static_cast<float>(sum / static_cast<double>(width));
    }
  }

  void Unary() {
    for (size_t i = 0; i < out_.size(); ++i) {
      const float x = In(0).data[i];
      out_[i] = node_.op == "Sqrt"   ? std::sqrt(x)
                : node_.op == "Relu" ? std::max(x, 0.0F)
                                     : 1.0F / (1.0F + std::exp(-x));
    }
  }

  float Apply(float a, float b) const {
    switch (node_.op[0]) {
      case 'A': return a + b;
      case 'S': return a - b;
      case 'M': return a * b;
      default: return a / b;
    }
  }

  void Binary() {
    const GraphArray &a = In(0), &b = In(1);
    // Strides of the operands in the result's dimensions; 0 where one value serves all.
    const auto strides_of = [&](const Shape& shape) {
      const Shape own = Strides(shape);
      Shape strides(shape_.size(), 0);
      for (size_t i = 0; i < shape.size(); ++i) {
        const size_t at = shape_.size() - shape.size() + i;
        strides[at] = shape[i] == 1 ? 0 : own[i];
      }
      return strides;
    };
    const Shape x = strides_of(a.shape), y = strides_of(b.shape);
    Shape at(shape_.size(), 0);
    int64_t i = 0, j = 0;
    for (float& value : out_) {
      value = Apply(a.data[static_cast<size_t>(i)], b.data[static_cast<size_t>(j)]);
      for (size_t k = at.size(); k-- > 0;) {
        i += x[k];
        j += y[k];
        if (++at[k] < shape_[k]) break;
        i -= x[k] * shape_[k];
        j -= y[k] * shape_[k];
        at[k] = 0;
      }
    }
  }

  const OnnxNode& node_;
  const Shape& shape_;
  std::vector<const GraphArray*> inputs_;
  std::vector<const std::vector<int64_t>*> integers_;
  std::vector<float> out_;
};

}  // namespace

GraphArray GraphArray::Of(std::vector<int64_t> shape, std::vector<float> values) {
  GraphArray array;
  array.shape = std::move(shape);
  auto owner = std::make_shared<const std::vector<float>>(std::move(values));
  array.data = *owner;
  array.owner = std::move(owner);
  return array;
}

Result<std::unique_ptr<GraphEvaluator>> GraphEvaluator::Create(OnnxGraph graph, const std::string& folder) {
  std::unique_ptr<GraphEvaluator> evaluator(new GraphEvaluator());
  for (const OnnxNode& node : graph.nodes) {
    if (!NodeRunner::Knows(node.op)) {
      return Error{ErrorCode::kUnsupported,
                   "node '" + node.name + "' is a " + node.op + ", which is not computed here"};
    }
  }
  for (const OnnxConstant& constant : graph.constants) {
    const std::string& name = constant.value.name;
    const auto count = static_cast<size_t>(constant.value.elements());
    if (constant.value.type == OnnxType::kInt64 && constant.file.empty()) {
      std::vector<int64_t> values(count);
      std::memcpy(values.data(), constant.bytes.data(), constant.bytes.size());
      evaluator->integers_[name] = std::move(values);
      continue;
    }
    if (constant.value.type != OnnxType::kFloat) {
      return Error{ErrorCode::kUnsupported, "constant '" + name + "' is not float32"};
    }
    if (constant.file.empty()) {
      std::vector<float> values(count);
      std::memcpy(values.data(), constant.bytes.data(), constant.bytes.size());
      evaluator->constants_[name] = GraphArray::Of(constant.value.shape, std::move(values));
      continue;
    }
    auto& file = evaluator->files_[constant.file];
    if (file == nullptr) {
      PITH_ASSIGN(file, MappedFile::Open((std::filesystem::path(folder) / constant.file).string()));
    }
    const uint64_t bytes = OnnxBytes(OnnxType::kFloat, constant.value.elements());
    if (constant.offset > file->size() || bytes > file->size() - constant.offset ||
        constant.offset % sizeof(float) != 0) {
      return Error{ErrorCode::kMalformed, "constant '" + name + "' does not lie in '" + constant.file + "'"};
    }
    GraphArray array;
    array.shape = constant.value.shape;
    array.data = {reinterpret_cast<const float*>(file->bytes().data() + constant.offset), count};
    evaluator->constants_[name] = array;
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const std::string& input : graph.nodes[i].inputs) evaluator->last_use_[input] = i;
  }
  for (const OnnxValue& output : graph.outputs) evaluator->last_use_[output.name] = graph.nodes.size();
  evaluator->graph_ = std::move(graph);
  return evaluator;
}

Result<std::map<std::string, GraphArray>> GraphEvaluator::Run(
    const std::map<std::string, GraphArray>& inputs,
    const std::function<void(const std::string& name, std::span<const float> values)>& on_value) const {
  std::map<std::string, GraphArray> values;
  for (const OnnxValue& input : graph_.inputs) {
    const auto found = inputs.find(input.name);
    if (found == inputs.end()) {
      if (constants_.contains(input.name)) continue;
      return Error{ErrorCode::kInvalidArgument, "input '" + input.name + "' is missing"};
    }
    if (found->second.shape != input.shape) {
      return Error{ErrorCode::kInvalidArgument, "input '" + input.name + "' has another shape than the graph"};
    }
    values[input.name] = found->second;
  }
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    const OnnxNode& node = graph_.nodes[i];
    std::vector<const GraphArray*> arrays;
    std::vector<const std::vector<int64_t>*> integers;
    for (const std::string& input : node.inputs) {
      const auto integer = integers_.find(input);
      integers.push_back(integer == integers_.end() ? nullptr : &integer->second);
      if (integer != integers_.end()) continue;
      const auto value = values.find(input);
      arrays.push_back(value == values.end() ? &constants_.at(input) : &value->second);
    }
    const std::string& name = node.outputs.front();
    GraphArray result = NodeRunner(node, graph_.values.at(name).shape, arrays, integers).Run();
    if (on_value) on_value(name, result.data);
    values[name] = std::move(result);
    for (const std::string& input : node.inputs) {
      if (last_use_.at(input) == i) values.erase(input);
    }
  }
  std::map<std::string, GraphArray> outputs;
  for (const OnnxValue& output : graph_.outputs) outputs[output.name] = values.at(output.name);
  return outputs;
}

}  // namespace pith
