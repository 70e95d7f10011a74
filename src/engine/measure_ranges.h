// Calibration of static activation ranges: a text runs through the engine in float32, and every value that the device
// export quantizes is seen.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/result.h"
#include "model/activation_ranges.h"
#include "model/checkpoint.h"

namespace pith {

struct MeasureRangesOptions {
  // 0: from the lowest to the highest value that was seen. 1 to 8: of 100 candidates inside of that the one with the
  // least sum of |x^ - x|^p, the widest of equals (the grids are src/quant/fake_quant.h's: i/100 of a symmetric range,
  // else ten fractions in [0.6, 1] of the lower end with ten of the upper). The text is then run twice.
  int power = 0;
  int threads = 0;
  std::function<void(int64_t done, int64_t total)> on_tokens = {};
};

// The ranges do not depend on the number of threads. Texts longer than the context are cut into windows of at most
// 2,048 tokens. Scores are also stored with the floor of the mask ("masked"). kInvalidArgument for no tokens, errors of
// loading and running, and those of CheckActivationRanges.
Result<ActivationRanges> MeasureActivationRanges(std::shared_ptr<const Checkpoint> checkpoint,
                                                 std::span<const int32_t> tokens, const MeasureRangesOptions& options);

}  // namespace pith
