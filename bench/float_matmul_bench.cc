// Speed of the float products: GMAC/s, and bytes of weights read per second. `--benchmark_filter=M:1/` for one row.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/float_matmul.h"
#include "kernels/targets.h"

namespace pith {
namespace {

void BM_FloatMatmul(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const bool bf16 = state.range(3) != 0;
  std::vector<float> x(static_cast<size_t>(m * k)), w(static_cast<size_t>(n * k)), out(static_cast<size_t>(m * n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8.0f;
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 13) - 6.0f;
  std::vector<uint16_t> bits(w.size());
  ConvertToBF16(w.data(), n * k, bits.data());
  const FloatMatrix matrix{bf16 ? FloatType::kBF16 : FloatType::kF32,
                           bf16 ? static_cast<const void*>(bits.data()) : w.data(), n, k};
  for (auto _ : state) {
    FloatMatmul(x.data(), k, m, matrix, 0, n, 1.0f, false, out.data(), n);
    benchmark::ClobberMemory();
  }
  state.SetLabel(ActiveKernelTarget());
  state.counters["GMAC/s"] =
      benchmark::Counter(static_cast<double>(m * n * k) * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.SetBytesProcessed(state.iterations() * n * k * (bf16 ? 2 : 4));
}
// A projection of a 0.5B model, its down projection, LoRA factors of rank 16 and 128.
BENCHMARK(BM_FloatMatmul)
    ->ArgNames({"M", "N", "K", "bf16"})
    ->ArgsProduct({{1, 2, 4, 16, 128}, {4864}, {896}, {0, 1}})
    ->ArgsProduct({{1, 16, 128}, {896}, {4864}, {0, 1}})
    ->ArgsProduct({{1, 8}, {16, 128}, {896}, {1}})
    ->ArgsProduct({{1, 8}, {896}, {16, 128}, {1}});

}  // namespace
}  // namespace pith

int main(int argc, char** argv) {
  // PITH_TARGET=AVX2 picks a vector target.
  if (const char* target = std::getenv("PITH_TARGET"); target != nullptr && !pith::SelectKernelTarget(target)) return 2;
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
