// Fake quantizers against torch's autograd (tests/golden/quant/make_fake_quant.py), and against the integers of the
// packer and of the runtime.
#include "quant/fake_quant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/qmatmul.h"
#include "model/activation_ranges.h"
#include "model/quantize.h"
#include "model/safetensors.h"
#include "support/data.h"
#include "train/runtime_rounding.h"

namespace pith::quant {
namespace {

class Golden {
 public:
  Golden() {
    auto file = SafetensorsFile::Open(testing::GoldenPath("quant/fake_quant.safetensors"));
    EXPECT_TRUE(file.ok()) << file.error().message;
    file_ = *file;
  }
  at::Tensor Get(const std::string& name) const {
    const Tensor* tensor = file_->Find(name);
    EXPECT_NE(tensor, nullptr) << name;
    at::Tensor values = at::empty(tensor->shape, tensor->type == DType::kI32 ? at::kInt : at::kFloat);
    std::memcpy(values.data_ptr(), tensor->data.data(), tensor->data.size());
    return values;
  }

 private:
  std::shared_ptr<const SafetensorsFile> file_;
};

double RelativeError(const at::Tensor& got, const at::Tensor& want) {
  EXPECT_EQ(got.numel(), want.numel());
  const at::Tensor a = got.detach().reshape({-1}).to(at::kDouble), b = want.reshape({-1}).to(at::kDouble);
  return (a - b).norm().item<double>() / b.norm().item<double>();
}

class FakeQuant : public ::testing::TestWithParam<std::string> {
 protected:
  at::Tensor Get(const std::string& name) const { return golden_.Get(GetParam() + "." + name); }
  QuantSpec Spec() const {
    const at::Tensor values = Get("spec");
    const int* spec = values.data_ptr<int>();
    QuantSpec result;
    result.range = {spec[0], spec[1]};
    result.symmetric = spec[2] != 0;
    result.granularity = spec[3] == 0 ? Granularity::kTensor : spec[3] == -1 ? Granularity::kRow : Granularity::kGroup;
    result.group = std::max(spec[3], 0);
    return result;
  }

