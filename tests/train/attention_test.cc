// Attention with prefixes and several spans against its definition in double, rows beyond one block.
#include "train/attention.h"

#include <cmath>

#include "base/random.h"
#include "train_test.h"

namespace pith::train {
namespace {

constexpr AttentionShape kShape{.heads = 4, .kv_heads = 2, .head_dim = 8};

std::vector<float> RandomFloats(int64_t n, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(2.0 * RandomUniform(5, stream, i) - 1.0);
  return values;
}

// Loss = sum of out * weights, and its gradients, in double, one score at a time.
struct Reference {
  std::vector<double> out, dq, dk, dv;

  Reference(const AttentionInputs& in, const std::vector<float>& dout)
      : out(dout.size()), dq(dout.size()), dk(static_cast<size_t>(in.rows * kShape.kv_width())), dv(dk.size()) {
    const int64_t d = kShape.head_dim;
    const double scale = 1.0 / std::sqrt(static_cast<double>(d));
    for (const AttentionSpan& span : *in.spans) {
      for (int64_t h = 0; h < kShape.heads; ++h) {
        const int64_t kv = h / (kShape.heads / kShape.kv_heads);
        for (int64_t i = 0; i < span.length; ++i) {
          const int64_t row = span.begin + i;
          const int64_t seen = span.prefix_length + i + 1;
          const auto element = [&](const float* own, const float* prefix, int64_t j, int64_t c) {
            const float* base = j < span.prefix_length
                                    ? prefix + (span.prefix_begin + j) * kShape.kv_width()
                                    : own + (span.begin + j - span.prefix_length) * kShape.kv_width();
            return static_cast<double>(base[kv * d + c]);
          };
          const auto q_at = [&](int64_t c) { return static_cast<size_t>(row * kShape.q_width() + h * d + c); };
          std::vector<double> p(static_cast<size_t>(seen));
          double sum = 0;
          for (int64_t j = 0; j < seen; ++j) {
            double score = 0;
            for (int64_t c = 0; c < d; ++c) {
              score += static_cast<double>(in.q[q_at(c)]) * element(in.k, in.prefix_k, j, c);
            }
            sum += p[static_cast<size_t>(j)] = std::exp(score * scale);
          }
          std::vector<double> dp(p.size());
          double delta = 0;
          for (int64_t j = 0; j < seen; ++j) {
            const auto at = static_cast<size_t>(j);
            p[at] /= sum;
            for (int64_t c = 0; c < d; ++c) {
              out[q_at(c)] += p[at] * element(in.v, in.prefix_v, j, c);
              dp[at] += static_cast<double>(dout[q_at(c)]) * element(in.v, in.prefix_v, j, c);
            }
            delta += p[at] * dp[at];
          }
          for (int64_t j = 0; j < seen; ++j) {
            const auto at = static_cast<size_t>(j);
            const double ds = p[at] * (dp[at] - delta) * scale;
            const int64_t own = span.begin + j - span.prefix_length;
            for (int64_t c = 0; c < d; ++c) {
              dq[q_at(c)] += ds * element(in.k, in.prefix_k, j, c);
              if (j < span.prefix_length) continue;
              const auto kv_at = static_cast<size_t>(own * kShape.kv_width() + kv * d + c);
              dk[kv_at] += ds * static_cast<double>(in.q[q_at(c)]);
              dv[kv_at] += p[at] * static_cast<double>(dout[q_at(c)]);
            }
          }
        }
      }
    }
  }
};

std::vector<float> Rounded(const std::vector<double>& values) { return {values.begin(), values.end()}; }

TEST(Attention, ForwardAndBackwardEqualTheDefinition) {
  // A span without prefix, one of two blocks and more on the second prefix, one on the first, one of a single row.
  const std::vector<AttentionSpan> spans = {{0, 70, 0, 0}, {70, 150, 40, 33}, {220, 64, 0, 40}, {284, 1, 40, 33}};
  const int64_t rows = 285;
  const int64_t prefix_rows = 73;
  const auto q = RandomFloats(rows * kShape.q_width(), 1);
  const auto k = RandomFloats(rows * kShape.kv_width(), 2);
  const auto v = RandomFloats(rows * kShape.kv_width(), 3);
  const auto prefix_k = RandomFloats(prefix_rows * kShape.kv_width(), 4);
  const auto prefix_v = RandomFloats(prefix_rows * kShape.kv_width(), 5);
  const auto dout = RandomFloats(rows * kShape.q_width(), 6);
  AttentionInputs in;
  in.shape = kShape;
  in.spans = &spans;
  in.rows = rows;
  in.q = q.data();
  in.k = k.data();
  in.v = v.data();
  in.prefix_k = prefix_k.data();
  in.prefix_v = prefix_v.data();
  const Reference want(in, dout);
  std::vector<float> gradients[2];
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::vector<float> out(q.size()), sums(static_cast<size_t>(kShape.heads * rows));
    AttentionForward(in, out.data(), sums.data(), pool);
    EXPECT_LT(RelativeError(out, Rounded(want.out)), 1e-6);
    std::vector<float> dq(q.size()), dk(k.size()), dv(v.size());
    AttentionBackward(in, out.data(), sums.data(), dout.data(), dq.data(), dk.data(), dv.data(), pool);
    EXPECT_LT(RelativeError(dq, Rounded(want.dq)), 2e-6);
    EXPECT_LT(RelativeError(dk, Rounded(want.dk)), 2e-6);
    EXPECT_LT(RelativeError(dv, Rounded(want.dv)), 2e-6);
    auto& all = gradients[threads == 1 ? 0 : 1];
    all = dq;
    all.insert(all.end(), dk.begin(), dk.end());
    all.insert(all.end(), dv.begin(), dv.end());
  }
  EXPECT_EQ(gradients[0], gradients[1]);  // threads change nothing
}

}  // namespace
}  // namespace pith::train
