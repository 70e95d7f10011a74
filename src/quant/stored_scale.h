// A scale as the packed file holds it.
#pragma once

#include "model/tensor.h"

namespace pith::quant {

inline float StoredScale(float scale, DType type) { return type == DType::kF16 ? F16ToF32(F32ToF16(scale)) : scale; }

}  // namespace pith::quant
