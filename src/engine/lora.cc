#include "engine/lora.h"

#include <atomic>
#include <cstring>

#include "kernels/elementwise.h"

namespace pith {

FloatMatrix Adapter::Hold(const Tensor& tensor, const Tensor& scale, FloatType type, Status* status) {
  const int64_t rows = tensor.rows();
  const int64_t cols = tensor.cols();
  // bf16 factors stay as they are: f32 would hold the same values in twice the bytes.
  if (tensor.type == DType::kBF16 && reinterpret_cast<uintptr_t>(tensor.data.data()) % 2 == 0) {
    bytes_ += tensor.data.size();
    return {FloatType::kBF16, tensor.data.data(), rows, cols};
  }
  std::vector<float> values(static_cast<size_t>(rows * cols));
  if (tensor.type == DType::kI8) {
    const auto scales = ToFloats(scale);
    if (!scales) {
      *status = scales.error();
      return {};
    }
    for (int64_t r = 0; r < rows; ++r) {
      DequantizeI8(reinterpret_cast<const int8_t*>(tensor.data.data()) + r * cols, (*scales)[static_cast<size_t>(r)], cols,
                   values.data() + r * cols);
    }
  } else if (const Status read = DequantizeRows(tensor, 0, rows, values.data()); !read.ok()) {
    *status = read;
    return {};
  }
  const size_t width = type == FloatType::kF32 ? 4 : 2;
  owned_.emplace_back(values.size() * width);
  std::byte* out = owned_.back().data();
  if (type == FloatType::kF32) {
    std::memcpy(out, values.data(), values.size() * width);
  } else {
    ConvertToBF16(values.data(), rows * cols, reinterpret_cast<uint16_t*>(out));
  }
  bytes_ += values.size() * width;
  return {type, out, rows, cols};
}

Result<std::shared_ptr<const Adapter>> Adapter::Load(const std::string& dir, const ModelConfig& config, FloatType type) {
  static std::atomic<uint64_t> next_id{1};
  PITH_ASSIGN(auto file, AdapterFile::Open(dir, config));
  auto adapter = std::shared_ptr<Adapter>(new Adapter());
  adapter->file_ = file;
  adapter->id_ = next_id.fetch_add(1);
  adapter->layers_.resize(static_cast<size_t>(config.layers) + 1);
  for (const LoraModule& module : file->modules) {
    auto factors = std::make_unique<LoraFactors>();
    factors->scaling = module.scaling;
    Status status;
    factors->a = adapter->Hold(module.a, module.a_scale, type, &status);
    PITH_RETURN_IF_ERROR(status);
    factors->b = adapter->Hold(module.b, module.b_scale, type, &status);
    PITH_RETURN_IF_ERROR(status);
    const auto layer = static_cast<size_t>(module.kind == LinearKind::kLmHead ? config.layers : module.layer);
    adapter->layers_[layer][static_cast<size_t>(module.kind)] = std::move(factors);
  }
  return std::shared_ptr<const Adapter>(adapter);
}

const LoraFactors* Adapter::Find(int64_t layer, LinearKind kind) const {
  const size_t index = kind == LinearKind::kLmHead ? layers_.size() - 1 : static_cast<size_t>(layer);
  return layers_[index][static_cast<size_t>(kind)].get();
}

}  // namespace pith
