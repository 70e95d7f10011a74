#include "kernels/elementwise.h"

#include <limits>

#include "kernels/kernel_test.h"
#include "kernels/reference.h"

namespace pith {
namespace {

const int64_t kLengths[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 200, 576, 896, 1003};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using ElementwiseTest = KernelTest;

TEST_P(ElementwiseTest, RmsNormMatchesReference) {
  for (const int64_t n : kLengths) {
    const auto x = RandomFloats(n, 1, 3.0), w = RandomFloats(n, 2);
    std::vector<float> got(x.size()), want(x.size());
    RmsNorm(x.data(), w.data(), n, 1e-6f, got.data());
    reference::RmsNorm(x.data(), w.data(), n, 1e-6f, want.data());
    // A sum of n squares in at least 4 lanes, half of whose relative error reaches the root; then six roundings.
    const double tolerance = (static_cast<double>(n) / 8.0 + 8.0) * kFloatEps;
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance * std::abs(want[i])) << n << " " << i;
  }
}

TEST_P(ElementwiseTest, RmsNormInPlaceUnalignedAndPerHeadGiveTheSameBits) {
  const int64_t n = 70, heads = 5;
  const auto x = RandomFloats(n * heads, 3), w = RandomFloats(n, 4);
  std::vector<float> want(x.size());
  for (int64_t h = 0; h < heads; ++h) RmsNorm(x.data() + h * n, w.data(), n, 1e-5f, want.data() + h * n);
  auto in_place = x;
  RmsNormHeads(in_place.data(), w.data(), heads, n, 1e-5f);
  EXPECT_TRUE(SameBits(in_place, want));
  for (int64_t shift = 1; shift < 16; ++shift) {
    std::vector<float> moved(x.size() + 16), weight(w.size() + 16);
    std::copy(x.begin(), x.end(), moved.begin() + shift);
    std::copy(w.begin(), w.end(), weight.begin() + 16 - shift);
    RmsNormHeads(moved.data() + shift, weight.data() + 16 - shift, heads, n, 1e-5f);
    EXPECT_TRUE(SameBits({moved.begin() + shift, moved.begin() + shift + n * heads}, want)) << shift;
  }
}

TEST_P(ElementwiseTest, RmsNormOfZerosIsZero) {
  const std::vector<float> x(37, 0.0f), w(37, 2.0f);
  std::vector<float> out(37, 1.0f);
  RmsNorm(x.data(), w.data(), 37, 1e-6f, out.data());
  EXPECT_EQ(out, x);
}

TEST_P(ElementwiseTest, RopeMatchesReference) {
  for (const int64_t head_dim : {2, 4, 6, 10, 16, 34, 62, 64, 80, 128, 130, 256}) {
    const int64_t heads = 3;
    std::vector<float> cos, sin;
    for (int64_t j = 0; j < head_dim / 2; ++j) {
      const double angle = 977.0 * std::pow(1e4, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
    auto got = RandomFloats(heads * head_dim, 5), want = got;
    const auto x = got;
    ApplyRope(got.data(), heads, head_dim, cos.data(), sin.data());
    reference::ApplyRope(want.data(), heads, head_dim, cos.data(), sin.data());
    for (int64_t i = 0; i < heads * head_dim; ++i) {
      const int64_t half = head_dim / 2, j = i % head_dim, other = j < half ? i + half : i - half;
      const double size = std::abs(x[static_cast<size_t>(i)]) + std::abs(x[static_cast<size_t>(other)]);
      EXPECT_NEAR(got[static_cast<size_t>(i)], want[static_cast<size_t>(i)], 3 * kFloatEps * size)
          << head_dim << " " << i;
    }
  }
}

TEST_P(ElementwiseTest, SwiGluMatchesReference) {
  for (const int64_t n : kLengths) {
    const auto gate = RandomFloats(n, 6, 12.0), up = RandomFloats(n, 7);
    std::vector<float> got(gate.size()), want(gate.size());
    SwiGlu(gate.data(), up.data(), n, got.data());
    reference::SwiGlu(gate.data(), up.data(), n, want.data());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i])) << gate[i];
  }
}

TEST_P(ElementwiseTest, SwiGluOverTheWholeRange) {
  std::vector<float> gate;
  for (double g = -120.0; g < 120.0; g += 0.0137) gate.push_back(static_cast<float>(g));
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> got(gate.size()), want(gate.size());
  SwiGlu(gate.data(), up.data(), static_cast<int64_t>(gate.size()), got.data());
  reference::SwiGlu(gate.data(), up.data(), static_cast<int64_t>(gate.size()), want.data());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], gate[i] > -87.0f ? 1e-6 * std::abs(want[i]) : 1.2e-36) << gate[i];
  }
  const std::vector<float> special = {kInfinity, kNan, -1e30f}, one(3, 1.0f);
  std::vector<float> out(3);
  SwiGlu(special.data(), one.data(), 3, out.data());
  EXPECT_EQ(out[0], kInfinity);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_EQ(out[2], 0.0f);
}

TEST_P(ElementwiseTest, SoftmaxMatchesReference) {
  for (const int64_t n : kLengths) {
    auto got = RandomFloats(n, 8, 10.0), want = got;
    Softmax(got.data(), n);
    reference::Softmax(want.data(), n);
    double sum = 0.0;
    for (size_t i = 0; i < got.size(); ++i) {
      // exp: 2e-7 for the polynomial and the rounded difference (|x| < 100: half a unit of 64); the sum, the division.
      EXPECT_NEAR(got[i], want[i], (4e-7 + 64 * kFloatEps + static_cast<double>(n) * kFloatEps) * want[i] + 1e-37);
      sum += got[i];
    }
    EXPECT_NEAR(sum, 1.0, 1e-5);
  }
}

