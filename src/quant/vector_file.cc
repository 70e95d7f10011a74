#include "quant/vector_file.h"

#include <span>
#include <utility>

#include "model/safetensors.h"

namespace pith::quant {

Status SaveLayer(const std::string& path, const LayerTransforms& transforms, const LayerReport& report) {
  const std::vector<float> losses = {static_cast<float>(report.loss_before), static_cast<float>(report.loss_after)};
  const std::pair<const char*, const std::vector<float>*> parts[] = {{"key_angle", &transforms.key_angle},
                                                                     {"key_scale", &transforms.key_scale},
                                                                     {"value", &transforms.value},
                                                                     {"up", &transforms.up},
                                                                     {"losses", &losses}};
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, values] : parts) {
    entries.push_back({name, DType::kF32, {static_cast<int64_t>(values->size())}});
  }
  PITH_ASSIGN(const auto writer, SafetensorsWriter::Create(path, entries));
  for (const auto& [name, values] : parts) {
    PITH_RETURN_IF_ERROR(writer->Write(name, std::as_bytes(std::span(*values))));
  }
  return writer->Finish();
}

Status LoadLayer(const std::string& path, LayerTransforms* transforms, LayerReport* report) {
  PITH_ASSIGN(const auto file, SafetensorsFile::Open(path));
  std::vector<float> losses;
  const std::pair<const char*, std::vector<float>*> parts[] = {{"key_angle", &transforms->key_angle},
                                                               {"key_scale", &transforms->key_scale},
                                                               {"value", &transforms->value},
                                                               {"up", &transforms->up},
                                                               {"losses", &losses}};
  for (const auto& [name, values] : parts) {
    const Tensor* tensor = file->Find(name);
    if (tensor == nullptr) return Error{ErrorCode::kMalformed, "'" + path + "' has no tensor '" + name + "'"};
    PITH_ASSIGN(*values, ToFloats(*tensor));
  }
  if (losses.size() != 2) return Error{ErrorCode::kMalformed, "'" + path + "': losses has another size than 2"};
  report->loss_before = static_cast<double>(losses[0]);
  report->loss_after = static_cast<double>(losses[1]);
  return {};
}

Status SaveVectors(const std::string& path, const std::map<std::string, std::vector<float>>& vectors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, values] : vectors) {
    entries.push_back({name, DType::kF32, {static_cast<int64_t>(values.size())}});
  }
  PITH_ASSIGN(const auto writer, SafetensorsWriter::Create(path, std::move(entries)));
  for (const auto& [name, values] : vectors) {
    PITH_RETURN_IF_ERROR(writer->Write(name, std::as_bytes(std::span(values))));
  }
  return writer->Finish();
}

Result<std::map<std::string, std::vector<float>>> LoadVectors(const std::string& path) {
  PITH_ASSIGN(const auto file, SafetensorsFile::Open(path));
  std::map<std::string, std::vector<float>> vectors;
  for (const Tensor& tensor : file->tensors()) {
    PITH_ASSIGN(vectors[std::string(tensor.name)], ToFloats(tensor));
  }
  return vectors;
}

}  // namespace pith::quant
