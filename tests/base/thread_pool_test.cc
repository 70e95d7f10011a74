#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace pith {
namespace {

TEST(ThreadPoolTest, EveryTaskRunsOnceOnAThreadOfThePool) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (const int64_t n : {0, 1, 2, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      std::atomic<int> strangers{0};
      pool.Run(n, [&](int64_t task, int thread) {
        ++runs[static_cast<size_t>(task)];
        if (thread < 0 || thread >= threads) ++strangers;
      });
      EXPECT_EQ(strangers, 0);
      for (const auto& count : runs) ASSERT_EQ(count, 1) << threads << " threads, " << n << " tasks";
    }
  }
}

TEST(ThreadPoolTest, ZeroThreadsMeansOnePerHardwareThread) { EXPECT_GE(ThreadPool(0).threads(), 1); }

// Loops that do not fit the claim word's 20 bits.
TEST(ThreadPoolTest, LoopsMayBeLong) {
  ThreadPool pool(2);
  const int64_t n = (int64_t{1} << 21) + 3;
  std::vector<uint8_t> runs(static_cast<size_t>(n));
  pool.Run(n, [&](int64_t task, int) { ++runs[static_cast<size_t>(task)]; });
  for (const uint8_t count : runs) ASSERT_EQ(count, 1);
}

// Many short loops back to back, with far more threads than cores: late threads must neither run a task of another loop
// nor be waited for.
TEST(ThreadPoolTest, ShortLoopsOnAnOversubscribedMachine) {
  ThreadPool pool(16);
  for (int64_t loop = 0; loop < 2000; ++loop) {
    std::atomic<int64_t> sum{0};
    pool.Run(5, [&sum, loop](int64_t task, int) { sum += loop * 5 + task; });
    ASSERT_EQ(sum, loop * 25 + 10);
  }
}

// Each size finishes although workers may have gone to sleep between the loops.
TEST(ThreadPoolTest, WakesSleepers) {
  ThreadPool pool(3);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> count{0};
    pool.Run(100, [&](int64_t, int) { ++count; });
    ASSERT_EQ(count, 100);
  }
}

}  // namespace
}  // namespace pith
