// The loops behind QuantMatMul, by the number of tokens. Internal to the room.
#pragma once

#include <cstdint>

#include "kernels/qmatmul.h"

namespace pith::kernels {

// Each computes the rows of tiles [begin, end) for all tokens of the product.

// One token of those of the product, which have signed digits.
void MultiplyOne(const QuantProduct& product, int64_t token, int64_t begin, int64_t end);

// 2 to FewTokens(planes, weight_bits) tokens; where that is 1, there is no such loop for this processor.
void MultiplyFew(const QuantProduct& product, int64_t begin, int64_t end);
int64_t FewTokens(int planes, int weight_bits);

// Any number of tokens; `scratch`, 64-byte aligned, holds ManyScratchBytes.
void MultiplyMany(const QuantProduct& product, int64_t begin, int64_t end, uint8_t* scratch);
int64_t ManyScratchBytes(int64_t cols, int weight_bits);

// The same for activations that are words: WordTokens tokens and more; `scratch` holds WordScratchBytes.
void MultiplyWords(const QuantProduct& product, int64_t begin, int64_t end, uint8_t* scratch);
int64_t WordTokens(int planes, int weight_bits);
int64_t WordScratchBytes(int64_t cols);

}  // namespace pith::kernels
