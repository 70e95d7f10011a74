// The LM head in chunks, and frozen matrices in both forms, against their definitions.
#include "train/head.h"

#include <cmath>

#include "base/random.h"
#include "train/frozen_linear.h"
#include "train_test.h"

namespace pith::train {
namespace {

std::vector<float> RandomFloats(int64_t n, uint64_t stream, float size = 1.0F) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = size * static_cast<float>(2.0 * RandomUniform(9, stream, i) - 1.0);
  }
  return values;
}

// out[m, n] = a[m, k] * b[n, k]^T in double.
std::vector<float> TimesTransposed(const std::vector<float>& a, const std::vector<float>& b, int64_t m, int64_t n,
                                   int64_t k) {
  std::vector<float> out(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t c = 0; c < k; ++c) {
        sum += static_cast<double>(a[static_cast<size_t>(i * k + c)]) *
               static_cast<double>(b[static_cast<size_t>(j * k + c)]);
      }
      out[static_cast<size_t>(i * n + j)] = static_cast<float>(sum);
    }
  }
  return out;
}

TEST(Head, ChunksEqualTheDefinition) {
  ThreadPool pool(2);
  const int64_t vocab = 400000;  // chunks of 41 rows
  const int64_t hidden = 4;
  const int64_t rows = 50;
  ASSERT_EQ(HeadChunk(vocab), 41);
  const auto weight = RandomFloats(vocab * hidden, 1, 2.0F);
  const auto h = RandomFloats(rows * hidden, 2);
  std::vector<float> weight_gradient(weight.size(), 0.0F);
  Head head;
  head.vocab = vocab;
  head.hidden = hidden;
  head.weight = weight.data();
  head.weight_gradient = weight_gradient.data();
  std::vector<int32_t> labels(rows);
  std::vector<float> weights(rows);
  for (size_t i = 0; i < labels.size(); ++i) {
    labels[i] = static_cast<int32_t>(RandomBits(1, 1, i) % vocab);
    weights[i] = i == 3 ? 0.0F : 0.5F - 0.03F * static_cast<float>(i);
  }
  TokenScores scores;
  std::vector<float> dh(h.size());
  HeadBackward(head, h.data(), labels, weights, {}, &scores, dh.data(), pool);

  std::vector<float> want_dh(h.size()), want_dw(weight.size()), want_log_probs, want_entropies;
  std::vector<double> dw(weight.size(), 0.0);
  for (int64_t i = 0; i < rows; ++i) {
    const auto at = static_cast<size_t>(i);
    std::vector<double> logits(static_cast<size_t>(vocab));
    double most = -1e9;
    for (int64_t v = 0; v < vocab; ++v) {
      double z = 0;
      for (int64_t c = 0; c < hidden; ++c) {
        z += static_cast<double>(h[static_cast<size_t>(i * hidden + c)]) *
             static_cast<double>(weight[static_cast<size_t>(v * hidden + c)]);
      }
      logits[static_cast<size_t>(v)] = z;
      most = std::max(most, z);
    }
    double sum = 0;
    for (const double z : logits) sum += std::exp(z - most);
    const double log_sum = most + std::log(sum);
    want_log_probs.push_back(static_cast<float>(logits[static_cast<size_t>(labels[at])] - log_sum));
    double entropy = 0;
    std::vector<double> row(static_cast<size_t>(hidden), 0.0);
    for (int64_t v = 0; v < vocab; ++v) {
      const double log_p = logits[static_cast<size_t>(v)] - log_sum;
      const double p = std::exp(log_p);
      entropy -= p * log_p;
      const double g = static_cast<double>(weights[at]) * (p - (v == labels[at] ? 1.0 : 0.0));
      for (int64_t c = 0; c < hidden; ++c) {
        row[static_cast<size_t>(c)] += g * static_cast<double>(weight[static_cast<size_t>(v * hidden + c)]);
        dw[static_cast<size_t>(v * hidden + c)] += g * static_cast<double>(h[static_cast<size_t>(i * hidden + c)]);
      }
    }
    want_entropies.push_back(static_cast<float>(entropy));
    for (int64_t c = 0; c < hidden; ++c)
      want_dh[static_cast<size_t>(i * hidden + c)] = static_cast<float>(row[static_cast<size_t>(c)]);
  }
  for (size_t i = 0; i < dw.size(); ++i) want_dw[i] = static_cast<float>(dw[i]);
  EXPECT_LT(RelativeError(scores.log_probs, want_log_probs), 1e-6);
  EXPECT_LT(RelativeError(scores.entropies, want_entropies), 1e-5);
  EXPECT_LT(RelativeError(dh, want_dh), 1e-5);
  EXPECT_LT(RelativeError(weight_gradient, want_dw), 1e-5);
  TokenScores alone;
  HeadScores(head, h.data(), labels, {}, &alone, pool);
  EXPECT_EQ(alone.log_probs, scores.log_probs);
  EXPECT_EQ(alone.entropies, scores.entropies);
}

// A label whose probability underflows still has a finite log-probability.
TEST(Head, UnlikelyLabelsStayFinite) {
  ThreadPool pool(1);
  const std::vector<float> weight = {300.0F, 0.0F, -300.0F};
  const std::vector<float> h = {1.0F};
  Head head;
  head.vocab = 3;
  head.hidden = 1;
  head.weight = weight.data();
  TokenScores scores;
  const std::vector<int32_t> labels = {2};
  HeadScores(head, h.data(), labels, {}, &scores, pool);
  EXPECT_FLOAT_EQ(scores.log_probs[0], -600.0F);
  EXPECT_FLOAT_EQ(scores.entropies[0], 0.0F);
}

