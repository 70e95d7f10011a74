// The equalizer of the keys: powers of two, shared by RoPE pairs, that bring every pair near 1.
#include "model/key_equalizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace pith {
namespace {

ModelConfig Config() {
  ModelConfig config;
  config.hidden = 4;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 4;
  return config;
}

std::vector<float> Equalize(const ModelConfig& config, const std::vector<std::vector<float>>& rows,
                            const std::vector<float>& bias, const std::vector<float>& norm = {}) {
  const std::vector<float> input_norm(4, 0.5F);
  return EqualizeKeys(
      config, {input_norm, bias, norm, [&rows](int64_t r, float* out) { std::ranges::copy(rows[size_t(r)], out); }});
}

TEST(KeyEqualizer, BringsEveryPairNearOne) {
  // Magnitude of a row of four equal weights w: 3 * |0.5 w| * 2 = 3 |w|, and the bias.
  std::vector<std::vector<float>> rows;
  for (const float w : {1.0F, 0.1F, 20.0F, 0.01F, 0.0F, 100.0F, 0.0F, 3.0F}) rows.emplace_back(4, w);
  const std::vector<float> bias = {0, 0, 0, 0, 0, 0, -200, 0};
  const auto scales = Equalize(Config(), rows, bias);
  ASSERT_EQ(scales.size(), 8U);
  const float magnitude[] = {60, 0.3F, 60, 0.3F, 200, 300, 200, 300};  // the larger one of each pair
  for (size_t i = 0; i < 8; ++i) {
    int exponent;
    EXPECT_EQ(std::frexp(scales[i], &exponent), 0.5F) << i;  // a power of two
    EXPECT_GE(scales[i] * magnitude[i], std::sqrt(0.5F)) << i;
    EXPECT_LE(scales[i] * magnitude[i], std::sqrt(2.0F)) << i;
    EXPECT_EQ(scales[i], scales[i / 4 * 4 + (i + 2) % 4]) << i;
  }
}

TEST(KeyEqualizer, LeavesWhatHasNoSize) {
  const std::vector<std::vector<float>> zeros(8, std::vector<float>(4, 0.0F));
  EXPECT_EQ(Equalize(Config(), zeros, {}), std::vector<float>(8, 1.0F));
  const std::vector<std::vector<float>> huge(8, std::vector<float>(4, 1e30F));
  EXPECT_EQ(Equalize(Config(), huge, {}), std::vector<float>(8, 1.0F));
}

TEST(KeyEqualizer, NormsOnTheHeadsDecideForAllHeads) {
  ModelConfig config = Config();
  config.qk_norm = true;
  const auto scales = Equalize(config, {}, {}, {8.0F, 0.25F, 1.0F, 0.5F});  // rows are not read
  const std::vector<float> want = {1.0F / 32, 0.5F, 1.0F / 32, 0.5F};       // of 24 and 1.5
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(scales[i], want[i % 4]) << i;
}

}  // namespace
}  // namespace pith
