#include "train/runtime_rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pith::train {

namespace {

constexpr int64_t kRowsPerTask = 16;

// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, where |value| < 2^22.
float RoundToInteger(float value) {
  constexpr float kMagic = 12582912.0F;
  return (value + kMagic) - kMagic;
}

// Eight partial results, so that it vectorizes.
float AbsMaxOf(const float* x, int64_t n) {
  constexpr int kLanes = 8;
  float most[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) most[lane] = std::max(most[lane], std::fabs(x[i + lane]));
  }
  for (; i < n; ++i) most[0] = std::max(most[0], std::fabs(x[i]));
  return *std::max_element(most, most + kLanes);
}

template <class Body>
void ForRows(ThreadPool& pool, int64_t rows, const Body& body) {
  pool.Run((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    for (int64_t r = task * kRowsPerTask; r < std::min(rows, (task + 1) * kRowsPerTask); ++r) body(r);
  });
}

}  // namespace

void RoundActivations(const float* x, int64_t rows, int64_t cols, float* out, ThreadPool& pool) {
  constexpr float kLimit = 32639.0F;
  ForRows(pool, rows, [&](int64_t r) {
    const float* from = x + r * cols;
    float* to = out + r * cols;
    const float most = AbsMaxOf(from, cols);
    const float scale = most / kLimit;
    const float inverse = kLimit / most;
    const bool zero = !std::isfinite(inverse);  // nothing, or too small to be told from it
    for (int64_t i = 0; i < cols; ++i) {
      const float q = std::min(std::max(from[i] * inverse, -kLimit), kLimit);
      to[i] = zero ? 0.0F : RoundToInteger(q) * scale;
    }
  });
}

void RoundCached(const float* x, int64_t rows, int64_t heads, int64_t head_dim, const std::vector<float>& equalizer,
                 float* out, ThreadPool& pool) {
  constexpr float kLimit = 127.0F;
  ForRows(pool, rows, [&](int64_t r) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = (r * heads + h) * head_dim;
      const float* from = x + at;
      float* to = out + at;
      const float* weights = equalizer.empty() ? nullptr : equalizer.data() + h * head_dim;
      for (int64_t i = 0; i < head_dim; ++i) to[i] = weights == nullptr ? from[i] : from[i] * weights[i];
      const float scale = AbsMaxOf(to, head_dim) / kLimit;
      const bool zero = scale < std::numeric_limits<float>::min();
      for (int64_t i = 0; i < head_dim; ++i) {
        const float q = std::min(std::max(to[i] / scale, -kLimit), kLimit);
        const float value = zero ? 0.0F : RoundToInteger(q) * scale;
        to[i] = weights == nullptr ? value : value / weights[i];
      }
    }
  });
}

}  // namespace pith::train
