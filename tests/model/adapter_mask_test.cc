#include "model/adapter_mask.h"

#include <gtest/gtest.h>

#include <vector>

namespace pith {
namespace {

TEST(AdapterMask, BeginsWithTheResponse) {
  const std::vector<int32_t> prompt = {5, 1, 2, 2, 1, 2};
  EXPECT_EQ(AdapterStart(prompt), 6);
  EXPECT_EQ(AdapterStart({}), 0);
}

TEST(AdapterMask, BeginsWithTheLastInvocation) {
  const std::vector<int32_t> prompt = {5, 1, 2, 2, 1, 2, 7};
  EXPECT_EQ(AdapterStart(prompt, std::vector<int32_t>{1, 2}), 4);
  EXPECT_EQ(AdapterStart(prompt, std::vector<int32_t>{2, 2}), 2);
  EXPECT_EQ(AdapterStart(prompt, std::vector<int32_t>{9}), 7);  // not in it: the response
}

}  // namespace
}  // namespace pith
