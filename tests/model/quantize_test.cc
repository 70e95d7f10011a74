#include "model/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/targets.h"

namespace pith {
namespace {

// Weights with the heavy tails of real rows.
std::vector<float> Weights(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random) * (random() % 50 == 0 ? 5.0f : 1.0f);
  return values;
}

struct Quantized {
  std::vector<uint8_t> codes, zeros;
  std::vector<float> scales, minimums, values;
};

Quantized Quantize(const Quantizer& quantizer, const std::vector<float>& row, const float* importance = nullptr) {
  const auto cols = static_cast<int64_t>(row.size());
  const auto groups = static_cast<size_t>(quantizer.format.group == 0 ? 1 : cols / quantizer.format.group);
  Quantized result;
  result.codes.resize(row.size());
  result.values.resize(row.size());
  result.scales.resize(groups);
  result.zeros.resize(groups);
  result.minimums.resize(groups);
  QuantizedRow out;
  out.codes = result.codes.data();
  out.scales = result.scales.data();
  if (quantizer.format.zero == ZeroForm::kZeroPoint) out.zeros = result.zeros.data();
  if (quantizer.format.zero == ZeroForm::kMinimum) out.minimums = result.minimums.data();
  QuantizeRow(quantizer, row.data(), cols, importance, out);
  DequantizeRow(quantizer.format, cols, out, result.values.data());
  return result;
}

std::vector<Quantizer> AllQuantizers() {
  std::vector<Quantizer> all;
  for (const int bits : {4, 8}) {
    for (const int64_t group : {0, 32, 64, 128}) {
      for (const ZeroForm zero : {ZeroForm::kSymmetric, ZeroForm::kZeroPoint, ZeroForm::kMinimum}) {
        for (const DType scales : {DType::kF16, DType::kF32}) {
          all.push_back({{bits, group, zero, scales}, QuantMethod::kMinMax, 2.0});
          for (const QuantMethod method : {QuantMethod::kLp, QuantMethod::kBest}) {
            for (const double p : {1.0, 2.0, 2.5, 2.7, 4.0}) all.push_back({{bits, group, zero, scales}, method, p});
          }
        }
      }
    }
  }
  return all;
}

std::string Name(const Quantizer& q) {
  return "w" + std::to_string(q.format.bits) + "g" + std::to_string(q.format.group) + " zero " +
         std::to_string(static_cast<int>(q.format.zero)) + " " + DTypeName(q.format.scale_type) + " " +
         QuantMethodName(q.method) + " p " + std::to_string(q.p);
}

TEST(QuantizeTest, CodesAreInRangeAndScalesAreStorable) {
  const std::vector<float> row = Weights(384, 1);
  for (const Quantizer& quantizer : AllQuantizers()) {
    const Quantized result = Quantize(quantizer, row);
    for (const uint8_t code : result.codes) ASSERT_LT(code, 1 << quantizer.format.bits) << Name(quantizer);
    for (const uint8_t zero : result.zeros) ASSERT_LT(zero, 1 << quantizer.format.bits) << Name(quantizer);
    if (quantizer.format.scale_type != DType::kF16) continue;
    for (const std::vector<float>* values : {&result.scales, &result.minimums}) {
      for (const float value : *values) ASSERT_EQ(F16ToF32(F32ToF16(value)), value) << Name(quantizer);
    }
  }
}

// The definition of FastForward, written down in double.
TEST(QuantizeTest, SymmetricMinMaxFollowsTheDefinition) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> row = Weights(64, seed);
    const Quantizer quantizer{{4, 0, ZeroForm::kSymmetric, DType::kF32}, QuantMethod::kMinMax, 2.0};
    const Quantized result = Quantize(quantizer, row);
    const auto [low, high] = std::minmax_element(row.begin(), row.end());
    const float scale = std::max(std::fabs(*low) / 8.0f, std::fabs(*high) / 7.0f);
    ASSERT_EQ(result.scales[0], scale);
    for (size_t i = 0; i < row.size(); ++i) {
      const double q = std::clamp(std::nearbyint(static_cast<double>(row[i] / scale)), -8.0, 7.0);
      ASSERT_EQ(static_cast<double>(result.codes[i]) - 8.0, q) << "seed " << seed << " element " << i;
    }
  }
}

