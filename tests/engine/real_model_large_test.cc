// The default model against transformers.
#include <gtest/gtest.h>

#include "engine/greedy_check.h"

namespace pith {
namespace {

TEST(RealModelLarge, QwenCoderGreedyEqualsTransformers) {
  PITH_REQUIRE_MODEL(path, "qwen2.5-coder-0.5b");
  testing::CompareGreedy("qwen2.5-coder-0.5b", path, KvType::kF32);
}

}  // namespace
}  // namespace pith
