#include "model/repack.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/qmatmul.h"
#include "model/safetensors.h"
#include "support/data.h"

namespace pith {
namespace {

// Blocks of random bytes whose F16 fields are finite, of either sign, subnormal or zero at times.
std::vector<uint8_t> RandomBlocks(DType type, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  const int64_t size = DTypeBlock(type).bytes;
  std::vector<uint8_t> bytes(static_cast<size_t>(count * size));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  const bool two_scales = type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ4_K || type == DType::kQ5_K;
  for (int64_t block = 0; block < count; ++block) {
    for (int field = 0; field < (two_scales ? 2 : 1); ++field) {
      auto half = static_cast<uint16_t>(random());
      if ((half & 0x7c00) == 0x7c00) half = static_cast<uint16_t>(half & ~0x4000);  // no infinity, no NaN
      if (random() % 16 == 0) half = static_cast<uint16_t>(half & 0x83ff);          // subnormal or zero
      std::memcpy(bytes.data() + block * size + 2 * field, &half, 2);
    }
  }
  return bytes;
}

// Repacks a tensor and reads it back through the matrix that the kernels multiply with.
void ExpectExact(const Tensor& tensor) {
  const auto format = ExactFormat(tensor.type);
  ASSERT_TRUE(format.has_value());
  const int64_t rows = tensor.rows();
  const int64_t cols = tensor.cols();
  const int64_t groups = cols / format->group;
  std::vector<uint8_t> codes(static_cast<size_t>(cols));
  std::vector<uint8_t> packed(static_cast<size_t>(rows * cols * format->bits / 8));
  std::vector<float> scales(static_cast<size_t>(rows * groups)), minimums(static_cast<size_t>(rows * groups));
  for (int64_t row = 0; row < rows; ++row) {
    QuantizedRow out;
    out.codes = codes.data();
    out.scales = scales.data() + row * groups;
    if (format->zero == ZeroForm::kMinimum) out.minimums = minimums.data() + row * groups;
    RepackRow(tensor.type, reinterpret_cast<const uint8_t*>(tensor.data.data()) + row * tensor.row_bytes(), cols, out);
    PackCodes(codes.data(), cols, format->bits, packed.data() + row * cols * format->bits / 8);
    for (const uint8_t code : codes) ASSERT_LT(code, 1 << format->bits);
  }
  std::vector<uint16_t> half_scales, half_minimums;
  for (const float value : scales) half_scales.push_back(F32ToF16(value));
  for (const float value : minimums) half_minimums.push_back(F32ToF16(value));
  kernels::PackedWeights weights;
  weights.rows = rows;
  weights.cols = cols;
  weights.bits = format->bits;
  weights.group = format->group;
  weights.zero = format->zero == ZeroForm::kMinimum ? kernels::ZeroKind::kMin : kernels::ZeroKind::kSymmetric;
  weights.data = packed.data();
  if (format->scale_type == DType::kF16) {
    weights.scales_f16 = half_scales.data();
    weights.mins_f16 = half_minimums.data();
  } else {
    weights.scales_f32 = scales.data();
    weights.mins_f32 = minimums.data();
  }
  const kernels::QuantMatrix matrix(weights);
  std::vector<float> expected(static_cast<size_t>(cols)), actual(static_cast<size_t>(cols));
  for (int64_t row = 0; row < rows; ++row) {
    ASSERT_TRUE(DequantizeRows(tensor, row, row + 1, expected.data()).ok());
    matrix.DequantizeRow(row, actual.data());
    ASSERT_EQ(std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(float)), 0)
        << DTypeName(tensor.type) << " row " << row;
  }
}

class RepackTest : public ::testing::TestWithParam<DType> {};

TEST_P(RepackTest, RandomBlocksBitForBit) {
  const int64_t cols = 1024;
  const int64_t rows = 19;
  const BlockLayout layout = DTypeBlock(GetParam());
  const std::vector<uint8_t> bytes = RandomBlocks(GetParam(), rows * cols / layout.elements, 7);
  Tensor tensor;
  tensor.name = "random";
  tensor.type = GetParam();
  tensor.shape = {rows, cols};
  tensor.data = std::as_bytes(std::span(bytes));
  ExpectExact(tensor);
}

TEST_P(RepackTest, GoldenBlocksBitForBit) {
  const auto file = SafetensorsFile::Open(testing::GoldenPath("dequant/dequant.safetensors"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  const std::string name = DTypeName(GetParam());
  const Tensor* blocks = (*file)->Find(name + ".blocks");
  const Tensor* values = (*file)->Find(name + ".values");
  ASSERT_NE(blocks, nullptr);
  ASSERT_NE(values, nullptr);
  Tensor tensor = *blocks;
  tensor.type = GetParam();
  tensor.shape = {values->rows(), values->cols()};
  ExpectExact(tensor);
}

INSTANTIATE_TEST_SUITE_P(Types, RepackTest,
                         ::testing::Values(DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                           DType::kQ4_K, DType::kQ5_K),
                         [](const auto& type) { return std::string(DTypeName(type.param)); });

TEST(Repack, TypesWithoutAnExactForm) {
  for (const DType type : {DType::kQ6_K, DType::kF16, DType::kBF16, DType::kF32}) {
    EXPECT_FALSE(ExactFormat(type).has_value()) << DTypeName(type);
  }
}

}  // namespace
}  // namespace pith
