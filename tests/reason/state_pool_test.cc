#include "reason/state_pool.h"

#include <gtest/gtest.h>

#include <random>

namespace pith {
namespace {

std::vector<float> RandomStates(int64_t tokens, int64_t hidden) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0F, 10.0F);
  std::vector<float> states(static_cast<size_t>(tokens * hidden));
  for (float& value : states) value = normal(random);
  return states;
}

std::vector<float> PoolInSteps(const std::vector<float>& states, int64_t hidden, size_t step, StatePooling pooling) {
  StatePool pool(hidden, pooling);
  const size_t piece = step * static_cast<size_t>(hidden);
  for (size_t at = 0; at < states.size(); at += piece) {
    pool.Push(std::span(states).subspan(at, std::min(piece, states.size() - at)));
  }
  return pool.Pooled();
}

TEST(StatePoolTest, TheFormula) {
  // Chunks of 2 with alpha 0.25: means 2, 6, and 11 of the single last one.
  const std::vector<float> states{1, 3, 5, 7, 11};
  StatePool pool(1, {.chunk = 2, .alpha = 0.25});
  pool.Push(std::span(states).first(2));
  EXPECT_EQ(pool.Pooled(), std::vector<float>{2});
  pool.Push(std::span(states).subspan(2, 2));
  EXPECT_EQ(pool.Pooled(), std::vector<float>{0.25F * 6 + 0.75F * 2});
  pool.Push(std::span(states).subspan(4, 1));
  EXPECT_EQ(pool.Pooled(), std::vector<float>{0.25F * 11 + 0.75F * 3});
  EXPECT_EQ(pool.tokens(), 5);
}

TEST(StatePoolTest, StepsOfThePrefillChangeNotABit) {
  constexpr int64_t kHidden = 7;
  for (const int64_t tokens : {1, 5, 127, 128, 129, 300, 512, 513}) {
    const auto states = RandomStates(tokens, kHidden);
    const auto whole = PoolInSteps(states, kHidden, 100000, {});
    for (const size_t step : {1, 2, 3, 31, 64, 127, 128, 129, 256}) {
      EXPECT_EQ(PoolInSteps(states, kHidden, step, {}), whole) << tokens << " tokens, " << step << " a step";
    }
  }
}

TEST(StatePoolTest, LookingChangesNothing) {
  const auto states = RandomStates(300, 3);
  StatePool looked(3, {});
  for (int64_t i = 0; i < 300; ++i) {
    looked.Push(std::span(states).subspan(static_cast<size_t>(i * 3), 3));
    (void)looked.Pooled();
  }
  EXPECT_EQ(looked.Pooled(), PoolInSteps(states, 3, 1000, {}));
}

TEST(StatePoolTest, NothingGivesZeros) { EXPECT_EQ(StatePool(2, {}).Pooled(), (std::vector<float>{0, 0})); }

}  // namespace
}  // namespace pith
