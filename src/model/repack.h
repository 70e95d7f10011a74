// Block-quantized GGUF rows as packed rows without any loss: the same numbers, bit for bit, in the layout that the
// kernels read.
//
//   Q4_0          4 bits, groups of 32, symmetric      Q4_1          4 bits, groups of 32, minimum
//   Q5_0, Q8_0    8 bits, groups of 32, symmetric      Q5_1          8 bits, groups of 32, minimum
//   Q4_K          4 bits, groups of 32, minimum, with F32 scales: the products of two scales do not fit in F16
//   Q5_K          8 bits, likewise
//   Q6_K          none: its scales are per 16 weights
#pragma once

#include <cstdint>
#include <optional>

#include "model/quantize.h"
#include "model/tensor.h"

namespace pith {

// The format that holds tensors of a type exactly, or nothing.
std::optional<QuantFormat> ExactFormat(DType type);

// Writes one row of `cols` weights of a type that has an exact format. `row` has the bytes of the row.
void RepackRow(DType type, const uint8_t* row, int64_t cols, const QuantizedRow& out);

}  // namespace pith
