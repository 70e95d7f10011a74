#include "kernels/float_matmul.h"

#include "kernels/elementwise.h"
#include "kernels/kernel_test.h"
#include "kernels/reference.h"

namespace pith {
namespace {

using FloatMatmulTest = KernelTest;

struct Problem {
  int64_t m, n, k;
  FloatType type;
  std::vector<float> x, w;
  std::vector<uint16_t> bits;

  Problem(int64_t m_in, int64_t n_in, int64_t k_in, FloatType type_in, uint64_t seed = 1)
      : m(m_in), n(n_in), k(k_in), type(type_in), x(RandomFloats(m * k, seed)), w(RandomFloats(n * k, seed + 1)) {
    bits.resize(w.size());
    ConvertToBF16(w.data(), n * k, bits.data());
    if (type == FloatType::kBF16) ConvertBF16(bits.data(), n * k, w.data());
  }
  FloatMatrix weights() const {
    return {type, type == FloatType::kF32 ? static_cast<const void*>(w.data()) : bits.data(), n, k};
  }
  std::vector<float> Run() const {
    std::vector<float> out(static_cast<size_t>(m * n));
    FloatMatmul(x.data(), k, m, weights(), 0, n, 1.0f, false, out.data(), n);
    return out;
  }
};

TEST_P(FloatMatmulTest, MatchesReferenceOverOddShapes) {
  const int64_t shapes[][3] = {{1, 1, 1},     {1, 3, 2},    {2, 5, 7},     {3, 8, 16},    {4, 9, 17},
                               {5, 11, 33},   {6, 7, 64},   {7, 13, 65},   {1, 37, 896},  {13, 10, 100},
                               {66, 6, 48},   {2, 3, 1024}, {9, 16, 1025}, {70, 7, 1500}, {1, 8, 4864},
                               {17, 5, 2100}, {1, 129, 8},  {8, 31, 8},    {10, 40, 0}};
  for (const auto& [m, n, k] : shapes) {
    for (const FloatType type : {FloatType::kF32, FloatType::kBF16}) {
      for (const bool accumulate : {false, true}) {
        const Problem p(m, n, k, type);
        const int64_t x_stride = k, out_stride = n + 3;
        auto got = RandomFloats(m * out_stride, 9), want = got;
        const auto before = got;
        const float alpha = accumulate ? 0.75f : 1.0f;
        FloatMatmul(p.x.data(), x_stride, m, p.weights(), 0, n, alpha, accumulate, got.data(), out_stride);
        reference::FloatMatmul(p.x.data(), x_stride, m, p.weights(), 0, n, alpha, accumulate, want.data(), out_stride);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < out_stride; ++j) {
            const size_t at = static_cast<size_t>(i * out_stride + j);
            if (j >= n) {
              ASSERT_EQ(got[at], before[at]) << "wrote beyond the row";
              continue;
            }
            double size = 0.0;
            for (int64_t c = 0; c < k; ++c) {
              size += std::abs(static_cast<double>(p.x[static_cast<size_t>(i * k + c)]) *
                               p.w[static_cast<size_t>(j * k + c)]);
            }
            // At most k / 4 + 4 roundings (two each without FMA) on the way of a product into the sum; 3 after it.
            const double tolerance = kFloatEps * ((static_cast<double>(k) / 2 + 8) * size + 3 * std::abs(before[at]));
            ASSERT_NEAR(got[at], want[at], tolerance) << m << "x" << n << "x" << k << " at " << i << "," << j;
          }
        }
      }
    }
  }
}

TEST_P(FloatMatmulTest, ElementDoesNotDependOnBatchRangeOrStride) {
  for (const int64_t k : {5, 8, 130, 896, 1030, 2500}) {
    for (const FloatType type : {FloatType::kF32, FloatType::kBF16}) {
      const Problem p(67, 29, k, type, 21);
      const auto whole = p.Run();
      for (const int64_t rows : {1, 2, 3, 4, 5, 9, 64}) {
        for (const int64_t first : {int64_t{0}, int64_t{3}, p.m - rows}) {
          for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 29}, {1, 2}, {7, 19}, {28, 29}, {5, 5}}) {
            const int64_t stride = k + 5;
            std::vector<float> x(static_cast<size_t>(rows * stride + 1));
            for (int64_t i = 0; i < rows; ++i) {
              std::copy_n(p.x.data() + (first + i) * k, k, x.data() + 1 + i * stride);
            }
            std::vector<float> out(static_cast<size_t>(rows * p.n), -1.0f);
            FloatMatmul(x.data() + 1, stride, rows, p.weights(), begin, end, 1.0f, false, out.data(), p.n);
            for (int64_t i = 0; i < rows; ++i) {
              for (int64_t n = 0; n < p.n; ++n) {
                const float got = out[static_cast<size_t>(i * p.n + n)];
                if (n < begin || n >= end) {
                  ASSERT_EQ(got, -1.0f);
                } else {
                  ASSERT_EQ(Bits(got), Bits(whole[static_cast<size_t>((first + i) * p.n + n)]))
                      << "k " << k << " rows " << rows << " range " << begin << ".." << end;
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(FloatMatmulTest, NanReachesOnlyItsOwnOutputs) {
  Problem p(6, 12, 70, FloatType::kF32);
  p.w[static_cast<size_t>(5 * 70 + 69)] = std::nanf("");
  const auto out = p.Run();
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t n = 0; n < p.n; ++n) EXPECT_EQ(std::isnan(out[static_cast<size_t>(i * p.n + n)]), n == 5);
  }
}

PITH_INSTANTIATE_PER_TARGET(FloatMatmulTest);

}  // namespace
}  // namespace pith
