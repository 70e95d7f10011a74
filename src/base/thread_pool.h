// A small pool of threads for data-parallel loops.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace pith {

// Runs loops over [0, n) on `threads` threads, the caller's among them. Tasks are claimed one at a time, so a thread
// that the operating system has put aside delays only the task it holds. Waiting threads spin for some tens of
// microseconds, then yield, then sleep: back-to-back loops start fast, and a machine that is shared with other programs
// is not fought over. Which thread runs a task is not fixed; callers make results independent of it by letting tasks
// write disjoint outputs.
class ThreadPool {
 public:
  // threads >= 1; 0 means one per hardware thread.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, thread) for every task in [0, n), 0 <= thread < threads(); returns when all are done. One caller
  // at a time; not reentrant. n < 2^20.
  template <class Body>
  void Run(int64_t n, const Body& body) {
    if (n <= 0) return;
    if (n == 1 || workers_.empty()) {
      for (int64_t task = 0; task < n; ++task) body(task, 0);
      return;
    }
    RunErased(
        n, [](const void* context, int64_t task, int thread) { (*static_cast<const Body*>(context))(task, thread); },
        &body);
  }

 private:
  using ErasedBody = void (*)(const void* context, int64_t task, int thread);

  void RunErased(int64_t n, ErasedBody body, const void* context);
  void Work(int thread);
  void DrainTasks(int thread);

  std::vector<std::thread> workers_;

  // The loop being run. `claim_` packs (epoch, n, next task) in one word, so that a thread that is late can only claim
  // a task of the loop whose body it is about to read: body_ and context_ stay valid until every claimed task is
  // finished.
  alignas(64) std::atomic<uint64_t> claim_{0};
  alignas(64) std::atomic<int64_t> finished_{0};
  alignas(64) std::atomic<uint32_t> wakeups_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  ErasedBody body_ = nullptr;
  const void* context_ = nullptr;
};

}  // namespace pith
