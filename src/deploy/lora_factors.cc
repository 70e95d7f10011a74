#include "deploy/lora_factors.h"

#include <cstring>

namespace pith {

namespace {

Result<std::vector<float>> ReadFactor(const Tensor& tensor, const Tensor& scale) {
  if (tensor.type != DType::kI8) return ToFloats(tensor);
  PITH_ASSIGN(const std::vector<float> scales, ToFloats(scale));
  std::vector<float> values(tensor.data.size());
  const auto cols = static_cast<size_t>(tensor.cols());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int8_t>(tensor.data[i])) * scales[i / cols];
  }
  return values;
}

}  // namespace

Result<LoraFloats> ReadFactors(const LoraModule& module) {
  LoraFloats factors;
  PITH_ASSIGN(factors.a, ReadFactor(module.a, module.a_scale));
  PITH_ASSIGN(factors.b, ReadFactor(module.b, module.b_scale));
  return factors;
}

}  // namespace pith
