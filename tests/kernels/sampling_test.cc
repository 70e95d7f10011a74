#include "kernels/sampling.h"

#include <algorithm>
#include <limits>

#include "kernels/kernel_test.h"
#include "kernels/reference.h"

namespace pith {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const int64_t kLengths[] = {1, 2, 3, 5, 15, 16, 17, 33, 63, 100, 1000, 1023, 1024, 1025, 2049, 5003};

using SamplingTest = KernelTest;

// Values with many ties.
std::vector<float> Coarse(int64_t n, uint64_t seed, double scale) {
  auto x = RandomFloats(n, seed, scale);
  for (float& v : x) v = std::round(v);
  return x;
}

TEST_P(SamplingTest, ArgMaxAndMaxTakeTheFirstOfEquals) {
  for (const int64_t n : kLengths) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const auto x = Coarse(n, seed, 2.0);
      EXPECT_EQ(ArgMax(x.data(), n), reference::ArgMax(x.data(), n)) << n;
      EXPECT_EQ(MaxValue(x.data(), n), *std::max_element(x.begin(), x.end()));
    }
    // Every position can win, among -inf as well.
    for (int64_t at = 0; at < n; at += std::max<int64_t>(1, n / 37)) {
      std::vector<float> x(static_cast<size_t>(n), -kInfinity);
      x[static_cast<size_t>(at)] = -3e38f;
      EXPECT_EQ(ArgMax(x.data(), n), at);
    }
    const std::vector<float> none(static_cast<size_t>(n), -kInfinity);
    EXPECT_EQ(ArgMax(none.data(), n), 0);
  }
}

TEST_P(SamplingTest, SumExpMatchesDouble) {
  for (const int64_t n : kLengths) {
    for (const float factor : {1.0f, 0.5f, 1.7f}) {
      const auto x = RandomFloats(n, 3, 5.0);
      const float shift = MaxValue(x.data(), n);
      double want = 0.0;
      for (const float v : x) want += std::exp((static_cast<double>(v) - shift) * factor);
      EXPECT_NEAR(SumExp(x.data(), n, shift, factor), want, 1e-6 * want) << n;
    }
  }
  std::vector<float> x(50, -kInfinity);
  x[20] = 2.0f;
  EXPECT_EQ(SumExp(x.data(), 50, 2.0f), 1.0);
}

TEST_P(SamplingTest, ExpRowMatchesDouble) {
  for (const int64_t n : kLengths) {
    const auto x = RandomFloats(n, 8, 12.0);
    const float shift = MaxValue(x.data(), n);
    std::vector<float> got(x.size());
    ExpRow(x.data(), n, shift, 0.7f, got.data());
    auto in_place = x;
    ExpRow(in_place.data(), n, shift, 0.7f, in_place.data());
    EXPECT_TRUE(SameBits(in_place, got));
    for (size_t i = 0; i < x.size(); ++i) {
      // The argument reaches 64 and is rounded twice; 0.7f itself is what is meant.
      const double want = std::exp((static_cast<double>(x[i]) - shift) * 0.7f);
      EXPECT_NEAR(got[i], want, (3e-7 + 2 * 64 * kFloatEps) * want + 1.2e-38) << x[i] - shift;
      if (x[i] == shift) {
        EXPECT_EQ(got[i], 1.0f);
      }
    }
  }
}

TEST_P(SamplingTest, ValidityFindsOneBadValueAnywhere) {
  for (const int64_t n : kLengths) {
    auto x = RandomFloats(n, 4);
    EXPECT_TRUE(AllFinite(x.data(), n));
    EXPECT_TRUE(LogitsValid(x.data(), n));
    for (int64_t at = 0; at < n; at += std::max<int64_t>(1, n / 53)) {
      const float before = x[static_cast<size_t>(at)];
      for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
        x[static_cast<size_t>(at)] = bad;
        EXPECT_FALSE(AllFinite(x.data(), n));
        EXPECT_EQ(LogitsValid(x.data(), n), bad == -kInfinity);
      }
      x[static_cast<size_t>(at)] = before;
    }
  }
  EXPECT_TRUE(AllFinite(nullptr, 0));
}

TEST_P(SamplingTest, TopKEqualsASort) {
  for (const int64_t n : kLengths) {
    for (const double scale : {0.7, 100.0}) {
      const auto x = Coarse(n, 5, scale);
      std::vector<Candidate> all;
      for (int64_t i = 0; i < n; ++i) all.push_back({static_cast<int32_t>(i), x[static_cast<size_t>(i)]});
      std::sort(all.begin(), all.end(), Before);
      for (const int64_t k :
           {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{7}, int64_t{50}, int64_t{1500}, n - 1, n, n + 5}) {
        std::vector<Candidate> got = {{-1, 1.0f}};
        TopK(x.data(), n, k, &got);
        const std::vector<Candidate> want(all.begin(), all.begin() + std::min(k, n));
        EXPECT_EQ(got, want) << "n " << n << " k " << k;
      }
    }
  }
}

TEST_P(SamplingTest, CollectKeepsIndexOrder) {
  for (const int64_t n : kLengths) {
    const auto x = Coarse(n, 6, 3.0);
    for (const float threshold : {-100.0f, 0.0f, 2.0f, 4.0f, 100.0f}) {
      std::vector<Candidate> got, want;
      CollectAtLeast(x.data(), n, threshold, &got);
      for (int64_t i = 0; i < n; ++i) {
        const float v = x[static_cast<size_t>(i)];
        if (v >= threshold) want.push_back({static_cast<int32_t>(i), v});
      }
      EXPECT_EQ(got, want);
    }
  }
}

PITH_INSTANTIATE_PER_TARGET(SamplingTest);

}  // namespace
}  // namespace pith
