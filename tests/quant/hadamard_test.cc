#include "quant/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pith::quant {
namespace {

TEST(Hadamard, RowsAreOrthogonalForTheSizesOfRealModels) {
  for (const int64_t n : {1, 2, 4, 12, 20, 28, 36, 64, 576, 896}) {
    const auto matrix = HadamardMatrix(n);
    ASSERT_TRUE(matrix.has_value()) << n;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i; j < n; ++j) {
        int64_t product = 0;
        for (int64_t k = 0; k < n; ++k) {
          const auto a = static_cast<int64_t>((*matrix)[static_cast<size_t>(i * n + k)]);
          ASSERT_EQ(std::abs(a), 1);
          product += a * (*matrix)[static_cast<size_t>(j * n + k)];
        }
        ASSERT_EQ(product, i == j ? n : 0) << n << ": rows " << i << " and " << j;
      }
    }
  }
}

TEST(Hadamard, NoneForSizesWithoutAConstruction) {
  for (const int64_t n : {0, -4, 3, 6, 10, 50, 92}) EXPECT_FALSE(HadamardMatrix(n).has_value()) << n;
}

TEST(Hadamard, RotationsAreOrthogonalAndFunctionsOfTheSeed) {
  for (const int64_t n : {64, 50}) {
    const Rotation rotation = MakeRotation(n, 7);
    EXPECT_EQ(rotation.description.starts_with("Hadamard"), n == 64) << rotation.description;
    EXPECT_EQ(rotation.matrix, MakeRotation(n, 7).matrix);
    EXPECT_NE(rotation.matrix, MakeRotation(n, 8).matrix);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double product = 0.0;
        for (int64_t k = 0; k < n; ++k) {
          product += static_cast<double>(rotation.matrix[static_cast<size_t>(i * n + k)]) *
                     static_cast<double>(rotation.matrix[static_cast<size_t>(j * n + k)]);
        }
        EXPECT_NEAR(product, i == j ? 1.0 : 0.0, 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace pith::quant
