// Whether an exported model still is the model: logits of both on a fixed text.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "model/checkpoint.h"

namespace pith {

struct ModelComparison {
  int64_t tokens = 0;          // positions compared
  double rms = 0;              // root mean square of the reference's logits about each position's mean
  double max_difference = 0;   // the largest difference of two logits
  double relative = 0;         // root mean square of the differences / rms
  double same_choice = 0;      // share of positions at which both put the same token first, 0..1
  bool same_tokenizer = true;  // both turn the text into the same ids
};

// Runs both on the calibration text, cut to `tokens` tokens, in float32 (matrices of low bits too), with a float32
// cache, one after the other. `adapter`: a PEFT directory that the reference runs with; the export has it merged.
Result<ModelComparison> CompareModels(const std::string& reference, const std::string& adapter,
                                      const std::string& exported, int64_t tokens, int threads);

// The largest `relative` at which an export passes. Exact ones may differ by the rounding of RoPE divisors, which GGUF
// holds in float32; bfloat16 and half keep 8 and 11 bits of each weight, 8 and 4-bit blocks about 7 and 3.5, and errors
// of independent weights add up like noise over the layers. A broken export (wrong rows, wrong scales) is near sqrt(2).
double AllowedDifference(bool exact, bool low_bits);

}  // namespace pith
