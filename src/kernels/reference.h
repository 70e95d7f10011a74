// Plain scalar code for every kernel of this folder, in double where that is the more accurate: what the fast kernels
// are tested against, and what the start-up self-test compares them with. Same arguments and meaning as the kernel of
// the same name.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/float_matmul.h"

namespace pith::reference {

void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* out);
void ApplyRope(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin);
void SwiGlu(const float* gate, const float* up, int64_t n, float* out);
void Softmax(float* x, int64_t n);

void FloatMatmul(const float* x, int64_t x_stride, int64_t m, const FloatMatrix& w, int64_t n_begin, int64_t n_end,
                 float alpha, bool accumulate, float* out, int64_t out_stride);

// Element (d, t) of the keys and (t, d) of the values of a block, dequantized.
double KeyAt(const KvBlockView& block, int64_t head_dim, int64_t d, int64_t t);
double ValueAt(const KvBlockView& block, int64_t head_dim, int64_t t, int64_t d);
// Two-pass softmax attention in double.
void Attend(const float* q, const int64_t* limits, int64_t rows, int64_t head_dim, const KvBlockView* blocks,
            int64_t n_blocks, float* out, int64_t out_stride);

int64_t ArgMax(const float* x, int64_t n);

}  // namespace pith::reference
