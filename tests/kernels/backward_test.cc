// Backward passes of the elementwise kernels against their definitions in double, at lengths around the vector width.
#include "kernels/backward.h"

#include <limits>

#include "kernels/kernel_test.h"

namespace pith {
namespace {

class Backward : public KernelTest {};

constexpr int64_t kLengths[] = {1, 3, 8, 15, 16, 17, 64, 131, 1000};

TEST_P(Backward, SoftmaxAndItsStatistics) {
  for (const int64_t n : kLengths) {
    for (const float scale : {1.0F, 0.125F}) {
      const auto x = RandomFloats(n, 1, 6.0);
      double sum = 0;
      for (const float v : x) sum += std::exp(static_cast<double>(v * scale));
      const double log_sum = std::log(sum);
      double entropy = 0;
      for (const float v : x) {
        const double log_p = static_cast<double>(v) * static_cast<double>(scale) - log_sum;
        entropy -= std::exp(log_p) * log_p;
      }
      auto p = x;
      const SoftmaxStats stats = SoftmaxWithStats(p.data(), n, scale);
      EXPECT_NEAR(static_cast<double>(stats.log_sum), log_sum, 1e-5) << n;
      EXPECT_NEAR(static_cast<double>(stats.entropy), entropy, 1e-5) << n;
      auto again = x;
      SoftmaxFromLogSum(again.data(), n, scale, stats.log_sum);
      for (size_t i = 0; i < x.size(); ++i) {
        const double want = std::exp(static_cast<double>(x[i]) * static_cast<double>(scale) - log_sum);
        // The exponent is a difference that float rounds: its error is relative to its terms.
        const double rounding = 2 * kFloatEps * (std::fabs(static_cast<double>(x[i])) + std::fabs(log_sum) + 20) + 1e-6;
        EXPECT_NEAR(static_cast<double>(p[i]), want, rounding * want);
        EXPECT_NEAR(static_cast<double>(again[i]), want, rounding * want);
      }
    }
  }
}

TEST_P(Backward, SoftmaxOfInfinities) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x(20, -infinity);
  x[4] = 2.0F;
  x[17] = 2.0F;
  const SoftmaxStats stats = SoftmaxWithStats(x.data(), 20, 1.0F);
  EXPECT_FLOAT_EQ(x[4], 0.5F);
  EXPECT_EQ(x[5], 0.0F);
  EXPECT_FLOAT_EQ(stats.entropy, std::log(2.0F));
  EXPECT_FLOAT_EQ(stats.log_sum, 2.0F + std::log(2.0F));
  for (const float bad : {infinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> y(20, 1.0F);
    y[3] = bad;
    EXPECT_TRUE(std::isnan(SoftmaxWithStats(y.data(), 20, 1.0F).log_sum)) << bad;
  }
  std::vector<float> nothing(5, -infinity);
  EXPECT_TRUE(std::isnan(SoftmaxWithStats(nothing.data(), 5, 1.0F).log_sum));
}

TEST_P(Backward, SoftmaxGradient) {
  for (const int64_t n : kLengths) {
    auto p = RandomFloats(n, 2);
    (void)SoftmaxWithStats(p.data(), n, 1.0F);
    auto dp = RandomFloats(n, 3);
    const auto before = dp;
    const float delta = Dot(p.data(), dp.data(), n);
    double want_delta = 0;
    for (size_t i = 0; i < p.size(); ++i) want_delta += static_cast<double>(p[i]) * static_cast<double>(dp[i]);
    EXPECT_NEAR(static_cast<double>(delta), want_delta, 1e-6);
    SoftmaxBackward(p.data(), dp.data(), n, delta, 0.25F);
    for (size_t i = 0; i < p.size(); ++i) {
      EXPECT_NEAR(dp[i], p[i] * (before[i] - delta) * 0.25F, 1e-7F);
    }
  }
}

TEST_P(Backward, DotsOfEightColumns) {
  for (const int64_t n : kLengths) {
    const auto a = RandomFloats(n, 8);
    const auto x = RandomFloats(8 * n, 9);
    float sums[8];
    DotColumns(a.data(), x.data(), n, sums);
    for (size_t k = 0; k < 8; ++k) {
      double want = 0, size = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        const double term = static_cast<double>(a[i]) * static_cast<double>(x[8 * i + k]);
        want += term;
        size += std::abs(term);
      }
      // Each of n terms is rounded twice at most, and every partial sum once.
      EXPECT_NEAR(static_cast<double>(sums[k]), want, (static_cast<double>(n) + 2) * 0x1p-24 * size) << n << " " << k;
    }
  }
}

TEST_P(Backward, RmsNormGradient) {
  const float eps = 1e-3F;
  for (const int64_t n : kLengths) {
    const auto x = RandomFloats(n, 4);
    const auto w = RandomFloats(n, 5);
    const auto dy = RandomFloats(n, 6);
    double squares = 0;
    double products = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      products += static_cast<double>(w[i]) * static_cast<double>(dy[i]) * static_cast<double>(x[i]);
    }
    const auto size = static_cast<double>(n);
    const double r = 1.0 / std::sqrt(squares / size + static_cast<double>(eps));
    std::vector<float> dx(x.size());
    std::vector<float> dw(x.size(), 2.0F);
    RmsNormBackward(x.data(), w.data(), dy.data(), n, eps, dx.data(), dw.data());
    auto in_place = dy;
    RmsNormBackward(x.data(), w.data(), in_place.data(), n, eps, in_place.data(), nullptr);
    EXPECT_TRUE(SameBits(in_place, dx));
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = r * static_cast<double>(w[i]) * static_cast<double>(dy[i]) -
                          static_cast<double>(x[i]) * r * r * r * products / size;
      EXPECT_NEAR(static_cast<double>(dx[i]), want, 1e-5 * (std::fabs(want) + r)) << n << " " << i;
      EXPECT_NEAR(static_cast<double>(dw[i]), 2.0 + static_cast<double>(dy[i]) * static_cast<double>(x[i]) * r, 1e-5);
    }
  }
}

TEST_P(Backward, SwiGluGradient) {
  for (const int64_t n : kLengths) {
    const auto gate = RandomFloats(n, 7, 4.0);
    const auto up = RandomFloats(n, 8);
    const auto dy = RandomFloats(n, 9);
    std::vector<float> dgate(gate.size()), dup(gate.size());
    SwiGluBackward(gate.data(), up.data(), dy.data(), n, dgate.data(), dup.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const auto g = static_cast<double>(gate[i]);
      const double s = 1.0 / (1.0 + std::exp(-g));
      const double slope = s * (1.0 + g * (1.0 - s));
      EXPECT_NEAR(static_cast<double>(dgate[i]), static_cast<double>(dy[i]) * static_cast<double>(up[i]) * slope, 2e-6);
      EXPECT_NEAR(static_cast<double>(dup[i]), static_cast<double>(dy[i]) * g * s, 2e-5);
    }
  }
}

TEST_P(Backward, AddScaledAddsToTheEnd) {
  for (const int64_t n : kLengths) {
    const auto x = RandomFloats(n, 10);
    auto y = RandomFloats(n, 11);
    const auto before = y;
    AddScaled(y.data(), -0.5F, x.data(), n);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], before[i] - 0.5F * x[i], 1e-6F);
  }
}

PITH_INSTANTIATE_PER_TARGET(Backward);

}  // namespace
}  // namespace pith
