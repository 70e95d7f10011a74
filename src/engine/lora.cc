#include "engine/lora.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/random.h"
#include "kernels/elementwise.h"

namespace pith {

namespace {

// The values of a factor as floats, whatever it is stored as.
Result<std::vector<float>> FactorFloats(const Tensor& tensor, const Tensor& scale) {
  if (tensor.type != DType::kI8) return ToFloats(tensor);
  PITH_ASSIGN(const auto scales, ToFloats(scale));
  const int64_t cols = tensor.cols();
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    DequantizeI8(reinterpret_cast<const int8_t*>(tensor.data.data()) + r * cols, scales[static_cast<size_t>(r)], cols,
                 values.data() + r * cols);
  }
  return values;
}

}  // namespace

std::unique_ptr<kernels::QuantMatrix> Adapter::HoldInt8(const std::vector<float>& values, int64_t rows, int64_t cols,
                                                        int64_t padded_rows, int64_t padded_cols) {
  owned_.emplace_back(static_cast<size_t>(padded_rows * padded_cols), std::byte{128});
  auto* codes = reinterpret_cast<uint8_t*>(owned_.back().data());
  std::vector<float> scales(static_cast<size_t>(padded_rows));
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = values.data() + r * cols;
    // max / 127 gives the integers of an int8 adapter back: its largest element is +-127 times its scale.
    const float scale = AbsMax(row, cols) / 127.0F;
    scales[static_cast<size_t>(r)] = scale;
    for (int64_t c = 0; c < cols && scale > 0; ++c) {
      const float code = std::nearbyint(row[c] / scale);
      codes[r * padded_cols + c] = static_cast<uint8_t>(128 + static_cast<int>(std::clamp(code, -127.0F, 127.0F)));
    }
  }
  kernels::PackedWeights packed;
  packed.rows = padded_rows;
  packed.cols = padded_cols;
  packed.bits = 8;
  packed.group = padded_cols;
  packed.data = codes;
  packed.scales_f32 = scales.data();
  bytes_ += owned_.back().size() + scales.size() * sizeof(float);
  return std::make_unique<kernels::QuantMatrix>(packed);
}

void Adapter::Hold(const std::vector<float>& a, const std::vector<float>& b, int64_t rank, int64_t in, int64_t out,
                   LoraFormat format, LoraFactors* factors) {
  if (format == LoraFormat::kInt8 && in % kernels::kBlock == 0) {
    const int64_t padded = (rank + kernels::kBlock - 1) / kernels::kBlock * kernels::kBlock;
    factors->a8 = HoldInt8(a, rank, in, padded, in);
    factors->b8 = HoldInt8(b, out, rank, out, padded);
    return;
  }
  const FloatType type = format == LoraFormat::kF32 ? FloatType::kF32 : FloatType::kBF16;
  factors->a = HoldFloats(a, rank, in, type);
  factors->b = HoldFloats(b, out, rank, type);
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
  for (size_t kind = 0; kind < kKinds; ++kind) shapes_[kind] = ShapeOf(config, static_cast<LinearKind>(kind));
}

bool Adapter::Fits(const ModelConfig& config) const {
  if (layers_.size() != static_cast<size_t>(config.layers) + 1) return false;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const LinearShape shape = ShapeOf(config, static_cast<LinearKind>(kind));
    if (shape.in != shapes_[kind].in || shape.out != shapes_[kind].out) return false;
  }
  return true;
}

void Adapter::Place(int64_t layer, LinearKind kind, std::unique_ptr<LoraFactors> factors) {
  const size_t index = kind == LinearKind::kLmHead ? layers_.size() - 1 : static_cast<size_t>(layer);
  layers_[index][static_cast<size_t>(kind)] = std::move(factors);
}

Result<std::shared_ptr<const Adapter>> Adapter::Load(const std::string& dir, const ModelConfig& config,
                                                     LoraFormat format) {
  PITH_ASSIGN(auto file, AdapterFile::Open(dir, config));
  auto adapter = std::shared_ptr<Adapter>(new Adapter(config));
  adapter->file_ = file;
  for (const LoraModule& module : file->modules) {
    auto factors = std::make_unique<LoraFactors>();
    factors->scaling = module.scaling;
    const LoraFormat held = format != LoraFormat::kAuto   ? format
                            : module.a.type == DType::kI8 ? LoraFormat::kInt8
                                                          : LoraFormat::kBF16;
    PITH_ASSIGN(const auto a, FactorFloats(module.a, module.a_scale));
    PITH_ASSIGN(const auto b, FactorFloats(module.b, module.b_scale));
    adapter->Hold(a, b, module.rank, module.a.cols(), module.b.rows(), held, factors.get());
    adapter->Place(module.layer, module.kind, std::move(factors));
  }
  return std::shared_ptr<const Adapter>(adapter);
}

Result<std::shared_ptr<const Adapter>> Adapter::Make(const ModelConfig& config, std::span<const LoraWeights> modules,
                                                     bool rslora, LoraFormat format) {
  PITH_RETURN_IF_ERROR(CheckLoraWeights(config, modules));
  auto adapter = std::shared_ptr<Adapter>(new Adapter(config));
  for (const LoraWeights& module : modules) {
    auto factors = std::make_unique<LoraFactors>();
    const auto rank = static_cast<double>(module.rank);
    factors->scaling = static_cast<float>(module.alpha / (rslora ? std::sqrt(rank) : rank));
    const LinearShape shape = ShapeOf(config, module.kind);
    adapter->Hold({module.a.begin(), module.a.end()}, {module.b.begin(), module.b.end()}, module.rank, shape.in,
                  shape.out, format == LoraFormat::kAuto ? LoraFormat::kF32 : format, factors.get());
    adapter->Place(module.layer, module.kind, std::move(factors));
  }
  return std::shared_ptr<const Adapter>(adapter);
}

std::shared_ptr<const Adapter> Adapter::Random(const ModelConfig& config, int64_t rank, LoraFormat format) {
  if (format == LoraFormat::kAuto) format = LoraFormat::kBF16;
  auto adapter = std::shared_ptr<Adapter>(new Adapter(config));
  uint64_t position = 0;
  const auto random = [&](int64_t rows, int64_t cols) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& v : values) v = static_cast<float>(RandomUniform(1, 0, position++) - 0.5) * 0.02F;
    return values;
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const LinearKind kind : {LinearKind::kQ, LinearKind::kK, LinearKind::kV, LinearKind::kO, LinearKind::kGate,
                                  LinearKind::kUp, LinearKind::kDown}) {
      const LinearShape shape = ShapeOf(config, kind);
      auto factors = std::make_unique<LoraFactors>();
      factors->scaling = 2.0F;
      const std::vector<float> a = random(rank, shape.in);
      adapter->Hold(a, random(shape.out, rank), rank, shape.in, shape.out, format, factors.get());
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
