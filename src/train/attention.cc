#include "train/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/backward.h"
#include "kernels/elementwise.h"
#include "train/blas.h"

namespace pith::train {

namespace {

constexpr int64_t kRowBlock = 64;

// One head of one span: pointers to its rows.
struct Head {
  const AttentionSpan* span;
  int64_t head;
  int64_t q_stride, kv_stride, d;
  float scale;
  const float *q, *k, *v, *prefix_k, *prefix_v;

  Head(const AttentionInputs& in, int64_t task)
      : span(&(*in.spans)[static_cast<size_t>(task / in.shape.heads)]),
        head(task % in.shape.heads),
        q_stride(in.shape.q_width()),
        kv_stride(in.shape.kv_width()),
        d(in.shape.head_dim),
        scale(1.0F / std::sqrt(static_cast<float>(d))) {
    const int64_t kv_head = head / (in.shape.heads / in.shape.kv_heads);
    q = in.q + span->begin * q_stride + head * d;
    k = in.k + span->begin * kv_stride + kv_head * d;
    v = in.v + span->begin * kv_stride + kv_head * d;
    const int64_t prefix = span->prefix_begin * kv_stride + kv_head * d;
    prefix_k = in.prefix_k == nullptr ? nullptr : in.prefix_k + prefix;
    prefix_v = in.prefix_v == nullptr ? nullptr : in.prefix_v + prefix;
  }

  // s[rows, ld] = x[first.., d] * [prefix | own]^T for own rows [0, first + rows); x has q's stride.
  void TimesTransposed(const float* x, const float* own, const float* prefix, int64_t first, int64_t rows, float* s,
                       int64_t ld) const {
    const GemmInput left{x + first * q_stride, q_stride};
    const int64_t p = span->prefix_length;
    if (p > 0) Gemm(rows, p, d, 1.0F, left, {prefix, kv_stride, Op::kTransposed}, 0.0F, s, ld);
    Gemm(rows, first + rows, d, 1.0F, left, {own, kv_stride, Op::kTransposed}, 0.0F, s + p, ld);
  }