 private:
  Golden golden_;
};

TEST_P(FakeQuant, ValuesAndGradientsOfLearnedRanges) {
  const QuantSpec spec = Spec();
  const at::Tensor x = Get("x").requires_grad_(true);
  QuantParameters parameters;
  parameters.scale = Get("scale").requires_grad_(true);
  if (!spec.symmetric) parameters.offset = Get("offset").requires_grad_(true);
  ASSERT_EQ(spec.Tiles(x), parameters.scale.numel());
  const at::Tensor y = FakeQuantize(spec, x, parameters);
  EXPECT_LT(RelativeError(y, Get("y")), 1e-6);
  y.backward(Get("g"));
  EXPECT_TRUE(at::equal(x.grad(), Get("dx")));
  EXPECT_LT(RelativeError(parameters.scale.grad(), Get("dscale")), 1e-4);
  if (!spec.symmetric) {
    EXPECT_LT(RelativeError(parameters.offset.grad(), Get("doffset")), 1e-6);
    EXPECT_GT(parameters.offset.grad().abs().max().item<float>(), 0.0F);
  }
}

TEST_P(FakeQuant, RangesFromData) {
  const QuantSpec spec = Spec();
  const at::Tensor x = Get("x");
  const auto expect = [&](const QuantParameters& found, const std::string& name) {
    EXPECT_LT(RelativeError(found.scale, Get(name + "_scale")), 1e-6) << name;
    if (spec.symmetric) return;
    EXPECT_LT(RelativeError(found.offset, Get(name + "_offset")), 1e-5) << name;
  };
  expect(MinMaxParameters(spec, x), "minmax");
  expect(GridParameters(spec, x, 2.0), "grid2");
  expect(GridParameters(spec, x, 3.0), "grid3");
  const at::Tensor leaf = Get("x").requires_grad_(true);
  const at::Tensor dynamic = FakeQuantizeDynamic(spec, leaf);
  EXPECT_LT(RelativeError(dynamic, Get("dynamic")), 1e-6);
  dynamic.backward(Get("g"));
  EXPECT_TRUE(at::equal(leaf.grad(), Get("g")));
}

INSTANTIATE_TEST_SUITE_P(Cases, FakeQuant,
                         ::testing::Values("w4_channel", "w4_group", "kv8_tensor", "a16_tensor", "a8_token",
                                           "w4_group_offset"));

at::Tensor RandomMatrix(int64_t rows, int64_t cols) {
  at::Tensor x = at::empty({rows, cols}, at::kFloat);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double u = 2.0 * RandomUniform(3, 1, static_cast<uint64_t>(i)) - 1.0;
    const int64_t row = i / cols;
    x.data_ptr<float>()[i] = static_cast<float>(u * u * u * (1.0 + static_cast<double>(row)));
  }
  return x;
}

// The packer's integers and scales are the fake quantizer's: plain range and grid, rows and groups, 4 and 8 bits.
TEST(FakeQuantInRuntime, WeightsAreThoseOfThePacker) {
  const at::Tensor x = RandomMatrix(5, 320);
  for (const int bits : {4, 8}) {
    for (const int64_t group : {0, 32, 64}) {
      for (const QuantMethod method : {QuantMethod::kMinMax, QuantMethod::kLp}) {
        Quantizer quantizer;
        quantizer.format = {bits, group, ZeroForm::kSymmetric, DType::kF32};
        quantizer.method = method;
        QuantSpec spec;
        spec.range = RangeOfBits(bits);
        spec.granularity = group == 0 ? Granularity::kRow : Granularity::kGroup;
        spec.group = group;
        const QuantParameters parameters =
            method == QuantMethod::kMinMax ? MinMaxParameters(spec, x) : GridParameters(spec, x, 2.0);
        const at::Tensor integers = Integers(spec, x, parameters), values = FakeQuantize(spec, x, parameters);
        const int64_t groups = parameters.scale.numel() / 5;
        std::vector<uint8_t> codes(320);
        std::vector<float> scales(static_cast<size_t>(groups)), floats(320);
        for (int64_t r = 0; r < 5; ++r) {
          QuantizedRow row;
          row.codes = codes.data();
          row.scales = scales.data();
          QuantizeRow(quantizer, x.data_ptr<float>() + r * 320, 320, nullptr, row);
          DequantizeRow(quantizer.format, 320, row, floats.data());
          for (int64_t g = 0; g < groups; ++g) {
            // The grid's steps are other roundings of the same fractions.
            EXPECT_NEAR(scales[static_cast<size_t>(g)] / parameters.scale.data_ptr<float>()[r * groups + g], 1.0, 3e-7);
          }
          for (int64_t i = 0; i < 320; ++i) {
            const auto at = static_cast<size_t>(i);
            ASSERT_EQ(codes[at] - (1 << (bits - 1)), integers.data_ptr<float>()[r * 320 + i]) << bits << " " << group;
            ASSERT_NEAR(floats[at], values.data_ptr<float>()[r * 320 + i], 1e-6 * std::fabs(floats[at]));
          }
        }
      }
    }
  }
}

// Activations and cached vectors: the floats of the runtime's integers, bit for bit, and the dynamic quantizer up to
// the rounding of its division.
TEST(FakeQuantInRuntime, ActivationsAreThoseOfTheKernels) {
  ThreadPool pool(1);
  at::Tensor x = RandomMatrix(9, 96);
  for (int64_t i = 0; i < 96; ++i) x.data_ptr<float>()[i] = 0.0F;
  const float* values = x.data_ptr<float>();
  kernels::QuantActivations runtime;
  runtime.Quantize(values, 9, 96, 96, kernels::ActivationBits::k16, kernels::ActivationScale::kPerToken, 4, nullptr);
  std::vector<float> rounded(9 * 96);
  train::RoundActivations(values, 9, 96, rounded.data(), pool);
  QuantSpec spec;
  spec.range = kRuntimeActivations;
  spec.granularity = Granularity::kRow;
  const at::Tensor dynamic = FakeQuantizeDynamic(spec, x);
  for (int64_t r = 0; r < 9; ++r) {
    for (int64_t k = 0; k < 96; ++k) {
      const float want = static_cast<float>(runtime.Value(r, k)) * runtime.TokenScale(r);
      ASSERT_EQ(rounded[static_cast<size_t>(r * 96 + k)], want) << r << " " << k;
      // One step apart at most: x * (1 / s) and x / s can lie on two sides of a tie.
      ASSERT_NEAR(dynamic.data_ptr<float>()[r * 96 + k], want, 1.001F * runtime.TokenScale(r));
    }
  }
}

TEST(FakeQuantInRuntime, CachedVectorsAreThoseOfTheCache) {
  ThreadPool pool(1);
  constexpr int64_t kTokens = 5, kHeads = 2, kDim = 32;
  const at::Tensor x = RandomMatrix(kTokens, kHeads * kDim);
  std::vector<float> rounded(kTokens * kHeads * kDim);
  train::RoundCached(x.data_ptr<float>(), kTokens, kHeads, kDim, {}, rounded.data(), pool);
  QuantSpec spec;
  spec.range = kRuntimeCache;
  spec.granularity = Granularity::kGroup;
  spec.group = kDim;
  const at::Tensor dynamic = FakeQuantizeDynamic(spec, x);
  std::vector<int8_t> k(kDim * kKvBlockTokens), v(kDim * kKvBlockTokens);
  std::vector<float> k_scale(kKvBlockTokens), v_scale(kKvBlockTokens);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t at = (t * kHeads + h) * kDim;
      const float* vector = x.data_ptr<float>() + at;
      StoreKv(vector, vector, kDim, t, {KvType::kInt8, k.data(), v.data(), k_scale.data(), v_scale.data()});
      for (int64_t i = 0; i < kDim; ++i) {
        const float want = static_cast<float>(v[static_cast<size_t>(t * kDim + i)]) * v_scale[static_cast<size_t>(t)];
        ASSERT_EQ(rounded[static_cast<size_t>(at + i)], want) << t << " " << h << " " << i;
        ASSERT_EQ(dynamic.data_ptr<float>()[at + i], vector[i] + (want - vector[i]));
      }
    }
  }
  // An equalizer of powers of two goes in and comes out again.
  std::vector<float> equalizer(kHeads * kDim, 1.0F), scaled(kTokens * kHeads * kDim), equalized(scaled.size());
  for (size_t i = 0; i < equalizer.size(); ++i) equalizer[i] = i % 3 == 0 ? 4.0F : 0.5F;
  for (size_t i = 0; i < scaled.size(); ++i) scaled[i] = x.data_ptr<float>()[i] * equalizer[i % equalizer.size()];
  train::RoundCached(scaled.data(), kTokens, kHeads, kDim, {}, scaled.data(), pool);
  train::RoundCached(x.data_ptr<float>(), kTokens, kHeads, kDim, equalizer, equalized.data(), pool);
  for (size_t i = 0; i < scaled.size(); ++i) {
    ASSERT_EQ(equalized[i], scaled[i] / equalizer[i % equalizer.size()]);
  }
}

