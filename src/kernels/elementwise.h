// Vector operations between the matrix products: norms, rotary positions, activation, sums, table rows, softmax.
//
// All data is float and row-major; pointers need no alignment; lengths are any n >= 0. A result depends only on the
// values of its own row (not on alignment, on neighbours or on threads), so prefill and decode agree bit for bit. `out`
// may be one of the inputs; other overlap is not allowed.
#pragma once

#include <cstdint>

namespace pith {

// out[i] = weight[i] * (x[i] / sqrt(mean(x^2) + eps))   (RMSNorm, Zhang & Sennrich 2019).
void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* out);

// RmsNorm of each of `heads` vectors x[heads, head_dim], in place, with one weight[head_dim] for all (qwen3's q and k
// norm).
void RmsNormHeads(float* x, const float* weight, int64_t heads, int64_t head_dim, float eps);

// Rotary position embedding (Su et al. 2021) in the half-split form of Llama and Qwen, in place on x[heads, head_dim]
// at one position. cos and sin hold head_dim / 2 values for that position; component j is paired with j + head_dim / 2.
// head_dim is even.
void ApplyRope(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin);

// out[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)). Relative error below 1e-6 for |gate| < 87, below that
// absolute error under 1e-35; infinities and NaN as in the formula.
void SwiGlu(const float* gate, const float* up, int64_t n, float* out);

// x[i] += y[i]: residual and bias additions.
void AddInPlace(float* x, const float* y, int64_t n);

// x[i] *= y[i].
void MultiplyInPlace(float* x, const float* y, int64_t n);

// x[i] *= factor.
void ScaleInPlace(float* x, float factor, int64_t n);

// In place softmax: x[i] = exp(x[i] - max) / sum. n >= 1; -inf entries become 0; if all are -inf, or one is NaN or
// +inf, the row is NaN.
void Softmax(float* x, int64_t n);

// Largest |x[i]|; 0 for n = 0; NaN when one of them is NaN.
float AbsMax(const float* x, int64_t n);

// Rows of tables (embeddings) to float.
void DequantizeI8(const int8_t* row, float scale, int64_t n, float* out);  // row[i] * scale
void ConvertBF16(const uint16_t* row, int64_t n, float* out);
void ConvertF16(const uint16_t* row, int64_t n, float* out);  // IEEE half, subnormals exact

// Float to bf16 bits, round to nearest even; NaN stays a (quiet) NaN.
void ConvertToBF16(const float* row, int64_t n, uint16_t* out);

}  // namespace pith
