// Runs each test once per vector target that this machine has, and makes repeatable data.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/targets.h"

namespace pith {

class KernelTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(SelectKernelTarget(GetParam())); }
  void TearDown() override { SelectKernelTarget(""); }
};

inline constexpr double kFloatEps = 0x1.0p-24;  // half a unit in the last place of 1.0f

// Roughly normal numbers (sum of 4 uniforms), a function of (seed, index).
inline std::vector<float> RandomFloats(int64_t n, uint64_t seed, double scale = 1.0) {
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t i = 0; i < x.size(); ++i) {
    double sum = -2.0;
    for (uint64_t j = 0; j < 4; ++j) sum += RandomUniform(seed, j, i);
    x[i] = static_cast<float>(sum * std::sqrt(3.0) * scale);
  }
  return x;
}

inline uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// Equality of bits, so that NaN equals itself and -0 differs from 0.
inline ::testing::AssertionResult SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (Bits(a[i]) != Bits(b[i])) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace pith

#define PITH_INSTANTIATE_PER_TARGET(suite)                                              \
  INSTANTIATE_TEST_SUITE_P(Target, suite, ::testing::ValuesIn(::pith::KernelTargets()), \
                           [](const auto& target) { return target.param; })
