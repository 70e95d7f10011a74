// The hand-made gradient against central differences, and loss, gradient and one AdamW step against torch.
#include "heads/head_net.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "model/safetensors.h"
#include "support/data.h"

namespace pith::heads {
namespace {

std::vector<float> Values(int64_t n, uint64_t seed, double scale) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) {
    values.push_back(static_cast<float>(scale * (2 * RandomUniform(seed, 9, static_cast<uint64_t>(i)) - 1)));
  }
  return values;
}

TEST(HeadNetTest, BeginsAsTorchDoes) {
  const HeadNet net(400, 8, 3);
  ASSERT_EQ(net.parameters().size(), 4U);
  EXPECT_EQ(net.parameters()[0].shape, (std::vector<int64_t>{8, 400}));
  double largest = 0;
  for (const float w : net.parameters()[0].value) largest = std::max(largest, static_cast<double>(std::abs(w)));
  EXPECT_LE(largest, 0.05);
  EXPECT_GT(largest, 0.049);
  EXPECT_FALSE(net.parameters()[1].decay);
  const HeadNet again(400, 8, 3);
  const HeadNet other(400, 8, 4);
  EXPECT_EQ(net.Logit(Values(400, 1, 1)), again.Logit(Values(400, 1, 1)));
  EXPECT_NE(net.Logit(Values(400, 1, 1)), other.Logit(Values(400, 1, 1)));
}

TEST(HeadNetTest, GradientIsThatOfCentralDifferences) {
  for (const int64_t inner : {0, 5}) {
    HeadNet net(6, inner, 11);
    const auto x = Values(6, 2, 2);
    const std::vector<float> keep = inner == 0 ? std::vector<float>{} : std::vector<float>{1.25F, 0, 1.25F, 1.25F, 1};
    const auto loss = [&] {
      HeadNet* const n = &net;
      n->ZeroGradients();
      return n->Accumulate(x, true, 0.7, keep) + n->Accumulate(Values(6, 4, 1), false, 1.3, keep);
    };
    loss();
    std::vector<std::vector<float>> gradients;
    for (const auto& parameter : net.parameters())
      gradients.emplace_back(parameter.gradient.begin(), parameter.gradient.end());
    int nonzero = 0;
    for (size_t p = 0; p < gradients.size(); ++p) {
      const auto& parameter = net.parameters()[p];
      for (size_t i = 0; i < parameter.value.size(); ++i) {
        const float kept = parameter.value[i];
        constexpr float kStep = 1.0F / 1024;  // exact in float, and so is the difference of the two values
        parameter.value[i] = kept + kStep;
        const double above_x = static_cast<double>(parameter.value[i]);
        const double above = loss();
        parameter.value[i] = kept - kStep;
        const double difference = (above - loss()) / (above_x - static_cast<double>(parameter.value[i]));
        parameter.value[i] = kept;
        EXPECT_NEAR(static_cast<double>(gradients[p][i]), difference, 2e-6)
            << inner << " " << parameter.name << " " << i;
        nonzero += std::abs(difference) > 1e-3 ? 1 : 0;
      }
    }
    EXPECT_GT(nonzero, 6);
  }
}

TEST(HeadNetTest, LossGradientAndStepEqualTorch) {
  const auto file = SafetensorsFile::Open(testing::GoldenPath("heads/heads.safetensors"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto read = [&](const std::string& name) {
    const Tensor* tensor = (*file)->Find(name);
    EXPECT_NE(tensor, nullptr) << name;
    return *ToFloats(*tensor);
  };
  const auto x = read("x");
  const auto labels = read("labels");
  const auto weights = read("weights");
  const auto keep = read("keep");
  for (const auto& [kind, inner] : {std::pair<std::string, int64_t>{"switcher", 8}, {"verifier", 0}}) {
    HeadNet net(12, inner, 1);
    for (const auto& parameter : net.parameters()) {
      const auto values = read(kind + "." + parameter.name);
      ASSERT_EQ(values.size(), parameter.value.size());
      std::copy(values.begin(), values.end(), parameter.value.begin());
    }
    double loss = 0;
    for (size_t row = 0; row < labels.size(); ++row) {
      const auto kept = inner == 0 ? std::span<const float>() : std::span(keep).subspan(row * 8, 8);
      loss += net.Accumulate(std::span(x).subspan(row * 12, 12), labels[row] == 1.0F,
                             static_cast<double>(weights[row]) / 10, kept);
    }
    EXPECT_NEAR(loss, static_cast<double>(read(kind + ".loss")[0]), 1e-7);
    train::AdamW optimizer(net.parameters(), {.weight_decay = 0.01});
    for (const auto& parameter : net.parameters()) {
      const auto expected = read(kind + ".grad." + parameter.name);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(parameter.gradient[i], expected[i], 1e-7) << parameter.name;
    }
    optimizer.Step(1e-3);
    for (const auto& parameter : net.parameters()) {
      const auto before = read(kind + "." + parameter.name);
      const auto expected = read(kind + ".step." + parameter.name);
      bool moved = false;
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(parameter.value[i], expected[i], 1e-7) << parameter.name << i;
        moved = moved || std::abs(expected[i] - before[i]) > 5e-4F;
      }
      EXPECT_TRUE(moved);
    }
  }
}

TEST(HeadNetTest, CrossEntropyDoesNotOverflow) {
  EXPECT_NEAR(BinaryCrossEntropy(0, true), std::log(2.0), 1e-12);
  EXPECT_NEAR(BinaryCrossEntropy(2, false), std::log1p(std::exp(2.0)), 1e-12);
  EXPECT_DOUBLE_EQ(BinaryCrossEntropy(1e6, false), 1e6);
  EXPECT_DOUBLE_EQ(BinaryCrossEntropy(-1e6, true), 1e6);
  EXPECT_DOUBLE_EQ(BinaryCrossEntropy(1e6, true), 0.0);
  EXPECT_DOUBLE_EQ(Sigmoid(-1e6), 0.0);
}

}  // namespace
}  // namespace pith::heads
