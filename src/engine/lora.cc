#include "engine/lora.h"

#include <atomic>
#include <cstring>

#include "base/random.h"
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
  return HoldFloats(values, rows, cols, type);
}

FloatMatrix Adapter::HoldFloats(const std::vector<float>& values, int64_t rows, int64_t cols, FloatType type) {
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

Adapter::Adapter(const ModelConfig& config) : layers_(static_cast<size_t>(config.layers) + 1) {
  static std::atomic<uint64_t> next_id{1};
  id_ = next_id.fetch_add(1);
}

void Adapter::Place(int64_t layer, LinearKind kind, std::unique_ptr<LoraFactors> factors) {
  const size_t index = kind == LinearKind::kLmHead ? layers_.size() - 1 : static_cast<size_t>(layer);
  layers_[index][static_cast<size_t>(kind)] = std::move(factors);
}

Result<std::shared_ptr<const Adapter>> Adapter::Load(const std::string& dir, const ModelConfig& config, FloatType type) {
  PITH_ASSIGN(auto file, AdapterFile::Open(dir, config));
  auto adapter = std::shared_ptr<Adapter>(new Adapter(config));
  adapter->file_ = file;
  for (const LoraModule& module : file->modules) {
    auto factors = std::make_unique<LoraFactors>();
    factors->scaling = module.scaling;
    Status status;
    factors->a = adapter->Hold(module.a, module.a_scale, type, &status);
    PITH_RETURN_IF_ERROR(status);
    factors->b = adapter->Hold(module.b, module.b_scale, type, &status);
    PITH_RETURN_IF_ERROR(status);
    adapter->Place(module.layer, module.kind, std::move(factors));
  }
  return std::shared_ptr<const Adapter>(adapter);
}

std::shared_ptr<const Adapter> Adapter::Random(const ModelConfig& config, int64_t rank, FloatType type) {
  auto adapter = std::shared_ptr<Adapter>(new Adapter(config));
  uint64_t position = 0;
  const auto random = [&](int64_t rows, int64_t cols) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& v : values) v = static_cast<float>(RandomUniform(1, 0, position++) - 0.5) * 0.02F;
    return adapter->HoldFloats(values, rows, cols, type);
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const LinearKind kind : {LinearKind::kQ, LinearKind::kK, LinearKind::kV, LinearKind::kO, LinearKind::kGate,
                                  LinearKind::kUp, LinearKind::kDown}) {
      const LinearShape shape = ShapeOf(config, kind);
      auto factors = std::make_unique<LoraFactors>();
      factors->scaling = 2.0F;
      factors->a = random(rank, shape.in);
      factors->b = random(shape.out, rank);
      adapter->Place(layer, kind, std::move(factors));
    }
  }
  return adapter;
}

const LoraFactors* Adapter::Find(int64_t layer, LinearKind kind) const {
  const size_t index = kind == LinearKind::kLmHead ? layers_.size() - 1 : static_cast<size_t>(layer);
  return layers_[index][static_cast<size_t>(kind)].get();
}

}  // namespace pith
