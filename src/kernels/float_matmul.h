// out = x * W^T with float activations and weights in f32 or bf16: the reference path, LoRA factors and heads.
//
// One definition for every size: element (i, n) is the sum over k of x[i][k] * W[n][k], kept in one partial sum per
// vector lane (lane j takes k = j, j + L, j + 2L, ... in ascending order, L = lanes of the target), the lanes then
// added in a fixed tree. It depends neither on the number of rows of x nor on the range of n, so prefill and decode,
// one thread and many, agree bit for bit (on one target; targets differ in rounding).
#pragma once

#include <cstdint>

namespace pith {

enum class FloatType { kF32, kBF16 };

// A borrowed weight matrix [rows, cols], row-major without gaps: float, or bf16 bits in uint16_t (2-byte aligned).
struct FloatMatrix {
  FloatType type = FloatType::kF32;
  const void* data = nullptr;
  int64_t rows = 0;  // outputs
  int64_t cols = 0;  // inputs
};

// For i in [0, m) and n in [n_begin, n_end):
//   out[i * out_stride + n]  =  alpha * dot(x + i * x_stride, W row n)     or  +=  when `accumulate`.
// 0 <= n_begin <= n_end <= w.rows; strides are in floats; out does not overlap x or W. Callers split n over threads.
void FloatMatmul(const float* x, int64_t x_stride, int64_t m, const FloatMatrix& w, int64_t n_begin, int64_t n_end,
                 float alpha, bool accumulate, float* out, int64_t out_stride);

}  // namespace pith
