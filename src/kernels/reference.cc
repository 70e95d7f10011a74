#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace pith::reference {

namespace {

float BF16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

double ElementOf(KvType type, const void* data, int64_t index) {
  switch (type) {
    case KvType::kInt8: return static_cast<const int8_t*>(data)[index];
    case KvType::kBF16: return BF16(static_cast<const uint16_t*>(data)[index]);
    case KvType::kF32: break;
  }
  return static_cast<const float*>(data)[index];
}

}  // namespace

void RmsNorm(const float* x, const float* weight, int64_t n, float eps, float* out) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(weight[i] * (x[i] * inverse));
}

void ApplyRope(float* x, int64_t heads, int64_t head_dim, const float* cos, const float* sin) {
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < heads; ++h) {
    float* v = x + h * head_dim;
    for (int64_t j = 0; j < half; ++j) {
      const double a = v[j], b = v[j + half], c = cos[j], s = sin[j];
      v[j] = static_cast<float>(a * c - b * s);
      v[j + half] = static_cast<float>(b * c + a * s);
    }
  }
}

void SwiGlu(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = gate[i];
    out[i] = static_cast<float>(g / (1.0 + std::exp(-g)) * up[i]);
  }
}

void Softmax(float* x, int64_t n) {
  const double shift = *std::max_element(x, x + n);
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - shift);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(std::exp(x[i] - shift) / sum);
}

void FloatMatmul(const float* x, int64_t x_stride, int64_t m, const FloatMatrix& w, int64_t n_begin, int64_t n_end,
                 float alpha, bool accumulate, float* out, int64_t out_stride) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t n = n_begin; n < n_end; ++n) {
      double dot = 0.0;
      for (int64_t k = 0; k < w.cols; ++k) {
        const float weight = w.type == FloatType::kF32 ? static_cast<const float*>(w.data)[n * w.cols + k]
                                                       : BF16(static_cast<const uint16_t*>(w.data)[n * w.cols + k]);
        dot += static_cast<double>(x[i * x_stride + k]) * weight;
      }
      float* place = out + i * out_stride + n;
      *place = static_cast<float>((accumulate ? static_cast<double>(*place) : 0.0) + alpha * dot);
    }
  }
}

double KeyAt(const KvBlockView& block, int64_t /*head_dim*/, int64_t d, int64_t t) {
  const double element = ElementOf(block.type, block.k, d * kKvBlockTokens + t);
  return block.type == KvType::kInt8 ? element * block.k_scale[t] : element;
}

double ValueAt(const KvBlockView& block, int64_t head_dim, int64_t t, int64_t d) {
  const double element = ElementOf(block.type, block.v, t * head_dim + d);
  return block.type == KvType::kInt8 ? element * block.v_scale[t] : element;
}

void Attend(const float* q, const int64_t* limits, int64_t rows, int64_t head_dim, const KvBlockView* blocks,
            int64_t n_blocks, float* out, int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t limit = std::clamp<int64_t>(limits[r], 0, n_blocks * kKvBlockTokens);
    std::vector<double> p(static_cast<size_t>(limit));
    double largest = -HUGE_VAL;
    for (int64_t t = 0; t < limit; ++t) {
      double score = 0.0;
      for (int64_t d = 0; d < head_dim; ++d) {
        score += q[r * head_dim + d] * KeyAt(blocks[t / kKvBlockTokens], head_dim, d, t % kKvBlockTokens);
      }
      p[static_cast<size_t>(t)] = score;
      largest = std::max(largest, score);
    }
    double sum = 0.0;
    for (double& value : p) sum += value = std::exp(value - largest);
    for (int64_t d = 0; d < head_dim; ++d) {
      double acc = 0.0;
      for (int64_t t = 0; t < limit; ++t) {
        acc += p[static_cast<size_t>(t)] * ValueAt(blocks[t / kKvBlockTokens], head_dim, t % kKvBlockTokens, d);
      }
      out[r * out_stride + d] = limit == 0 ? 0.0f : static_cast<float>(acc / sum);
    }
  }
}

int64_t ArgMax(const float* x, int64_t n) { return std::max_element(x, x + n) - x; }

}  // namespace pith::reference
