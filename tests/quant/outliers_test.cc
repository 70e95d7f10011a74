#include "quant/outliers.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pith::quant {
namespace {

TEST(Outliers, RatioOfOneChannelToAll) {
  EXPECT_DOUBLE_EQ(OutlierRatio(std::vector<float>(16, 2.5F)), 1.0);
  std::vector<float> one(64, 0.0F);
  one[5] = 3.0F;
  EXPECT_DOUBLE_EQ(OutlierRatio(one), 8.0);
  EXPECT_DOUBLE_EQ(OutlierRatio(std::vector<float>{1, 1, 1, 13}), std::sqrt(13.0 / 4.0));
  EXPECT_DOUBLE_EQ(OutlierRatio(std::vector<float>(4, 0.0F)), 1.0);
}

TEST(Outliers, InputsAreThereOnceAndInOrder) {
  InputMoments before, after;
  for (const char* module :
       {"lm_head", "model.layers.10.self_attn.q_proj", "model.layers.2.mlp.down_proj", "model.layers.2.mlp.up_proj",
        "model.layers.2.mlp.gate_proj", "model.layers.2.self_attn.k_proj", "model.layers.2.self_attn.q_proj"}) {
    before[module] = {0, 0, 0, 4};
    after[module] = {1, 1, 1, 1};
  }
  before["model.layers.2.self_attn.o_proj"] = {1, 2};  // was not measured afterwards
  const auto outliers = CompareOutliers(before, after);
  std::vector<std::string> modules;
  for (const InputOutliers& input : outliers) {
    modules.push_back(input.module);
    EXPECT_DOUBLE_EQ(input.before, 2.0);
    EXPECT_DOUBLE_EQ(input.after, 1.0);
  }
  EXPECT_EQ(modules,
            (std::vector<std::string>{"model.layers.2.self_attn.q_proj", "model.layers.2.mlp.gate_proj",
                                      "model.layers.2.mlp.down_proj", "model.layers.10.self_attn.q_proj", "lm_head"}));
}

}  // namespace
}  // namespace pith::quant