TEST_P(ElementwiseTest, SoftmaxOfInfinitiesAndNan) {
  std::vector<float> x = {0.0f, -kInfinity, 0.0f};
  Softmax(x.data(), 3);
  EXPECT_EQ(x, (std::vector<float>{0.5f, 0.0f, 0.5f}));
  for (const float bad : {kNan, kInfinity}) {
    for (size_t at = 0; at < 20; ++at) {
      std::vector<float> row(20, 1.0f);
      row[at] = bad;
      Softmax(row.data(), 20);
      for (const float p : row) EXPECT_TRUE(std::isnan(p));
    }
  }
  std::vector<float> none(5, -kInfinity);
  Softmax(none.data(), 5);
  for (const float p : none) EXPECT_TRUE(std::isnan(p));
}

TEST_P(ElementwiseTest, SimpleArithmeticIsExact) {
  for (const int64_t n : kLengths) {
    const auto a = RandomFloats(n, 9), b = RandomFloats(n, 10);
    auto sum = a, scaled = a;
    AddInPlace(sum.data(), b.data(), n);
    ScaleInPlace(scaled.data(), 1.7f, n);
    float largest = 0.0f;
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(sum[i], a[i] + b[i]);
      EXPECT_EQ(scaled[i], a[i] * 1.7f);
      largest = std::max(largest, std::abs(a[i]));
    }
    EXPECT_EQ(AbsMax(a.data(), n), largest);
    auto with_nan = a;
    with_nan[static_cast<size_t>(n / 2)] = -kNan;
    EXPECT_TRUE(std::isnan(AbsMax(with_nan.data(), n)));
  }
  EXPECT_EQ(AbsMax(nullptr, 0), 0.0f);
}

TEST_P(ElementwiseTest, TailsDoNotTouchTheNeighbours) {
  for (const int64_t n : kLengths) {
    std::vector<float> x(static_cast<size_t>(n) + 16, 7.0f), y(static_cast<size_t>(n), 1.0f);
    AddInPlace(x.data(), y.data(), n);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(x[static_cast<size_t>(n) + i], 7.0f);
  }
}

TEST_P(ElementwiseTest, TableRowsAreExact) {
  for (const int64_t n : kLengths) {
    std::vector<int8_t> row;
    for (int64_t i = 0; i < n; ++i) row.push_back(static_cast<int8_t>(i * 37 % 256 - 128));
    std::vector<float> out(row.size());
    DequantizeI8(row.data(), 0.0371f, n, out.data());
    for (size_t i = 0; i < row.size(); ++i) EXPECT_EQ(out[i], static_cast<float>(row[i]) * 0.0371f);
  }
}

// The value of a half by its definition.
float HalfByDefinition(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return fraction != 0 ? kNan : static_cast<float>(sign) * kInfinity;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(sign * magnitude);
}

TEST_P(ElementwiseTest, AllHalfAndBF16Values) {
  std::vector<uint16_t> bits(65536 + 5);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  const int64_t n = static_cast<int64_t>(bits.size());
  std::vector<float> half(bits.size()), brain(bits.size());
  std::vector<uint16_t> back(bits.size());
  ConvertF16(bits.data(), n, half.data());
  ConvertBF16(bits.data(), n, brain.data());
  ConvertToBF16(brain.data(), n, back.data());
  for (size_t i = 0; i < bits.size(); ++i) {
    const float want = HalfByDefinition(bits[i]);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(half[i])) << i;
    } else {
      EXPECT_EQ(Bits(half[i]), Bits(want)) << i;
    }
    EXPECT_EQ(Bits(brain[i]), static_cast<uint32_t>(bits[i]) << 16);
    if (std::isnan(brain[i])) {
      EXPECT_EQ(back[i] & 0x7FC0, 0x7FC0) << i;
    } else {
      EXPECT_EQ(back[i], bits[i]);
    }
  }
}

TEST_P(ElementwiseTest, ToBF16RoundsToNearestEven) {
  const std::vector<float> x = {1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 1.0f + 0x1.1p-8f, 3.4e38f, -3.4028235e38f};
  std::vector<uint16_t> out(x.size());
  ConvertToBF16(x.data(), static_cast<int64_t>(x.size()), out.data());
  EXPECT_EQ(out, (std::vector<uint16_t>{0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80}));
}

PITH_INSTANTIATE_PER_TARGET(ElementwiseTest);

TEST(KernelTargetsTest, ListsAndSelects) {
  const auto targets = KernelTargets();
  ASSERT_FALSE(targets.empty());
#if defined(__x86_64__)
  EXPECT_EQ(targets.back(), "SSSE3");
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  EXPECT_EQ(std::count(targets.begin(), targets.end(), "AVX2"), has_avx2 ? 1 : 0);
#endif
  for (const auto& name : targets) {
    EXPECT_TRUE(SelectKernelTarget(name));
    EXPECT_EQ(ActiveKernelTarget(), name);
    EXPECT_EQ(KernelTargets(), targets);
    EXPECT_FALSE(SelectKernelTarget("no such target"));
    EXPECT_EQ(ActiveKernelTarget(), name);
  }
  EXPECT_TRUE(SelectKernelTarget(""));
  EXPECT_EQ(ActiveKernelTarget(), targets.front());
}

}  // namespace
}  // namespace pith
