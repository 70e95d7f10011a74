// A real model against transformers. How generation behaves with it is tested in tests/reason.
#include <gtest/gtest.h>

#include "engine/greedy_check.h"
#include "support/data.h"

namespace pith {
namespace {

TEST(RealModel, SmolLm2GreedyEqualsTransformers) {
  PITH_REQUIRE_MODEL(path, "smollm2-135m");
  testing::CompareGreedy("smollm2-135m", path, KvType::kF32);
}

}  // namespace
}  // namespace pith
