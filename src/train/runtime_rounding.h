// What the runtime's integers make of activations and of cached keys and values, as floats: for training a model on the
// numbers that it will meet when it runs. Rounding clips nothing, so gradients pass as they are.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace pith::train {

// Rows x[rows, cols] become s * q with the 16-bit q and the s of kernels::QuantActivations. In place where out is x.
void RoundActivations(const float* x, int64_t rows, int64_t cols, float* out, ThreadPool& pool);

// Vectors x[rows, heads, head_dim] become s * q with the 8-bit q and the s of StoreKv, one per row and head. With
// `equalizer` [heads, head_dim] (powers of two; LayerWeights::key_scale) each vector is multiplied by it before and
// divided afterwards; empty = none.
void RoundCached(const float* x, int64_t rows, int64_t heads, int64_t head_dim, const std::vector<float>& equalizer,
                 float* out, ThreadPool& pool);

}  // namespace pith::train
