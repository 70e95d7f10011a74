#include "train/blas.h"

#include <cblas.h>
#include <dlfcn.h>

#include <algorithm>

#include "train/train_model.h"

// Of the OpenMP runtime behind OpenBLAS; its header comes with g++ only.
extern "C" {
int omp_get_max_threads();
void omp_set_num_threads(int);
}

namespace pith::train {

SerialBlas::SerialBlas() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
SerialBlas::~SerialBlas() { omp_set_num_threads(before_); }

void Gemm(int64_t m, int64_t n, int64_t k, float alpha, const GemmInput& a, const GemmInput& b, float beta, float* c,
          int64_t ldc) {
  if (m <= 0 || n <= 0) return;
  const SerialBlas serial;
  cblas_sgemm(CblasRowMajor, a.op == Op::kTransposed ? CblasTrans : CblasNoTrans,
              b.op == Op::kTransposed ? CblasTrans : CblasNoTrans, static_cast<blasint>(m), static_cast<blasint>(n),
              static_cast<blasint>(k), alpha, a.data, static_cast<blasint>(a.stride), b.data,
              static_cast<blasint>(b.stride), beta, c, static_cast<blasint>(ldc));
}

void Gemm(ThreadPool& pool, int64_t m, int64_t n, int64_t k, float alpha, const GemmInput& a, const GemmInput& b,
          float beta, float* c, int64_t ldc) {
  // The longer side of the result is cut, in multiples of the kernels' tiles.
  constexpr int64_t kTile = 48;
  const bool columns = n >= m;
  const int64_t side = columns ? n : m;
  const int64_t tiles = (side + kTile - 1) / kTile;
  const int64_t parts = std::min<int64_t>(pool.threads(), tiles);
  if (parts <= 1 || m * n * k < 1 << 18) {
    Gemm(m, n, k, alpha, a, b, beta, c, ldc);
    return;
  }
  pool.Run(parts, [&](int64_t part, int) {
    const int64_t begin = tiles * part / parts * kTile;
    const int64_t end = std::min(side, tiles * (part + 1) / parts * kTile);
    if (columns) {
      const float* from = b.data + (b.op == Op::kTransposed ? begin * b.stride : begin);
      Gemm(m, end - begin, k, alpha, a, {from, b.stride, b.op}, beta, c + begin, ldc);
    } else {
      const float* from = a.data + (a.op == Op::kTransposed ? begin : begin * a.stride);
      Gemm(end - begin, n, k, alpha, {from, a.stride, a.op}, b, beta, c + begin * ldc, ldc);
    }
  });
}

BlasInfo DescribeBlas() {
  BlasInfo info;
  Dl_info where = {};
  const auto* symbol = reinterpret_cast<const void*>(&cblas_sgemm);
  const std::string path = dladdr(symbol, &where) != 0 && where.dli_fname != nullptr ? where.dli_fname : "?";
  // Asked for by name: a program that runs with another BLAS in its place must still start.
  using ConfigFunction = char* (*)();
  const auto config = reinterpret_cast<ConfigFunction>(dlsym(RTLD_DEFAULT, "openblas_get_config"));
  if (config == nullptr) {
    info.description = path;
    info.warning = "the BLAS behind training is not OpenBLAS but " + path +
                   ": float products may be 50 times slower (install libopenblas0-openmp)";
    return info;
  }
  info.description = std::string(config()) + " from " + path;
  return info;
}

}  // namespace pith::train