TEST(QuantizeTest, AsymmetricMinMaxFollowsTheDefinition) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> row = Weights(64, seed);
    const Quantizer quantizer{{4, 0, ZeroForm::kZeroPoint, DType::kF32}, QuantMethod::kMinMax, 2.0};
    const Quantized result = Quantize(quantizer, row);
    const auto [low, high] = std::minmax_element(row.begin(), row.end());
    const float scale = (*high - *low) / 15.0f;
    const float offset = std::nearbyint(*low / scale + 8.0f);
    ASSERT_EQ(result.scales[0], scale);
    ASSERT_EQ(static_cast<float>(result.zeros[0]), 8.0f - offset);
    for (size_t i = 0; i < row.size(); ++i) {
      const float q = std::clamp(std::nearbyint(row[i] / scale - offset), -8.0f, 7.0f);
      ASSERT_EQ(static_cast<float>(result.codes[i]) - 8.0f, q) << "seed " << seed << " element " << i;
    }
  }
}

TEST(QuantizeTest, MinMaxErrorIsAtMostHalfAStep) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    const std::vector<float> row = Weights(256, seed);
    for (const Quantizer& quantizer : AllQuantizers()) {
      if (quantizer.method != QuantMethod::kMinMax) continue;
      const Quantized result = Quantize(quantizer, row);
      const size_t group = quantizer.format.group == 0 ? row.size() : static_cast<size_t>(quantizer.format.group);
      // Rounding the scale (and minimum) to F16 moves the ends of the range by up to 2^-11 of it; a rounded zero point
      // moves one of them by up to half a step.
      const float levels = static_cast<float>((1 << quantizer.format.bits) - 1);
      const float slack = (quantizer.format.scale_type == DType::kF16 ? 2.0f * levels * 0x1p-11f : 1e-4f) +
                          (quantizer.format.zero == ZeroForm::kZeroPoint ? 0.5f : 0.0f);
      for (size_t i = 0; i < row.size(); ++i) {
        ASSERT_LE(std::fabs(result.values[i] - row[i]), (0.5f + slack) * result.scales[i / group]) << Name(quantizer);
      }
    }
  }
}

TEST(QuantizeTest, LpPicksTheBestOfItsGrid) {
  for (const double p : {1.0, 2.0, 2.5, 2.7, 3.0, 4.0}) {
    const std::vector<float> row = Weights(96, 5);
    const Quantizer quantizer{{4, 0, ZeroForm::kSymmetric, DType::kF16}, QuantMethod::kLp, p};
    const Quantized result = Quantize(quantizer, row);
    const double found = WeightedError(row.data(), result.values.data(), 96, nullptr, p);
    float largest = 0.0f;
    for (const float value : row) largest = std::max(largest, std::fabs(value));
    double best = 1e300;
    for (int i = 1; i <= 100; ++i) {
      const float scale = F16ToF32(F32ToF16(static_cast<float>(i) / 100.0f * largest / 7.0f));
      double error = 0.0;
      for (const float value : row) {
        const double q = std::clamp(std::nearbyint(static_cast<double>(value / scale)), -8.0, 7.0);
        error += std::pow(std::fabs(q * static_cast<double>(scale) - static_cast<double>(value)), p);
      }
      best = std::min(best, error);
    }
    EXPECT_LE(found, best * (1.0 + 1e-4)) << "p " << p;
    EXPECT_GE(found, best * (1.0 - 1e-4)) << "p " << p;
  }
}

std::vector<float> RandomImportance(size_t size) {
  std::mt19937 random(3);
  std::vector<float> importance(size);
  for (float& value : importance) value = std::exp(static_cast<float>(random() % 1000) / 200.0f);
  return importance;
}

// Only for squares: the length that is given back afterwards follows them, and undoes what a search by other powers
// won.
TEST(QuantizeTest, BestBeatsMinMaxAtItsOwnMeasure) {
  const std::vector<float> importance = RandomImportance(384);
  int compared = 0;
  for (const Quantizer& quantizer : AllQuantizers()) {
    if (quantizer.method != QuantMethod::kBest || quantizer.p != 2.0) continue;
    ++compared;
    Quantizer plain = quantizer;
    plain.method = QuantMethod::kMinMax;
    for (const float* weights : {static_cast<const float*>(nullptr), static_cast<const float*>(importance.data())}) {
      double best_sum = 0.0, base_sum = 0.0;
      for (uint32_t seed = 0; seed < 6; ++seed) {
        const std::vector<float> row = Weights(384, seed);
        const double best =
            WeightedError(row.data(), Quantize(quantizer, row, weights).values.data(), 384, weights, quantizer.p);
        const double base =
            WeightedError(row.data(), Quantize(plain, row, weights).values.data(), 384, weights, quantizer.p);
        best_sum += best;
        base_sum += base;
      }
      ASSERT_LT(best_sum, base_sum) << Name(quantizer) << (weights != nullptr ? " weighted" : "");
    }
  }
  EXPECT_GT(compared, 0);
}

