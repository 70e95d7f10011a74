// Time to choose a token among 151,936 (the vocabulary of Qwen2.5), on peaked and flat logits.
#include <benchmark/benchmark.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "engine/sampler.h"

namespace pith {
namespace {

void Run(benchmark::State& state, SamplingParams params) {
  const double scale = static_cast<double>(state.range(0)) / 10.0;
  std::vector<float> logits(151936);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(scale * std::sqrt(-2.0 * std::log(1.0 - RandomUniform(1, 0, i))) *
                                   std::cos(6.283185307179586 * RandomUniform(1, 1, i)));
  }
  const std::vector<int32_t> seen(2048, 17);
  auto sampler = Sampler::Create(params);
  uint64_t position = 0;
  for (auto _ : state) benchmark::DoNotOptimize(sampler->Sample(logits, seen, 0, position++));
}
BENCHMARK_CAPTURE(Run, greedy, SamplingParams{.temperature = 0.0})->Arg(30);
BENCHMARK_CAPTURE(Run, greedy_penalty, SamplingParams{.temperature = 0.0, .repetition_penalty = 1.1})->Arg(30);
BENCHMARK_CAPTURE(Run, plain, SamplingParams{})->Arg(30)->Arg(1);
BENCHMARK_CAPTURE(Run, top_k, SamplingParams{.top_k = 40})->Arg(30)->Arg(1);
BENCHMARK_CAPTURE(Run, top_p, SamplingParams{.top_p = 0.9})->Arg(30)->Arg(1);
BENCHMARK_CAPTURE(Run, min_p, SamplingParams{.min_p = 0.05})->Arg(30)->Arg(1);
BENCHMARK_CAPTURE(Run, qwen, SamplingParams{.temperature = 0.7, .top_k = 20, .top_p = 0.8, .repetition_penalty = 1.05})
    ->Arg(30);

}  // namespace
}  // namespace pith

BENCHMARK_MAIN();