// Static activations: the runtime's quantizer (model/activation_ranges.h) and this one give the same integers.
TEST(FakeQuantize, StaticActivationsHaveTheRuntimesIntegers) {
  for (const bool symmetric : {false, true}) {
    for (const auto& [low, high] : {std::pair{-3.0F, 5.0F}, std::pair{0.0F, 2.0F}, std::pair{-700.0F, 1.0F}}) {
      const int bits = symmetric ? 8 : 16;
      const StaticQuantizer runtime = StaticQuantizer::Of({low, high}, bits, symmetric);
      // Signed integers of this quantizer; its offset takes the runtime's q to them.
      QuantSpec spec;
      spec.range = RangeOfBits(bits);
      spec.symmetric = symmetric;
      QuantParameters parameters{at::full({1}, runtime.scale), at::Tensor()};
      const float offset = static_cast<float>(runtime.lowest - spec.range.low);
      if (!symmetric) parameters.offset = at::full({1}, offset);
      const at::Tensor x = at::linspace(1.5F * low - 1.0F, 1.5F * high + 1.0F, 4001);
      const at::Tensor integers = Integers(spec, x.reshape({1, -1}), parameters).reshape({-1});
      const at::Tensor rounded = FakeQuantize(spec, x.reshape({1, -1}), parameters).reshape({-1});
      for (int64_t i = 0; i < x.numel(); ++i) {
        const float value = x.data_ptr<float>()[i];
        // x / s - o is rounded to float there: what is that near to a tie may go either way.
        const float ratio = value / runtime.scale;
        if (std::fabs(std::fabs(ratio - std::floor(ratio)) - 0.5F) < 0.01F) continue;
        ASSERT_EQ(integers.data_ptr<float>()[i] + (symmetric ? 0.0F : offset), runtime.Integer(value)) << value;
        ASSERT_EQ(rounded.data_ptr<float>()[i], runtime.Round(value)) << value;
      }
    }
  }
}

}  // namespace
}  // namespace pith::quant
