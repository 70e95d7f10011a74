#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/sha256.h"
#include "model/safetensors.h"
#include "model/tensor.h"
#include "support/data.h"

namespace pith {
namespace {

std::shared_ptr<const SafetensorsFile> Golden() {
  static const auto file = SafetensorsFile::Open(testing::GoldenPath("dequant/dequant.safetensors"));
  EXPECT_TRUE(file.ok()) << file.error().message;
  return *file;
}

Tensor Make(const std::string& name, DType type, const std::vector<int64_t>& shape, std::span<const std::byte> data) {
  Tensor tensor;
  tensor.name = name;
  tensor.type = type;
  tensor.shape = shape;
  tensor.data = data;
  return tensor;
}

class DequantizeTest : public ::testing::TestWithParam<DType> {};

TEST_P(DequantizeTest, EqualsGgufPackageBitForBit) {
  const std::string name = DTypeName(GetParam());
  const Tensor* blocks = Golden()->Find(name + ".blocks");
  const Tensor* values = Golden()->Find(name + ".values");
  ASSERT_NE(blocks, nullptr);
  ASSERT_NE(values, nullptr);
  const Tensor tensor = Make(name, GetParam(), values->shape, blocks->data);
  const auto floats = ToFloats(tensor);
  ASSERT_TRUE(floats.ok()) << floats.error().message;
  ASSERT_EQ(floats->size() * sizeof(float), values->data.size());
  for (size_t i = 0; i < floats->size(); ++i) {
    float expected;
    std::memcpy(&expected, values->data.data() + i * sizeof(float), sizeof(expected));
    ASSERT_EQ(std::bit_cast<uint32_t>((*floats)[i]), std::bit_cast<uint32_t>(expected))
        << name << " element " << i << ": " << (*floats)[i] << " is not " << expected;
  }

  // Any row range gives the same numbers and nothing beyond them.
  const int64_t cols = tensor.cols();
  std::vector<float> rows(static_cast<size_t>(2 * cols) + 1, -1234.5f);
  ASSERT_TRUE(DequantizeRows(tensor, 1, 3, rows.data()).ok());
  EXPECT_EQ(std::memcmp(rows.data(), floats->data() + cols, static_cast<size_t>(2 * cols) * sizeof(float)), 0);
  EXPECT_EQ(rows.back(), -1234.5f);
}

INSTANTIATE_TEST_SUITE_P(AllTypes, DequantizeTest,
                         ::testing::Values(DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                           DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K),
                         [](const auto& test) { return std::string(DTypeName(test.param)); });

TEST(DequantizeRows, PlainFloats) {
  const float singles[] = {1.5f, -0.0f, std::numeric_limits<float>::infinity(), 3e-40f};
  Tensor tensor = Make("x", DType::kF32, {2, 2}, std::as_bytes(std::span(singles)));
  const auto bits = [](const auto& values) {
    std::vector<uint32_t> all;
    for (const float value : values) all.push_back(std::bit_cast<uint32_t>(value));
    return all;
  };
  EXPECT_EQ(bits(*ToFloats(tensor)), bits(singles));
  const double doubles[] = {0.1, -2.0, 1e300, 0.0};
  tensor.type = DType::kF64;
  tensor.data = std::as_bytes(std::span(doubles));
  EXPECT_EQ(*ToFloats(tensor), (std::vector<float>{0.1f, -2.0f, std::numeric_limits<float>::infinity(), 0.0f}));
}

TEST(DequantizeRows, RefusesIntegersBadRangesAndShapesWithoutData) {
  const int32_t numbers[] = {1, 2, 3, 4};
  Tensor tensor = Make("ids", DType::kI32, {2, 2}, std::as_bytes(std::span(numbers)));
  EXPECT_EQ(ToFloats(tensor).error().code, ErrorCode::kUnsupported);
  EXPECT_NE(ToFloats(tensor).error().message.find("'ids'"), std::string::npos);

  tensor.type = DType::kF32;
  float out[4];
  EXPECT_EQ(DequantizeRows(tensor, 0, 3, out).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(DequantizeRows(tensor, -1, 1, out).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(DequantizeRows(tensor, 2, 1, out).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(DequantizeRows(tensor, 2, 2, out).ok());

  tensor.shape = {int64_t{1} << 40, 2};  // must fail before it allocates
  EXPECT_EQ(ToFloats(tensor).error().code, ErrorCode::kInvalidArgument);
  tensor.shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_EQ(ToFloats(tensor).error().code, ErrorCode::kInvalidArgument);
}

TEST(TensorBytes, RefusesOverflowAndPartBlocks) {
  EXPECT_EQ(TensorBytes(DType::kF32, {2, 3}), 24);
  EXPECT_EQ(TensorBytes(DType::kF32, {}), 4);
  EXPECT_EQ(TensorBytes(DType::kF32, {0, 5}), 0);
  EXPECT_EQ(TensorBytes(DType::kQ4_K, {3, 512}), 3 * 2 * 144);
  EXPECT_EQ(TensorBytes(DType::kQ4_K, {3, 128}), std::nullopt);
  EXPECT_EQ(TensorBytes(DType::kF32, {-1}), std::nullopt);
  EXPECT_EQ(TensorBytes(DType::kF32, {int64_t{1} << 62}), std::nullopt);
  EXPECT_EQ(TensorBytes(DType::kU8, {int64_t{1} << 32, int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(TensorBytes(DType::kU8, {0, int64_t{1} << 62, int64_t{1} << 62}), std::nullopt);
}

TEST(F16, AllValuesEqualNumpy) {
  std::vector<float> values(1 << 16);
  for (uint32_t bits = 0; bits < values.size(); ++bits) {
    const float value = F16ToF32(static_cast<uint16_t>(bits));
    const bool is_nan = (bits & 0x7c00u) == 0x7c00u && (bits & 0x03ffu) != 0;
    ASSERT_EQ(std::isnan(value), is_nan) << bits;
    values[bits] = is_nan ? 0.0f : value;
    if (is_nan) continue;
    ASSERT_EQ(F32ToF16(value), bits);  // every f16 value survives the way there and back
  }
  std::string expected = testing::ReadFile(testing::GoldenPath("dequant/f16_values.sha256"));
  expected.resize(64);
  EXPECT_EQ(Sha256Hex(std::as_bytes(std::span(values))), expected);
}

TEST(F16AndBF16, RoundingEqualsNumpyAndTorch) {
  const Tensor* bits = Golden()->Find("f32.bits");
  const Tensor* halves = Golden()->Find("f32.as_f16");
  const Tensor* brains = Golden()->Find("f32.as_bf16");
  ASSERT_GT(bits->cols(), 4000);
  for (int64_t i = 0; i < bits->cols(); ++i) {
    float value;
    uint16_t half, brain;
    std::memcpy(&value, bits->data.data() + 4 * i, 4);
    std::memcpy(&half, halves->data.data() + 2 * i, 2);
    std::memcpy(&brain, brains->data.data() + 2 * i, 2);
    ASSERT_EQ(F32ToF16(value), half) << value;
    ASSERT_EQ(F32ToBF16(value), brain) << value;
  }
}

TEST(F16AndBF16, NanStaysNan) {
  const uint32_t patterns[] = {0x7fc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu};
  for (const uint32_t pattern : patterns) {
    float value;
    std::memcpy(&value, &pattern, sizeof(value));
    EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(value))));
    EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(value))));
  }
}

}  // namespace
}  // namespace pith