  // y[first.., d] = s[rows, ld] * [prefix | own]; y has q's stride.
  void Times(const float* s, int64_t ld, const float* own, const float* prefix, int64_t first, int64_t rows,
             float* y) const {
    const int64_t p = span->prefix_length;
    float* out = y + first * q_stride;
    if (p > 0) Gemm(rows, d, p, 1.0F, {s, ld}, {prefix, kv_stride}, 0.0F, out, q_stride);
    Gemm(rows, d, first + rows, 1.0F, {s + p, ld}, {own, kv_stride}, p > 0 ? 1.0F : 0.0F, out, q_stride);
  }
};

int64_t LongestRow(const AttentionInputs& in) {
  int64_t longest = 0;
  for (const AttentionSpan& span : *in.spans) longest = std::max(longest, span.prefix_length + span.length);
  return longest;
}

}  // namespace

void AttentionForward(const AttentionInputs& in, float* out, float* log_sums, ThreadPool& pool) {
  const int64_t longest = LongestRow(in);
  std::vector<std::vector<float>> scratch(static_cast<size_t>(pool.threads()));
  pool.Run(static_cast<int64_t>(in.spans->size()) * in.shape.heads, [&](int64_t task, int thread) {
    auto& scores = scratch[static_cast<size_t>(thread)];
    if (scores.empty()) scores.resize(static_cast<size_t>(kRowBlock * longest));
    const Head head(in, task);
    const AttentionSpan& span = *head.span;
    const int64_t ld = span.prefix_length + span.length;
    float* target = out + span.begin * head.q_stride + head.head * head.d;
    float* sums = log_sums + head.head * in.rows + span.begin;
    for (int64_t first = 0; first < span.length; first += kRowBlock) {
      const int64_t rows = std::min(kRowBlock, span.length - first);
      head.TimesTransposed(head.q, head.k, head.prefix_k, first, rows, scores.data(), ld);
      for (int64_t r = 0; r < rows; ++r) {
        float* row = scores.data() + r * ld;
        const int64_t seen = span.prefix_length + first + r + 1;
        sums[first + r] = SoftmaxWithStats(row, seen, head.scale).log_sum;
        std::fill(row + seen, row + span.prefix_length + first + rows, 0.0F);
      }
      head.Times(scores.data(), ld, head.v, head.prefix_v, first, rows, target);
    }
  });
}

void AttentionBackward(const AttentionInputs& in, const float* out, const float* log_sums, const float* dout, float* dq,
                       float* dk, float* dv, ThreadPool& pool) {
  const int64_t longest = LongestRow(in);
  const int64_t d = in.shape.head_dim;
  // Each query head sums its share of dk and dv in a place of its own; shares are added in order afterwards.
  const auto share = static_cast<size_t>(in.rows * d);
  std::vector<float> key_shares(static_cast<size_t>(in.shape.heads) * share, 0.0F);
  std::vector<float> value_shares(static_cast<size_t>(in.shape.heads) * share, 0.0F);
  std::vector<std::vector<float>> scratch(static_cast<size_t>(pool.threads()));
  pool.Run(static_cast<int64_t>(in.spans->size()) * in.shape.heads, [&](int64_t task, int thread) {
    auto& buffer = scratch[static_cast<size_t>(thread)];
    if (buffer.empty()) buffer.resize(static_cast<size_t>(2 * kRowBlock * longest));
    const Head head(in, task);
    const AttentionSpan& span = *head.span;
    const int64_t p = span.prefix_length;
    const int64_t ld = p + span.length;
    float* probabilities = buffer.data();
    float* gradients = buffer.data() + kRowBlock * longest;
    const int64_t offset = span.begin * head.q_stride + head.head * d;
    const float* head_dout = dout + offset;
    const float* head_out = out + offset;
    const float* sums = log_sums + head.head * in.rows + span.begin;
    float* head_dk = key_shares.data() + static_cast<size_t>(head.head) * share + span.begin * d;
    float* head_dv = value_shares.data() + static_cast<size_t>(head.head) * share + span.begin * d;
    for (int64_t first = 0; first < span.length; first += kRowBlock) {
      const int64_t rows = std::min(kRowBlock, span.length - first);
      const int64_t own = first + rows;
      head.TimesTransposed(head.q, head.k, head.prefix_k, first, rows, probabilities, ld);
      head.TimesTransposed(head_dout, head.v, head.prefix_v, first, rows, gradients, ld);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t seen = p + first + r + 1;
        float* row = probabilities + r * ld;
        float* row_gradient = gradients + r * ld;
        const int64_t at = (first + r) * head.q_stride;
        SoftmaxFromLogSum(row, seen, head.scale, sums[first + r]);
        SoftmaxBackward(row, row_gradient, seen, Dot(head_dout + at, head_out + at, d), head.scale);
        std::fill(row + seen, row + p + own, 0.0F);
        std::fill(row_gradient + seen, row_gradient + p + own, 0.0F);
      }
      head.Times(gradients, ld, head.k, head.prefix_k, first, rows, dq + offset);
      const int64_t at = first * head.q_stride;
      Gemm(own, d, rows, 1.0F, {gradients + p, ld, Op::kTransposed}, {head.q + at, head.q_stride}, 1.0F, head_dk, d);
      Gemm(own, d, rows, 1.0F, {probabilities + p, ld, Op::kTransposed}, {head_dout + at, head.q_stride}, 1.0F, head_dv,
           d);
    }
  });
  const int64_t group = in.shape.heads / in.shape.kv_heads;
  const int64_t kv_width = in.shape.kv_width();
  pool.Run(in.rows, [&](int64_t row, int) {
    for (int64_t kv = 0; kv < in.shape.kv_heads; ++kv) {
      float* to_k = dk + row * kv_width + kv * d;
      float* to_v = dv + row * kv_width + kv * d;
      std::fill(to_k, to_k + d, 0.0F);
      std::fill(to_v, to_v + d, 0.0F);
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        AddInPlace(to_k, key_shares.data() + static_cast<size_t>(h) * share + row * d, d);
        AddInPlace(to_v, value_shares.data() + static_cast<size_t>(h) * share + row * d, d);
      }
    }
  });
}

}  // namespace pith::train
