#include "base/thread_pool.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pith {
namespace {

constexpr int kTaskBits = 20;
constexpr uint64_t kTaskMask = (uint64_t{1} << kTaskBits) - 1;

uint64_t PackClaim(uint64_t epoch, uint64_t n) { return (epoch << (2 * kTaskBits)) | (n << kTaskBits); }
uint64_t ClaimedTask(uint64_t claim) { return claim & kTaskMask; }
uint64_t TaskCount(uint64_t claim) { return (claim >> kTaskBits) & kTaskMask; }
uint64_t Epoch(uint64_t claim) { return claim >> (2 * kTaskBits); }
bool HasTask(uint64_t claim) { return ClaimedTask(claim) < TaskCount(claim); }

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Pauses before a waiting thread yields, and yields before it sleeps. A pause is about 10-40 ns on current cores.
constexpr int kSpins = 1500;
constexpr int kYields = 4;

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { Work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wakeups_.fetch_add(1);
  wakeups_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::DrainTasks(int thread) {
  uint64_t claim = claim_.load(std::memory_order_acquire);
  while (HasTask(claim)) {
    if (!claim_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    body_(context_, static_cast<int64_t>(ClaimedTask(claim)), thread);
    if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<int64_t>(TaskCount(claim))) {
      finished_.notify_all();
    }
    claim = claim_.load(std::memory_order_acquire);
  }
}

void ThreadPool::Work(int thread) {
  while (!stop_.load(std::memory_order_relaxed)) {
    DrainTasks(thread);
    bool found = false;
    for (int i = 0; i < kSpins && !found; ++i) {
      Pause();
      found = HasTask(claim_.load(std::memory_order_acquire));
    }
    for (int i = 0; i < kYields && !found; ++i) {
      std::this_thread::yield();
      found = HasTask(claim_.load(std::memory_order_acquire));
    }
    if (found) continue;
    // Announce the sleep before the last look at the claim word: RunErased publishes first and looks at sleepers_
    // second.
    const uint32_t seen = wakeups_.load();
    sleepers_.fetch_add(1);
    if (!HasTask(claim_.load()) && !stop_.load()) wakeups_.wait(seen);
    sleepers_.fetch_sub(1);
  }
}

void ThreadPool::RunErased(int64_t n, ErasedBody body, const void* context) {
  constexpr auto kMostTasks = static_cast<int64_t>(kTaskMask);  // of one loop; longer ones are run in parts
  if (n > kMostTasks) {
    struct Part {
      ErasedBody body;
      const void* context;
      int64_t begin;
    };
    for (Part part{body, context, 0}; part.begin < n; part.begin += kMostTasks) {
      const auto run = [](const void* erased, int64_t task, int thread) {
        const Part& p = *static_cast<const Part*>(erased);
        p.body(p.context, p.begin + task, thread);
      };
      RunErased(std::min(kMostTasks, n - part.begin), run, &part);
    }
    return;
  }
  body_ = body;
  context_ = context;
  finished_.store(0, std::memory_order_relaxed);
  const uint64_t epoch = Epoch(claim_.load(std::memory_order_relaxed)) + 1;
  claim_.store(PackClaim(epoch, static_cast<uint64_t>(n)));
  if (sleepers_.load() > 0) {
    wakeups_.fetch_add(1);
    wakeups_.notify_all();
  }
  DrainTasks(0);
  int64_t done = finished_.load(std::memory_order_acquire);
  for (int spin = 0; done != n; ++spin) {
    if (spin < kSpins) {
      Pause();
    } else if (spin < kSpins + kYields) {
      std::this_thread::yield();
    } else {
      finished_.wait(done, std::memory_order_acquire);
    }
    done = finished_.load(std::memory_order_acquire);
  }
}

}  // namespace pith
