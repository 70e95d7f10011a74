#include "deploy/onnx_file.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <onnx/onnx_pb.h>
#pragma GCC diagnostic pop

namespace pith {

namespace {

// The IR version that goes with an opset: https://github.com/onnx/onnx/blob/main/docs/Versioning.md
int64_t IrVersion(int opset) { return opset >= 21 ? 10 : 8; }

void SetValue(const OnnxValue& value, onnx::ValueInfoProto* info) {
  info->set_name(value.name);
  onnx::TypeProto::Tensor* tensor = info->mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(static_cast<int32_t>(value.type));
  onnx::TensorShapeProto* shape = tensor->mutable_shape();
  for (const int64_t size : value.shape) shape->add_dim()->set_dim_value(size);
}

void SetConstant(const OnnxConstant& constant, onnx::TensorProto* tensor) {
  tensor->set_name(constant.value.name);
  tensor->set_data_type(static_cast<int32_t>(constant.value.type));
  for (const int64_t size : constant.value.shape) tensor->add_dims(size);
  if (constant.file.empty()) {
    tensor->set_raw_data(constant.bytes);
    return;
  }
  tensor->set_data_location(onnx::TensorProto::EXTERNAL);
  const auto add = [tensor](const char* key, const std::string& value) {
    onnx::StringStringEntryProto* entry = tensor->add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  };
  add("location", constant.file);
  add("offset", std::to_string(constant.offset));
  add("length", std::to_string(OnnxBytes(constant.value.type, constant.value.elements())));
}

void SetAttribute(const std::string& name, const OnnxAttribute& value, onnx::AttributeProto* attribute) {
  attribute->set_name(name);
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    attribute->set_type(onnx::AttributeProto::INT);
    attribute->set_i(*integer);
  } else if (const auto* real = std::get_if<float>(&value)) {
    attribute->set_type(onnx::AttributeProto::FLOAT);
    attribute->set_f(*real);
  } else {
    attribute->set_type(onnx::AttributeProto::INTS);
    for (const int64_t item : std::get<std::vector<int64_t>>(value)) attribute->add_ints(item);
  }
}

onnx::ModelProto ToProto(const OnnxGraph& graph) {
  onnx::ModelProto model;
  model.set_ir_version(IrVersion(graph.opset));
  model.set_producer_name("pith");
  model.add_opset_import()->set_version(graph.opset);
  onnx::GraphProto* out = model.mutable_graph();
  out->set_name(graph.name);
  for (const OnnxValue& value : graph.inputs) SetValue(value, out->add_input());
  for (const OnnxValue& value : graph.outputs) SetValue(value, out->add_output());
  for (const OnnxConstant& constant : graph.constants) SetConstant(constant, out->add_initializer());
  for (const OnnxNode& node : graph.nodes) {
    onnx::NodeProto* proto = out->add_node();
    proto->set_op_type(node.op);
    proto->set_name(node.name);
    for (const std::string& input : node.inputs) proto->add_input(input);
    for (const std::string& output : node.outputs) {
      proto->add_output(output);
      bool is_output = false;
      for (const OnnxValue& value : graph.outputs) is_output = is_output || value.name == output;
      if (!is_output) SetValue(graph.values.at(output), out->add_value_info());
    }
    for (const auto& [name, value] : node.attributes) SetAttribute(name, value, proto->add_attribute());
  }
  return model;
}

}  // namespace

bool OnnxIsBuiltIn() { return true; }

Result<uint64_t> WriteOnnx(const OnnxGraph& graph, const std::string& path) {
  const onnx::ModelProto model = ToProto(graph);
  const std::string partial = path + "." + std::to_string(::getpid()) + ".partial";
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  const bool written = model.SerializeToOstream(&file);
  file.close();
  std::error_code error;
  if (written && file) std::filesystem::rename(partial, path, error);
  if (!written || !file || error) {
    std::filesystem::remove(partial, error);
    return Error{ErrorCode::kIo, "cannot write '" + path + "'"};
  }
  return static_cast<uint64_t>(std::filesystem::file_size(path, error));
}

}  // namespace pith
