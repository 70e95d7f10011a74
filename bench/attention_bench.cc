// Speed of attention over the blocked cache for one kv head: GMAC/s over both products, and the time of a decode step.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

#include "kernels/attention.h"
#include "kernels/targets.h"

namespace pith {
namespace {

void BM_Attend(benchmark::State& state) {
  const int64_t rows = state.range(0), tokens = state.range(1), head_dim = state.range(2);
  const KvType type = static_cast<KvType>(state.range(3));
  const int64_t n_blocks = (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
  const size_t block_bytes = static_cast<size_t>(KvBlockBytes(type, head_dim));
  std::vector<char> memory(block_bytes * static_cast<size_t>(2 * n_blocks));
  std::vector<float> scales(static_cast<size_t>(2 * n_blocks * kKvBlockTokens));
  std::vector<KvBlockView> views;
  std::vector<float> vector(static_cast<size_t>(head_dim));
  for (int64_t b = 0; b < n_blocks; ++b) {
    char* k = memory.data() + static_cast<size_t>(2 * b) * block_bytes;
    float* scale = scales.data() + 2 * b * kKvBlockTokens;
    const MutableKvBlock block{type, k, k + block_bytes, scale, scale + kKvBlockTokens};
    for (int64_t slot = 0; slot < kKvBlockTokens; ++slot) {
      for (size_t i = 0; i < vector.size(); ++i)
        vector[i] = static_cast<float>((i * 7 + static_cast<size_t>(slot) * 13) % 31) / 15.0f - 1.0f;
      StoreKv(vector.data(), vector.data(), head_dim, slot, block);
    }
    views.push_back(block);
  }
  std::vector<float> q(static_cast<size_t>(rows * head_dim), 0.05f), out(q.size());
  std::vector<float> workspace(static_cast<size_t>(AttentionWorkspaceFloats(rows, head_dim)));
  const std::vector<int64_t> limits(static_cast<size_t>(rows), tokens);
  for (auto _ : state) {
    Attend(q.data(), limits.data(), rows, head_dim, views.data(), n_blocks, workspace.data(), out.data(), head_dim);
    benchmark::ClobberMemory();
  }
  state.SetLabel(ActiveKernelTarget());
  state.counters["GMAC/s"] = benchmark::Counter(static_cast<double>(2 * rows * tokens * head_dim) * 1e-9,
                                                benchmark::Counter::kIsIterationInvariantRate);
}
// rows: 7 heads of a decode step, 8 streams of it, a chunk of 128 tokens.
BENCHMARK(BM_Attend)
    ->ArgNames({"rows", "tokens", "d", "type"})
    ->ArgsProduct({{1, 3, 6, 7, 56, 896}, {2048}, {64}, {0}})
    ->ArgsProduct({{7}, {64, 512}, {64}, {0}})
    ->ArgsProduct({{7}, {2048}, {64}, {1, 2}})
    ->ArgsProduct({{6, 56}, {2048}, {128}, {0}});

void BM_StoreKv(benchmark::State& state) {
  const int64_t head_dim = state.range(0);
  std::vector<char> memory(static_cast<size_t>(2 * KvBlockBytes(KvType::kInt8, head_dim)));
  std::vector<float> scales(2 * kKvBlockTokens), vector(static_cast<size_t>(head_dim), 0.7f);
  const MutableKvBlock block{KvType::kInt8, memory.data(), memory.data() + memory.size() / 2, scales.data(),
                             scales.data() + kKvBlockTokens};
  int64_t slot = 0;
  for (auto _ : state) {
    StoreKv(vector.data(), vector.data(), head_dim, slot, block);
    slot = (slot + 1) % kKvBlockTokens;
  }
}
BENCHMARK(BM_StoreKv)->Arg(64)->Arg(128);

}  // namespace
}  // namespace pith

int main(int argc, char** argv) {
  // PITH_TARGET=AVX2 picks a vector target.
  if (const char* target = std::getenv("PITH_TARGET"); target != nullptr && !pith::SelectKernelTarget(target)) return 2;
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
