// Error feedback against its definition: the plain column by column form of GPTQ with the inverse of H, in double.
#include "quant/gptq.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace pith::quant {
namespace {

double Uniform(uint64_t stream, uint64_t i) { return 2.0 * RandomUniform(11, stream, i) - 1.0; }

// H of correlated inputs with very different sizes.
std::vector<float> GramOf(int64_t n, int64_t rows) {
  std::vector<double> x(static_cast<size_t>(rows * n));
  for (int64_t r = 0; r < rows; ++r) {
    const double common = Uniform(1, static_cast<uint64_t>(r));
    for (int64_t i = 0; i < n; ++i) {
      const double own = Uniform(2, static_cast<uint64_t>(r * n + i));
      x[static_cast<size_t>(r * n + i)] = (common + own) * std::exp(Uniform(3, static_cast<uint64_t>(i)));
    }
  }
  std::vector<float> gram(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (int64_t r = 0; r < rows; ++r) sum += x[static_cast<size_t>(r * n + i)] * x[static_cast<size_t>(r * n + j)];
      gram[static_cast<size_t>(i * n + j)] = static_cast<float>(sum);
    }
  }
  return gram;
}

std::vector<double> InverseOf(std::vector<double> a, size_t n) {
  std::vector<double> inverse(n * n, 0.0);
  for (size_t i = 0; i < n; ++i) inverse[i * n + i] = 1.0;
  for (size_t c = 0; c < n; ++c) {
    const double pivot = a[c * n + c];
    for (size_t k = 0; k < n; ++k) {
      a[c * n + k] /= pivot;
      inverse[c * n + k] /= pivot;
    }
    for (size_t r = 0; r < n; ++r) {
      if (r == c) continue;
      const double factor = a[r * n + c];
      for (size_t k = 0; k < n; ++k) {
        a[r * n + k] -= factor * a[c * n + k];
        inverse[r * n + k] -= factor * inverse[c * n + k];
      }
    }
  }
  return inverse;
}

// GPTQ as optimal brain surgeon: round an input, spread its error over the rest by the inverse, remove it.
std::vector<uint8_t> PlainGptq(const std::vector<float>& gram, size_t n, double damping, const std::vector<float>& row,
                               double scale) {
  std::vector<size_t> left(n);
  std::iota(left.begin(), left.end(), size_t{0});
  std::stable_sort(left.begin(), left.end(), [&](size_t a, size_t b) { return gram[a * n + a] > gram[b * n + b]; });
  double mean = 0.0;
  for (size_t i = 0; i < n; ++i) mean += static_cast<double>(gram[i * n + i]) / static_cast<double>(n);
  std::vector<double> w(row.begin(), row.end());
  std::vector<uint8_t> codes(n);
  while (!left.empty()) {
    const size_t m = left.size();
    std::vector<double> h(m * m);
    for (size_t i = 0; i < m; ++i) {
      for (size_t j = 0; j < m; ++j) h[i * m + j] = static_cast<double>(gram[left[i] * n + left[j]]);
      h[i * m + i] += damping * mean;
    }
    const std::vector<double> inverse = InverseOf(std::move(h), m);
    const double value = w[left[0]];
    const double code = std::clamp(std::nearbyint(value / scale + 8.0), 0.0, 15.0);
    codes[left[0]] = static_cast<uint8_t>(code);
    const double error = value - (code - 8.0) * scale;
    for (size_t i = 0; i < m; ++i) w[left[i]] -= error / inverse[0] * inverse[i];
    left.erase(left.begin());
  }
  return codes;
}

TEST(ErrorFeedback, EqualsPlainGptqAndLowersTheErrorOfOutputs) {
  constexpr size_t kInputs = 64;
  const std::vector<float> gram = GramOf(kInputs, 200);
  const auto feedback = ErrorFeedback::Make(gram, kInputs, 0.01);
  ASSERT_TRUE(feedback.ok()) << feedback.error().message;
  const QuantFormat format{4, 0, ZeroForm::kSymmetric, DType::kF32};
  double plain_error = 0.0, feedback_error = 0.0;
  size_t different = 0;
  for (uint64_t r = 0; r < 20; ++r) {
    std::vector<float> row(kInputs), approximation(kInputs);
    for (size_t i = 0; i < kInputs; ++i) row[i] = static_cast<float>(Uniform(10 + r, i));
    std::vector<uint8_t> codes(kInputs);
    float scale = 0.0f;
    QuantizedRow out;
    out.codes = codes.data();
    out.scales = &scale;
    QuantizeRow({format, QuantMethod::kMinMax}, row.data(), kInputs, nullptr, out);
    DequantizeRow(format, kInputs, out, approximation.data());
    plain_error += QuadraticError(gram, kInputs, row.data(), approximation.data());
    (*feedback)->Round(format, row.data(), out);
    DequantizeRow(format, kInputs, out, approximation.data());
    feedback_error += QuadraticError(gram, kInputs, row.data(), approximation.data());
    const auto expected = PlainGptq(gram, kInputs, 0.01, row, static_cast<double>(scale));
    for (size_t i = 0; i < kInputs; ++i) different += codes[i] == expected[i] ? 0 : 1;
  }
  EXPECT_EQ(different, 0u);
  EXPECT_LT(feedback_error, 0.6 * plain_error);
}

