#include "train/head.h"

#include <algorithm>

#include "kernels/backward.h"
#include "kernels/elementwise.h"
#include "train/blas.h"

namespace pith::train {

namespace {

// h with the rows zeroed where the adapter is off; h itself when it is on everywhere.
const float* AdapterRows(const float* h, int64_t rows, int64_t width, std::span<const uint8_t> adapter,
                         std::vector<float>* copy) {
  if (std::all_of(adapter.begin(), adapter.end(), [](uint8_t on) { return on != 0; })) return h;
  copy->assign(h, h + rows * width);
  for (int64_t r = 0; r < rows; ++r) {
    if (adapter[static_cast<size_t>(r)] == 0) std::fill_n(copy->data() + r * width, width, 0.0F);
  }
  return copy->data();
}

// Calls body(begin, end) for pieces of the rows, in order.
template <class Body>
void ForChunks(int64_t rows, int64_t vocab, const Body& body) {
  const int64_t chunk = HeadChunk(vocab);
  for (int64_t begin = 0; begin < rows; begin += chunk) body(begin, std::min(rows, begin + chunk));
}

std::span<const uint8_t> Part(std::span<const uint8_t> adapter, int64_t begin, int64_t end) {
  return adapter.empty() ? adapter : adapter.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

// Logits to probabilities in place; scores of the labels.
void Probabilities(float* logits, int64_t vocab, float scale, std::span<const int32_t> labels, float* log_probs,
                   float* entropies, ThreadPool& pool) {
  pool.Run(static_cast<int64_t>(labels.size()), [&](int64_t i, int) {
    float* row = logits + i * vocab;
    const auto at = static_cast<size_t>(i);
    const float label_logit = scale * row[labels[at]];
    const SoftmaxStats stats = SoftmaxWithStats(row, vocab, scale);
    log_probs[i] = label_logit - stats.log_sum;
    entropies[i] = stats.entropy;
  });
}

// From d loss / d logits to the states and to the matrix.
void MatrixBackward(const Head& head, const float* x, const float* dlogits, int64_t rows, float* dx, ThreadPool& pool) {
  const int64_t hidden = head.hidden;
  if (head.frozen != nullptr) {
    FrozenBackward({{head.frozen}}, {{dlogits}}, rows, dx, pool);
    return;
  }
  Gemm(pool, rows, hidden, head.vocab, 1.0F, {dlogits, head.vocab}, {head.weight, hidden}, 0.0F, dx, hidden);
  Gemm(pool, head.vocab, hidden, rows, 1.0F, {dlogits, head.vocab, Op::kTransposed}, {x, hidden}, 1.0F,
       head.weight_gradient, hidden);
}

}  // namespace

int64_t HeadChunk(int64_t vocab) { return std::clamp<int64_t>((int64_t{1} << 24) / vocab, 16, 1024); }

void HeadLogits(const Head& head, const float* h, int64_t rows, std::span<const uint8_t> adapter, float* logits,
                ThreadPool& pool) {
  if (rows == 0) return;
  if (head.frozen != nullptr) {
    FrozenForward({{head.frozen}}, h, rows, {{logits}}, pool);
  } else {
    Gemm(pool, rows, head.vocab, head.hidden, 1.0F, {h, head.hidden}, {head.weight, head.hidden, Op::kTransposed}, 0.0F,
         logits, head.vocab);
  }
  if (head.rank == 0) return;
  std::vector<float> copy;
  const float* x = AdapterRows(h, rows, head.hidden, adapter, &copy);
  std::vector<float> inner(static_cast<size_t>(rows * head.rank));
  Gemm(pool, rows, head.rank, head.hidden, 1.0F, {x, head.hidden}, {head.a, head.hidden, Op::kTransposed}, 0.0F,
       inner.data(), head.rank);
  Gemm(pool, rows, head.vocab, head.rank, head.scaling, {inner.data(), head.rank}, {head.b, head.rank, Op::kTransposed},
       1.0F, logits, head.vocab);
}

void HeadScores(const Head& head, const float* h, std::span<const int32_t> labels, std::span<const uint8_t> adapter,
                TokenScores* scores, ThreadPool& pool, float temperature) {
  const float scale = 1.0F / temperature;
  const auto rows = static_cast<int64_t>(labels.size());
  scores->log_probs.resize(labels.size());
  scores->entropies.resize(labels.size());
  std::vector<float> logits(static_cast<size_t>(std::min(rows, HeadChunk(head.vocab)) * head.vocab));
  ForChunks(rows, head.vocab, [&](int64_t begin, int64_t end) {
    HeadLogits(head, h + begin * head.hidden, end - begin, Part(adapter, begin, end), logits.data(), pool);
    Probabilities(logits.data(), head.vocab, scale,
                  labels.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                  scores->log_probs.data() + begin, scores->entropies.data() + begin, pool);
  });
}

void HeadBackward(const Head& head, const float* h, std::span<const int32_t> labels, std::span<const float> weights,
                  std::span<const uint8_t> adapter, TokenScores* scores, float* dh, ThreadPool& pool,
                  float temperature) {
  const float scale = 1.0F / temperature;
  const auto rows = static_cast<int64_t>(labels.size());
  const int64_t hidden = head.hidden;
  TokenScores own;
  if (scores == nullptr) scores = &own;
  scores->log_probs.resize(labels.size());
  scores->entropies.resize(labels.size());
  std::vector<float> logits(static_cast<size_t>(std::min(rows, HeadChunk(head.vocab)) * head.vocab));
  std::vector<float> inner, dinner, copy;
  ForChunks(rows, head.vocab, [&](int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    const auto first = static_cast<size_t>(begin);
    const float* x = h + begin * hidden;
    float* dx = dh + begin * hidden;
    HeadLogits(head, x, n, Part(adapter, begin, end), logits.data(), pool);
    Probabilities(logits.data(), head.vocab, scale, labels.subspan(first, static_cast<size_t>(n)),
                  scores->log_probs.data() + begin, scores->entropies.data() + begin, pool);
    // d loss / d logits = weight / temperature * (p - onehot).
    pool.Run(n, [&](int64_t i, int) {
      const auto at = first + static_cast<size_t>(i);
      float* row = logits.data() + i * head.vocab;
      const float weight = scale * weights[at];
      ScaleInPlace(row, weight, head.vocab);
      row[labels[at]] -= weight;
    });
    const float* dlogits = logits.data();
    MatrixBackward(head, x, dlogits, n, dx, pool);
    if (head.rank == 0) return;
    const int64_t rank = head.rank;
    const std::span<const uint8_t> on = Part(adapter, begin, end);
    const float* adapted = AdapterRows(x, n, hidden, on, &copy);
    inner.resize(static_cast<size_t>(n * rank));
    dinner.resize(static_cast<size_t>(n * rank));
    Gemm(pool, n, rank, hidden, 1.0F, {adapted, hidden}, {head.a, hidden, Op::kTransposed}, 0.0F, inner.data(), rank);
    Gemm(pool, head.vocab, rank, n, head.scaling, {dlogits, head.vocab, Op::kTransposed}, {inner.data(), rank}, 1.0F,
         head.b_gradient, rank);
    Gemm(pool, n, rank, head.vocab, head.scaling, {dlogits, head.vocab}, {head.b, rank}, 0.0F, dinner.data(), rank);
    for (size_t r = 0; r < on.size(); ++r) {
      if (on[r] == 0) std::fill_n(dinner.data() + r * static_cast<size_t>(rank), rank, 0.0F);
    }
    Gemm(pool, rank, hidden, n, 1.0F, {dinner.data(), rank, Op::kTransposed}, {adapted, hidden}, 1.0F, head.a_gradient,
         hidden);
    Gemm(pool, n, hidden, rank, 1.0F, {dinner.data(), rank}, {head.a, hidden}, 1.0F, dx, hidden);
  });
}

void HeadBackwardOfLogits(const Head& head, const float* h, int64_t rows,
                          const std::function<void(int64_t first, int64_t count, float* logits)>& gradient, float* dh,
                          ThreadPool& pool) {
  std::vector<float> logits(static_cast<size_t>(std::min(rows, HeadChunk(head.vocab)) * head.vocab));
  ForChunks(rows, head.vocab, [&](int64_t begin, int64_t end) {
    const float* x = h + begin * head.hidden;
    HeadLogits(head, x, end - begin, {}, logits.data(), pool);
    gradient(begin, end - begin, logits.data());
    MatrixBackward(head, x, logits.data(), end - begin, dh + begin * head.hidden, pool);
  });
}

}  // namespace pith::train
