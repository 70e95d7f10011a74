// The factors of an adapter's module as floats, whatever they are stored as.
#pragma once

#include <vector>

#include "base/result.h"
#include "model/adapter.h"

namespace pith {

struct LoraFloats {
  std::vector<float> a;  // [rank, in]
  std::vector<float> b;  // [out, rank]
};
Result<LoraFloats> ReadFactors(const LoraModule& module);

}  // namespace pith