TEST(ErrorFeedback, SearchesTheScalesToo) {
  constexpr int64_t kInputs = 64;
  const std::vector<float> gram = GramOf(kInputs, 200);
  const auto feedback = ErrorFeedback::Make(gram, kInputs, 0.01);
  std::vector<float> damped = gram;  // what is made small has the damping in it
  double mean = 0.0;
  for (int64_t i = 0; i < kInputs; ++i) mean += static_cast<double>(gram[static_cast<size_t>(i * 65)]) / kInputs;
  for (int64_t i = 0; i < kInputs; ++i) damped[static_cast<size_t>(i * 65)] += static_cast<float>(0.01 * mean);
  for (const QuantFormat& format :
       {QuantFormat{4, 0, ZeroForm::kSymmetric, DType::kF32}, QuantFormat{4, 0, ZeroForm::kSymmetric, DType::kF16},
        QuantFormat{4, 32, ZeroForm::kSymmetric, DType::kF16}}) {
    double kept = 0.0, searched = 0.0;
    for (uint64_t r = 0; r < 30; ++r) {
      std::vector<float> row(kInputs), approximation(kInputs), wanted(kInputs);
      for (size_t i = 0; i < kInputs; ++i) {
        row[i] = static_cast<float>(std::pow(Uniform(10 + r, i), 3.0));  // a few large ones, as rows have
      }
      std::vector<uint8_t> codes(kInputs);
      std::vector<float> scales(2);
      const QuantizedRow out{codes.data(), scales.data()};
      const auto error = [&] {
        DequantizeRow(format, kInputs, out, approximation.data());
        return QuadraticError(damped, kInputs, row.data(), approximation.data());
      };
      QuantizeRow({format, QuantMethod::kMinMax}, row.data(), kInputs, nullptr, out);
      const std::vector<float> start = scales;
      (*feedback)->Round(format, row.data(), out);
      const double with_given = error();
      scales = start;
      (*feedback)->RoundAndScale(format, row.data(), out, wanted.data());
      const double with_best = error();
      EXPECT_LE(with_best, with_given * (1 + 1e-4));
      kept += with_given;
      searched += with_best;
      for (size_t i = 0; i < kInputs; ++i) {  // the codes are those of the values, or kept while the scale was fitted
        EXPECT_LT(std::abs(std::clamp(wanted[i], 0.0f, 15.0f) - static_cast<float>(codes[i])), 1.0f);
        EXPECT_EQ(scales[0], format.scale_type == DType::kF16 ? F16ToF32(F32ToF16(scales[0])) : scales[0]);
      }
    }
    EXPECT_LT(searched, 0.9 * kept);
  }
  // A row of zeros stays one.
  const std::vector<float> row(kInputs);
  std::vector<uint8_t> codes(kInputs, 8);
  float scale = 0.0f;
  (*feedback)->RoundAndScale({4, 0, ZeroForm::kSymmetric, DType::kF16}, row.data(), {codes.data(), &scale});
  EXPECT_EQ(codes, std::vector<uint8_t>(kInputs, 8));
  EXPECT_EQ(scale, 0.0f);
}

TEST(ErrorFeedback, RefusesWhatIsNoGramMatrix) {
  EXPECT_EQ(ErrorFeedback::Make({1.0f, 0.0f}, 2, 0.01).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ErrorFeedback::Make({0.0f, 0.0f, 0.0f, 0.0f}, 2, 0.01).error().code, ErrorCode::kNumeric);
  EXPECT_EQ(ErrorFeedback::Make({1.0f, 2.0f, 2.0f, 1.0f}, 2, 0.01).error().code, ErrorCode::kNumeric);
  EXPECT_EQ(ErrorFeedback::Make({NAN, 0.0f, 0.0f, 1.0f}, 2, 0.01).error().code, ErrorCode::kNumeric);
}

}  // namespace
}  // namespace pith::quant
