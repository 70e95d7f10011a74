// Vector operations of training: softmax with its statistics, and the backward passes of the elementwise kernels.
//
// Data is float; pointers need no alignment; lengths are any n >= 0. A result depends only on the values of its own
// row.
#pragma once

#include <cstdint>

namespace pith {

// What a softmax over z = scale * x was.
struct SoftmaxStats {
  float log_sum = 0;  // log(sum exp(z))
  float entropy = 0;  // -sum p log p, in nats
};

// In place: x becomes p = softmax(scale * x). n >= 1, scale > 0. -inf entries become 0. A NaN, +inf, or nothing but
// -inf makes log_sum and entropy NaN.
SoftmaxStats SoftmaxWithStats(float* x, int64_t n, float scale);

// In place: x becomes exp(scale * x - log_sum), the probabilities of SoftmaxWithStats again.
void SoftmaxFromLogSum(float* x, int64_t n, float scale, float log_sum);

// Gradient of z = scale * s through p = softmax(z): dp[i] becomes p[i] * (dp[i] - delta) * scale, with delta = sum p
// dp.
void SoftmaxBackward(const float* p, float* dp, int64_t n, float delta, float scale);

// Of out = weight * x / sqrt(mean(x^2) + eps). dx[i] = r w[i] dy[i] - x[i] r^3 / n * sum(w dy x), r = 1 / sqrt(...).
// dweight, when not null: dweight[i] += dy[i] * x[i] * r. dx may be dy.
void RmsNormBackward(const float* x, const float* weight, const float* dy, int64_t n, float eps, float* dx,
                     float* dweight);

// Of out = silu(gate) * up. dgate or dup may be one of the inputs.
void SwiGluBackward(const float* gate, const float* up, const float* dy, int64_t n, float* dgate, float* dup);

// Sum of a[i] * b[i] in a fixed order.
float Dot(const float* a, const float* b, int64_t n);

// sums[k] = sum over i of a[i] * x[i][k], for the eight columns of x[n, 8]. In a fixed order, each column the same.
void DotColumns(const float* a, const float* x, int64_t n, float sums[8]);

// y[i] += a * x[i].
void AddScaled(float* y, float a, const float* x, int64_t n);

}  // namespace pith
