// Float matrix products through OpenBLAS. Internal to the room.
//
// The BLAS itself always runs on the calling thread; products are split over the thread pool of the model. So there is
// one kind of thread, no OpenMP worker that spins while the packed kernels run, and results depend on the number of
// threads alone.
#pragma once

#include <cstdint>
#include <string>

#include "base/thread_pool.h"

namespace pith::train {

// The BLAS on this thread only, as long as this lives.
class SerialBlas {
 public:
  SerialBlas();
  ~SerialBlas();
  SerialBlas(const SerialBlas&) = delete;
  SerialBlas& operator=(const SerialBlas&) = delete;

 private:
  int before_;
};

enum class Op { kPlain, kTransposed };

// A row-major operand: element (i, j) at data[i * stride + j], or of its transpose.
struct GemmInput {
  const float* data;
  int64_t stride;
  Op op = Op::kPlain;
};

// c[m, n] (row stride ldc) = alpha * op(a)[m, k] * op(b)[k, n] + beta * c, on this thread.
void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const GemmInput& a, const GemmInput& b, float beta, float* c,
          int64_t ldc);
// The same on all threads of the pool.
void Gemm(ThreadPool& pool, int64_t m, int64_t n, int64_t k, float alpha, const GemmInput& a, const GemmInput& b,
          float beta, float* c, int64_t ldc);

}  // namespace pith::train