// A packed linear with float scales; `codes` must outlive it.
Linear PackedLinear(int64_t rows, int64_t cols, int bits, int64_t group, std::vector<uint8_t>* codes) {
  codes->resize(static_cast<size_t>(rows * cols * bits / 8));
  for (size_t i = 0; i < codes->size(); ++i) (*codes)[i] = static_cast<uint8_t>(RandomBits(3, 3, i));
  std::vector<float> scales(static_cast<size_t>(rows * (cols / group)));
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01F * static_cast<float>(0.5 + RandomUniform(3, 4, i));
  kernels::PackedWeights packed;
  packed.rows = rows;
  packed.cols = cols;
  packed.bits = bits;
  packed.group = group;
  packed.data = codes->data();
  packed.scales_f32 = scales.data();
  Linear linear;
  linear.packed = std::make_unique<kernels::QuantMatrix>(packed);
  linear.rows = rows;
  linear.cols = cols;
  return linear;
}

std::vector<float> Dequantized(const Linear& linear) {
  std::vector<float> weights(static_cast<size_t>(linear.rows * linear.cols));
  for (int64_t r = 0; r < linear.rows; ++r) linear.packed->DequantizeRow(r, weights.data() + r * linear.cols);
  return weights;
}

struct PackedCase {
  int64_t rows, cols;
  int bits;
  int64_t group;
};

class FrozenPacked : public ::testing::TestWithParam<PackedCase> {};

TEST_P(FrozenPacked, ProductsEqualTheDequantizedMatrix) {
  const auto [rows, cols, bits, group] = GetParam();
  ThreadPool pool(2);
  std::vector<uint8_t> codes;
  Linear linear = PackedLinear(rows, cols, bits, group, &codes);
  linear.bias = RandomFloats(rows, 8);
  const std::vector<float> weights = Dequantized(linear);
  FrozenLinear frozen(linear);
  frozen.PrepareBackward(pool);
  const int64_t n = 21;
  const auto x = RandomFloats(n * cols, 1);
  std::vector<float> y(static_cast<size_t>(n * rows));
  FrozenForward({{&frozen}}, x.data(), n, {{y.data()}}, pool);
  auto want = TimesTransposed(x, weights, n, rows, cols);
  for (size_t i = 0; i < want.size(); ++i) want[i] += linear.bias[i % static_cast<size_t>(rows)];
  EXPECT_LT(RelativeError(y, want), 1e-4);  // inputs are rounded to 16 bits

  // Gradients: rounding of W^T to 8 bits in groups of 32.
  const auto dy = RandomFloats(n * rows, 2);
  std::vector<float> transposed(weights.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c)
      transposed[static_cast<size_t>(c * rows + r)] = weights[static_cast<size_t>(r * cols + c)];
  }
  const auto want_dx = TimesTransposed(dy, transposed, n, cols, rows);
  std::vector<float> dx(static_cast<size_t>(n * cols), 7.0F);
  FrozenBackward({{&frozen}}, {{dy.data()}}, n, dx.data(), pool);
  EXPECT_LT(RelativeError(dx, want_dx), 7e-3);

  // Together with a float matrix of the same input: the sum.
  Linear plain;
  plain.rows = 5;
  plain.cols = cols;
  const auto plain_weights = RandomFloats(5 * cols, 6);
  plain.matrix = {FloatType::kF32, plain_weights.data(), 5, cols};
  FrozenLinear other(plain);
  std::vector<float> both(dx.size()), alone(dx.size());
  const auto other_dy = RandomFloats(n * 5, 7);
  FrozenBackward({{&other}}, {{other_dy.data()}}, n, alone.data(), pool);
  FrozenBackward({{&frozen, &other}}, {{dy.data(), other_dy.data()}}, n, both.data(), pool);
  for (size_t i = 0; i < both.size(); ++i) ASSERT_NEAR(both[i], dx[i] + alone[i], 1e-4F);
}

// Rows that are no multiple of 32, and more than one piece of kMaxCols.
INSTANTIATE_TEST_SUITE_P(Shapes, FrozenPacked,
                         ::testing::Values(PackedCase{96, 64, 4, 32}, PackedCase{77, 96, 4, 96},
                                           PackedCase{64, 64, 8, 32}, PackedCase{33000, 32, 8, 32}));

TEST(Frozen, BFloat16MatricesAreWidened) {
  ThreadPool pool(1);
  const std::vector<uint16_t> bits = {0x3F80, 0x4000, 0xC000, 0x3F00};  // 1 2 / -2 0.5
  Linear linear;
  linear.rows = 2;
  linear.cols = 2;
  linear.matrix = {FloatType::kBF16, bits.data(), 2, 2};
  const FrozenLinear frozen(linear);
  const std::vector<float> x = {3.0F, 5.0F};
  std::vector<float> y(2);
  FrozenForward({{&frozen}}, x.data(), 1, {{y.data()}}, pool);
  EXPECT_EQ(y, (std::vector<float>{13.0F, -3.5F}));
  std::vector<float> dx(2);
  FrozenBackward({{&frozen}}, {{x.data()}}, 1, dx.data(), pool);
  EXPECT_EQ(dx, (std::vector<float>{-7.0F, 8.5F}));
}

}  // namespace
}  // namespace pith::train
