// Speed of the low-bit products: one pass over the linears of the Qwen2.5-0.5B shape, by weight format and number of
// tokens. read: bytes of weights and scales a second, for few tokens; MAC/s for many (a 16-bit activation counts once).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/qmatmul.h"
#include "kernels/targets.h"

namespace pith::kernels {
namespace {

struct Matrix {
  std::vector<uint8_t> data;
  std::vector<uint16_t> scales;
  QuantMatrix matrix;
};

// Every layer has its own weights: they must come from memory, as in a model.
std::vector<Matrix> Layers(int bits, int64_t group, bool minimum) {
  constexpr struct { int64_t rows, cols; } kShapes[] = {{896, 896}, {256, 896}, {896, 896}, {9728, 896}, {896, 4864}};
  std::vector<Matrix> matrices;
  for (int layer = 0; layer < 24; ++layer) {
    for (const auto& shape : kShapes) {
      Matrix& m = matrices.emplace_back();
      m.data.resize(static_cast<size_t>(shape.rows * shape.cols * bits / 8));
      for (size_t i = 0; i < m.data.size(); ++i) m.data[i] = static_cast<uint8_t>(i * 2654435761U >> 13);
      const int64_t width = group == 0 ? shape.cols : group;
      m.scales.assign(static_cast<size_t>(shape.rows * (shape.cols / width)), uint16_t{0x2400});
      PackedWeights packed{.rows = shape.rows, .cols = shape.cols, .bits = bits, .group = width};
      packed.data = m.data.data();
      packed.scales_f16 = m.scales.data();
      if (minimum) {
        packed.zero = ZeroKind::kMin;
        packed.mins_f16 = m.scales.data();
      }
      m.matrix = QuantMatrix(packed);
    }
  }
  return matrices;
}

void BM_QuantMatMul(benchmark::State& state) {
  const auto bits = static_cast<int>(state.range(0));
  const int64_t group = state.range(1);
  const int64_t tokens = state.range(3);
  const ActivationBits activations = state.range(4) == 16 ? ActivationBits::k16 : ActivationBits::k8;
  ThreadPool pool(static_cast<int>(state.range(5)));
  const std::vector<Matrix> layers = Layers(bits, group, state.range(2) != 0);
  std::vector<float> x(static_cast<size_t>(tokens * 4864));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(RandomUniform(1, 2, i)) - 0.5F;
  std::vector<float> out(static_cast<size_t>(tokens * 9728));
  QuantActivations quantized;
  double bytes = 0;
  double macs = 0;
  for (const Matrix& m : layers) {
    bytes += static_cast<double>(m.data.size() + m.matrix.owned_bytes());
    macs += static_cast<double>(m.matrix.rows() * m.matrix.cols() * tokens);
  }
  for (auto _ : state) {
    for (const Matrix& m : layers) {
      const int64_t cols = m.matrix.cols();
      quantized.Quantize(x.data(), tokens, cols, cols, activations, ScaleKindFor(m.matrix, activations), bits, &pool);
      const QuantProduct product{&m.matrix, &quantized, out.data(), m.matrix.rows()};
      QuantMatMul({&product, 1}, pool);
    }
    benchmark::ClobberMemory();
  }
  state.SetLabel(ActiveKernelTarget());
  state.counters["read"] = benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["MAC/s"] = benchmark::Counter(macs, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_QuantMatMul)
    ->ArgNames({"bits", "group", "minimum", "tokens", "activations", "threads"})
    ->ArgsProduct({{4}, {32}, {0, 1}, {1, 2, 4, 8, 128}, {16}, {2}})
    ->ArgsProduct({{4, 8}, {0}, {0}, {1, 8, 128}, {16}, {2}})
    ->ArgsProduct({{4}, {32}, {0}, {1, 128}, {8, 16}, {1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pith::kernels

int main(int argc, char** argv) {
  if (const char* target = std::getenv("PITH_TARGET"); target != nullptr && !pith::SelectKernelTarget(target)) return 2;
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