// The projection of the approximation on the weights is the weights, also under importance.
TEST(QuantizeTest, BestDoesNotShrink) {
  const std::vector<float> importance = RandomImportance(384);
  const std::vector<float> row = Weights(384, 17);
  for (const Quantizer& quantizer : AllQuantizers()) {
    // p = 1 clips rows beyond the largest correction.
    if (quantizer.method != QuantMethod::kBest || quantizer.p < 2.0) continue;
    const size_t group = quantizer.format.group == 0 ? row.size() : static_cast<size_t>(quantizer.format.group);
    for (const bool weighted : {false, true}) {
      const Quantized result = Quantize(quantizer, row, weighted ? importance.data() : nullptr);
      for (size_t g = 0; g < row.size() / group; ++g) {
        double w = 0, x = 0, y = 0, xx = 0, xy = 0;
        for (size_t i = g * group; i < (g + 1) * group; ++i) {
          const double weight = weighted ? importance[i] : 1.0;
          w += weight;
          x += weight * row[i];
          y += weight * result.values[i];
          xx += weight * row[i] * row[i];
          xy += weight * row[i] * result.values[i];
        }
        if (quantizer.format.zero == ZeroForm::kMinimum) {
          xx -= x * x / w;
          xy -= x * y / w;
        }
        // Half a unit in the last place of an F16 scale; corrections end at a half more.
        ASSERT_NEAR(xy / xx, 1.0, 0x1p-11 + 1e-6) << Name(quantizer) << " group " << g << (weighted ? " weighted" : "");
      }
    }
  }
}

// Groups keep their range: no weight is further away than the rounding of a step.
TEST(QuantizeTest, BestDoesNotClipGroups) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> row = Weights(256, seed);
    for (const ZeroForm zero : {ZeroForm::kSymmetric, ZeroForm::kZeroPoint, ZeroForm::kMinimum}) {
      const Quantizer quantizer{{4, 32, zero, DType::kF32}, QuantMethod::kBest, 2.0};
      const Quantized result = Quantize(quantizer, row);
      for (size_t i = 0; i < row.size(); ++i) {
        // A corrected scale is a little longer over at most 15 steps; a rounded zero point half a step off.
        ASSERT_LE(std::fabs(result.values[i] - row[i]), 1.6f * std::fabs(result.scales[i / 32])) << "seed " << seed;
      }
    }
  }
}

TEST(QuantizeTest, BestBeatsTheGridClearlyInGroups) {
  const std::vector<float> row = Weights(4096, 9);
  const auto error = [&](QuantMethod method) {
    const Quantizer quantizer{{4, 32, ZeroForm::kSymmetric, DType::kF16}, method, 2.0};
    return WeightedError(row.data(), Quantize(quantizer, row).values.data(), 4096, nullptr, 2.0);
  };
  EXPECT_LT(error(QuantMethod::kLp), 0.95 * error(QuantMethod::kMinMax));
  EXPECT_LT(error(QuantMethod::kBest), 0.9 * error(QuantMethod::kMinMax));
}

// Weights that are numbers of the format already come back unchanged, with a scale of either sign.
TEST(QuantizeTest, BestRecoversNumbersOfTheFormat) {
  std::mt19937 random(11);
  for (const float scale : {0.0123f, -0.0123f}) {
    const float stored = F16ToF32(F32ToF16(scale));
    std::vector<float> row;
    for (int i = 0; i < 256; ++i) row.push_back(stored * static_cast<float>(static_cast<int>(random() % 16) - 8));
    for (int group = 0; group < 8; ++group) row[static_cast<size_t>(group) * 32] = stored * -8.0f;
    const Quantizer quantizer{{4, 32, ZeroForm::kSymmetric, DType::kF16}, QuantMethod::kBest, 2.0};
    EXPECT_EQ(Quantize(quantizer, row).values, row);
  }
}

TEST(QuantizeTest, ImportanceMovesTheScaleOfRows) {
  std::vector<float> row = Weights(512, 8);
  row[5] = 1.0f;  // an outlier that no input reads
  std::vector<float> importance(512, 1.0f);
  importance[5] = 0.0f;
  const Quantizer quantizer{{4, 0, ZeroForm::kSymmetric, DType::kF16}, QuantMethod::kBest, 2.0};
  const auto error = [&](const float* weights) {
    return WeightedError(row.data(), Quantize(quantizer, row, weights).values.data(), 512, importance.data(), 2.0);
  };
  EXPECT_LT(error(importance.data()), 0.7 * error(nullptr));
}

