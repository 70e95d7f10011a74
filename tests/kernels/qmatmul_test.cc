// The low-bit products against their definition, bit for bit, over odd shapes, all formats and all instruction sets.
#include "kernels/qmatmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/targets.h"

namespace pith::kernels {
namespace {

struct Format {
  int bits;
  int64_t group;  // 0 = per channel
  ZeroKind zero;
  bool f32;
};

// Random packed weights and the arrays that own them.
struct RandomWeights {
  std::vector<uint8_t> data, zero_points;
  std::vector<uint16_t> scales16, mins16;
  std::vector<float> scales32, mins32;
  PackedWeights packed;

  RandomWeights(int64_t rows, int64_t cols, const Format& format, uint64_t seed) {
    packed.rows = rows;
    packed.cols = cols;
    packed.bits = format.bits;
    packed.group = format.group == 0 ? cols : format.group;
    packed.zero = format.zero;
    data.resize(static_cast<size_t>(rows * cols * format.bits / 8));
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(RandomBits(seed, 0, i));
    const auto groups = static_cast<size_t>(rows * (cols / packed.group));
    for (size_t i = 0; i < groups; ++i) {
      // Halves with exponents around 2^-6, both signs.
      scales16.push_back(
          static_cast<uint16_t>(0x2400U + RandomBits(seed, 1, i) % 0x400U + (i % 3 == 0 ? 0x8000U : 0U)));
      mins16.push_back(static_cast<uint16_t>(0x2C00U + RandomBits(seed, 2, i) % 0x400U + (i % 2 == 0 ? 0x8000U : 0U)));
      scales32.push_back(static_cast<float>(RandomUniform(seed, 3, i)) * 0.02F - 0.01F);
      mins32.push_back(static_cast<float>(RandomUniform(seed, 4, i)) * 0.2F - 0.1F);
      zero_points.push_back(static_cast<uint8_t>(RandomBits(seed, 5, i) % (format.bits == 4 ? 16 : 256)));
    }
    packed.data = data.data();
    if (format.f32) {
      packed.scales_f32 = scales32.data();
      packed.mins_f32 = mins32.data();
    } else {
      packed.scales_f16 = scales16.data();
      packed.mins_f16 = mins16.data();
    }
    packed.zero_points = zero_points.data();
  }
};

std::vector<float> RandomActivations(int64_t rows, int64_t cols, uint64_t seed) {
  std::vector<float> x(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(RandomUniform(seed, 9, i) * 2 - 1);
    if (i % 97 == 0) x[i] *= 40.0F;  // outliers, as real activations have
  }
  return x;
}

bool HasFma(const std::string& target) { return target != "SSSE3" && target != "SCALAR"; }

class QuantMatMulTest : public ::testing::TestWithParam<Format> {};

TEST_P(QuantMatMulTest, EqualsDefinitionOnEveryTarget) {
  const Format format = GetParam();
  const struct {
    int64_t rows, cols, tokens;
  } shapes[] = {{1, 128, 1},   {16, 128, 1}, {17, 256, 1}, {5, 896, 2},   {48, 576, 3},
                {100, 128, 4}, {33, 640, 5}, {64, 256, 9}, {160, 896, 1}, {31, 4864, 1},
                {40, 1536, 7}, {18, 256, 6}, {33, 384, 8}, {48, 256, 10}, {20, 128, 11}};
  ThreadPool pool(2);
  for (const auto& shape : shapes) {
    if (format.group != 0 && shape.cols % format.group != 0) continue;
    const RandomWeights weights(shape.rows, shape.cols, format, 7);
    const QuantMatrix matrix(weights.packed);
    const auto x = RandomActivations(shape.tokens, shape.cols, 11);
    for (const ActivationBits bits : {ActivationBits::k16, ActivationBits::k8}) {
      for (const std::string& target : KernelTargets()) {
        ASSERT_TRUE(SelectKernelTarget(target));
        QuantActivations activations;
        activations.Quantize(x.data(), shape.tokens, shape.cols, shape.cols, bits, ScaleKindFor(matrix, bits),
                             format.bits, &pool);
        const int64_t ldo = shape.rows + 3;
        std::vector<float> got(static_cast<size_t>(shape.tokens * ldo), -7.0F);
        std::vector<float> want = got;
        const QuantProduct product{&matrix, &activations, got.data(), ldo};
        QuantMatMul({&product, 1}, pool);
        SelectKernelTarget("");
        QuantMatMulReference({&matrix, &activations, want.data(), ldo});
        float largest = 0;
        for (const float v : want) largest = std::max(largest, std::fabs(v));
        for (size_t i = 0; i < want.size(); ++i) {
          if (HasFma(target)) {
            ASSERT_EQ(got[i], want[i]) << "at " << i << " rows " << shape.rows << " cols " << shape.cols << " tokens "
                                       << shape.tokens << " target " << target;
          } else {
            // Without FMA each of the cols / 32 steps rounds once more.
            const int64_t roundings = shape.cols / 32 + 4;
            ASSERT_NEAR(got[i], want[i], largest * 0x1p-23F * static_cast<float>(roundings));
          }
        }
      }
      SelectKernelTarget("");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, QuantMatMulTest,
    ::testing::Values(Format{4, 32, ZeroKind::kSymmetric, false}, Format{4, 64, ZeroKind::kSymmetric, false},
                      Format{4, 128, ZeroKind::kSymmetric, false}, Format{4, 0, ZeroKind::kSymmetric, false},
                      Format{4, 32, ZeroKind::kZeroPoint, false}, Format{4, 128, ZeroKind::kZeroPoint, true},
                      Format{4, 0, ZeroKind::kZeroPoint, true}, Format{4, 32, ZeroKind::kMin, true},
                      Format{4, 32, ZeroKind::kMin, false}, Format{4, 0, ZeroKind::kMin, false},
                      Format{8, 32, ZeroKind::kSymmetric, false}, Format{8, 64, ZeroKind::kSymmetric, true},
                      Format{8, 128, ZeroKind::kZeroPoint, false}, Format{8, 0, ZeroKind::kSymmetric, false},
                      Format{8, 32, ZeroKind::kMin, true}, Format{4, 256, ZeroKind::kSymmetric, false},
                      Format{8, 256, ZeroKind::kZeroPoint, false}, Format{4, 448, ZeroKind::kMin, true}));

TEST(QuantMatMul, OneTokenEqualsManyAndAnyThreadCount) {
  for (const Format format : {Format{4, 32, ZeroKind::kSymmetric, false}, Format{4, 0, ZeroKind::kSymmetric, false},
                              Format{8, 32, ZeroKind::kSymmetric, false}}) {
    const RandomWeights weights(112, 896, format, 3);
    const QuantMatrix matrix(weights.packed);
    const auto x = RandomActivations(13, 896, 5);
    ThreadPool one(1);
    ThreadPool three(3);
    QuantActivations all;
    all.Quantize(x.data(), 13, 896, 896, ActivationBits::k16, ActivationScale::kPerToken, format.bits, &three);
    std::vector<float> together(13 * 112);
    const QuantProduct batch{&matrix, &all, together.data(), 112};
    QuantMatMul({&batch, 1}, three);
    for (int64_t t = 0; t < 13; ++t) {
      QuantActivations single;
      single.Quantize(x.data() + t * 896, 1, 896, 896, ActivationBits::k16, ActivationScale::kPerToken, format.bits,
                      nullptr);
      std::vector<float> alone(112);
      const QuantProduct product{&matrix, &single, alone.data(), 112};
      QuantMatMul({&product, 1}, one);
      EXPECT_EQ(0, std::memcmp(alone.data(), together.data() + t * 112, 112 * sizeof(float)))  // NOLINT
          << "token " << t;
    }
  }
}

TEST(QuantMatMul, NoOverflowAtTheLargestWidth) {
  // All weights at the extremes of their range against all activations at theirs: the largest sums that can occur.
  for (const int bits : {4, 8}) {
    const int64_t cols = kMaxCols;
    std::vector<uint8_t> data(static_cast<size_t>(2 * cols * bits / 8), 0);
    std::fill(data.begin() + cols * bits / 8, data.end(), uint8_t{255});  // row 0: lowest, row 1: highest
    const float scales[2] = {1.0F, 1.0F};
    const QuantMatrix matrix(
        {.rows = 2, .cols = cols, .bits = bits, .group = cols, .data = data.data(), .scales_f32 = scales});
    const double low = bits == 4 ? -8 : -128;
    const double high = bits == 4 ? 7 : 127;
    std::vector<float> x(static_cast<size_t>(3 * cols), 32639.0F);
    ThreadPool pool(2);
    for (const int64_t tokens : {1, 3}) {
      QuantActivations activations;
      activations.Quantize(x.data(), tokens, cols, cols, ActivationBits::k16, ActivationScale::kPerToken, bits, &pool);
      std::vector<float> out(static_cast<size_t>(2 * tokens));
      const QuantProduct product{&matrix, &activations, out.data(), 2};
      QuantMatMul({&product, 1}, pool);
      for (int64_t t = 0; t < tokens; ++t) {
        EXPECT_NEAR(out[static_cast<size_t>(2 * t)] / (low * 32639.0 * cols), 1.0, 1e-6);
        EXPECT_NEAR(out[static_cast<size_t>(2 * t + 1)] / (high * 32639.0 * cols), 1.0, 1e-6);
      }
    }
  }
}

// The extremes that saturate 8-bit multiply-add instructions when they are used carelessly: every integer sum must
// still be exact on every instruction set, for one token and many, alone in a register and not.
TEST(QuantMatMul, ExtremesAreExactOnEveryTarget) {
  constexpr int64_t kRows = 18;  // a whole tile and a part of one
  ThreadPool pool(2);
  for (const int bits : {4, 8}) {
    for (const int64_t cols : {int64_t{896}, kMaxCols}) {
      std::vector<uint8_t> data(static_cast<size_t>(kRows * cols * bits / 8));
      const auto row_bytes = static_cast<size_t>(cols * bits / 8);
      const uint8_t patterns[] = {0x00, 0xFF, 0xF0, 0x0F, 0x80, 0x7F};
      for (size_t i = 0; i < data.size(); ++i) {
        const size_t row = i / row_bytes;
        data[i] = patterns[(row + (row > 8 ? i % 2 : 0)) % std::size(patterns)];
      }
      for (const int64_t group : {int64_t{32}, cols}) {
        // One in half precision, which the tight loops read.
        const std::vector<uint16_t> scales(static_cast<size_t>(kRows * (cols / group)), uint16_t{0x3C00});
        const QuantMatrix matrix({.rows = kRows,
                                  .cols = cols,
                                  .bits = bits,
                                  .group = group,
                                  .data = data.data(),
                                  .scales_f16 = scales.data()});
        for (const auto& [tokens, first] :
             {std::pair<int64_t, int64_t>{1, 0}, {1, 1}, {1, 2}, {2, 0}, {6, 0}, {7, 0}, {13, 0}}) {
          // All highest, all lowest, alternating.
          std::vector<float> x(static_cast<size_t>(tokens * cols));
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t k = 0; k < cols; ++k) {
              const int64_t kind = (t + first) % 3;
              const bool negative = kind == 1 || (kind == 2 && k % 2 == 1);
              x[static_cast<size_t>(t * cols + k)] = negative ? -32639.0F : 32639.0F;
            }
          }
          for (const ActivationBits activation_bits : {ActivationBits::k16, ActivationBits::k8}) {
            for (const std::string& target : KernelTargets()) {
              ASSERT_TRUE(SelectKernelTarget(target));
              QuantActivations activations;
              activations.Quantize(x.data(), tokens, cols, cols, activation_bits, ScaleKindFor(matrix, activation_bits),
                                   bits, &pool);
              std::vector<float> got(static_cast<size_t>(tokens * kRows)), want(got.size());
              const QuantProduct product{&matrix, &activations, got.data(), kRows};
              QuantMatMul({&product, 1}, pool);
              SelectKernelTarget("");
              QuantMatMulReference({&matrix, &activations, want.data(), kRows});
              for (size_t i = 0; i < want.size(); ++i) {
                const float margin = HasFma(target) ? 0.0F : std::fabs(want[i]) * 1e-4F + 1e-3F;
                ASSERT_NEAR(got[i], want[i], margin)
                    << bits << " bits, group " << group << ", " << cols << " inputs, token "
                    << i / static_cast<size_t>(kRows) << " of " << tokens << ", row " << i % static_cast<size_t>(kRows)
                    << ", " << target;
              }
            }
          }
        }
      }
    }
  }
}

TEST(QuantActivations, SixteenBitErrorIsHalfAStep) {
  const auto x = RandomActivations(2, 896, 21);
  QuantActivations one;
  QuantActivations two;
  one.Quantize(x.data(), 1, 896, 896, ActivationBits::k16, ActivationScale::kPerToken, 4, nullptr);
  two.Quantize(x.data(), 2, 896, 896, ActivationBits::k16, ActivationScale::kPerToken, 4, nullptr);
  const float scale = one.TokenScale(0);
  for (int64_t k = 0; k < 896; ++k) {
    const int q = one.Value(0, k);
    EXPECT_LE(std::abs(q), 32639);
    EXPECT_NEAR(static_cast<double>(q) * scale, x[static_cast<size_t>(k)], 0.5001 * scale);
    EXPECT_EQ(two.Value(0, k), q);  // the digits differ, the integers do not
  }
}

TEST(QuantActivations, ZeroAndNonFiniteRows) {
  std::vector<float> x(3 * 128, 0.0F);
  x[128 + 5] = std::numeric_limits<float>::quiet_NaN();
  x[256 + 5] = std::numeric_limits<float>::infinity();
  const RandomWeights weights(16, 128, {4, 32, ZeroKind::kSymmetric, false}, 1);
  const QuantMatrix matrix(weights.packed);
  ThreadPool pool(1);
  for (const ActivationBits bits : {ActivationBits::k16, ActivationBits::k8}) {
    QuantActivations activations;
    activations.Quantize(x.data(), 3, 128, 128, bits, ScaleKindFor(matrix, bits), 4, nullptr);
    std::vector<float> out(3 * 16);
    const QuantProduct product{&matrix, &activations, out.data(), 16};
    QuantMatMul({&product, 1}, pool);
    for (int r = 0; r < 16; ++r) {
      EXPECT_EQ(out[static_cast<size_t>(r)], 0.0F);
      EXPECT_FALSE(std::isfinite(out[static_cast<size_t>(16 + r)]));
      EXPECT_FALSE(std::isfinite(out[static_cast<size_t>(32 + r)]));
    }
  }
}

}  // namespace
}  // namespace pith::kernels
