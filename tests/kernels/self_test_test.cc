#include "kernels/self_test.h"

#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "kernels/targets.h"

namespace pith::kernels {
namespace {

TEST(SelfTest, PassesOnEveryTarget) {
  ThreadPool pool(2);
  for (const auto& target : KernelTargets()) {
    ASSERT_TRUE(SelectKernelTarget(target));
    const Status status = SelfTest(pool);
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  SelectKernelTarget("");
}

}  // namespace
}  // namespace pith::kernels