// The unit is a power of two: scaling the weights by one changes nothing but the scales.
TEST(QuantizeTest, ScalesWithPowersOfTwo) {
  const std::vector<float> row = Weights(128, 21);
  for (const Quantizer& quantizer : AllQuantizers()) {
    if (quantizer.format.scale_type != DType::kF32) continue;
    const Quantized base = Quantize(quantizer, row);
    for (const float factor : {0x1p-40f, 0x1p30f}) {
      std::vector<float> scaled = row;
      for (float& value : scaled) value *= factor;
      const Quantized result = Quantize(quantizer, scaled);
      ASSERT_EQ(result.codes, base.codes) << Name(quantizer) << " factor " << factor;
      ASSERT_EQ(result.scales[0], base.scales[0] * factor) << Name(quantizer);
    }
  }
}

TEST(QuantizeTest, OddRows) {
  std::vector<std::vector<float>> rows;
  rows.push_back(std::vector<float>(128, 0.0f));
  rows.push_back(std::vector<float>(128, 0.37f));
  rows.push_back(std::vector<float>(128, -2.0f));
  rows.push_back(std::vector<float>(128, 1e-9f));   // below the scales of F16
  rows.push_back(std::vector<float>(128, 3e-7f));   // among its subnormals
  rows.push_back(std::vector<float>(128, 6.0e4f));  // near its end
  rows.push_back(std::vector<float>(128, 0.0f));
  rows.back()[77] = -5.0f;
  rows.push_back(Weights(128, 2));
  for (float& value : rows.back()) value = std::fabs(value) + 0.5f;  // far from zero
  for (const Quantizer& quantizer : AllQuantizers()) {
    for (size_t r = 0; r < rows.size(); ++r) {
      const Quantized result = Quantize(quantizer, rows[r]);
      for (size_t i = 0; i < rows[r].size(); ++i) {
        ASSERT_LT(result.codes[i], 1 << quantizer.format.bits);
        ASSERT_TRUE(std::isfinite(result.values[i])) << Name(quantizer) << " row " << r;
        // kLp follows its grid, which may miss; the others stay within the weights' own size.
        if (quantizer.method == QuantMethod::kLp) continue;
        ASSERT_LE(std::fabs(result.values[i] - rows[r][i]),
                  std::fabs(rows[r][i]) * 0.51f + 1e-6f + (r == 6 ? 0.4f : 0.0f))
            << Name(quantizer) << " row " << r;
      }
    }
  }
}

TEST(QuantizeTest, TheSameOnEveryInstructionSet) {
  const std::vector<float> row = Weights(1024, 31);
  for (const Quantizer& quantizer : AllQuantizers()) {
    if (quantizer.p == 2.7) continue;  // logarithm and exponential are the library's, and may fuse operations
    SelectKernelTarget("");
    const Quantized base = Quantize(quantizer, row);
    for (const std::string& target : KernelTargets()) {
      ASSERT_TRUE(SelectKernelTarget(target));
      const Quantized result = Quantize(quantizer, row);
      SelectKernelTarget("");
      ASSERT_EQ(result.codes, base.codes) << Name(quantizer) << " on " << target;
      ASSERT_EQ(result.scales, base.scales) << Name(quantizer) << " on " << target;
    }
  }
}

TEST(QuantizeTest, PackCodes) {
  const std::vector<uint8_t> codes = {1, 2, 3, 4, 15, 0};
  std::vector<uint8_t> bytes(3);
  PackCodes(codes.data(), 6, 4, bytes.data());
  EXPECT_EQ(bytes, (std::vector<uint8_t>{0x21, 0x43, 0x0f}));
  std::vector<uint8_t> copy(6);
  PackCodes(codes.data(), 6, 8, copy.data());
  EXPECT_EQ(copy, codes);
}

TEST(QuantizeTest, BitsPerWeight) {
  EXPECT_DOUBLE_EQ((QuantFormat{4, 32, ZeroForm::kSymmetric, DType::kF16}.BitsPerWeight(896)), 4.5);
  EXPECT_DOUBLE_EQ((QuantFormat{4, 32, ZeroForm::kZeroPoint, DType::kF16}.BitsPerWeight(896)), 4.625);
  EXPECT_DOUBLE_EQ((QuantFormat{4, 32, ZeroForm::kMinimum, DType::kF32}.BitsPerWeight(896)), 6.0);
  EXPECT_DOUBLE_EQ((QuantFormat{4, 0, ZeroForm::kSymmetric, DType::kF16}.BitsPerWeight(64)), 4.25);
}

}  // namespace
}  // namespace pith
