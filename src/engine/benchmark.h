// Speed of an engine: the rows of `pith bench`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace pith {

struct BenchmarkOptions {
  int64_t prompt = 512;                         // pp
  int64_t generate = 128;                       // tg
  int64_t depth = 2048;                         // context length of the deep test; 0 = leave it out
  std::vector<int64_t> streams = {1, 2, 4, 8};  // parallel streams on one shared prompt
  int repetitions = 3;
  std::vector<std::string> only;                       // names of rows to run ("pp512"); empty = all
  const Adapter* adapter = nullptr;                    // on for every generated token (prompts are the base's)
  std::function<void(const std::string& row)> on_row;  // before a row is measured
};

struct BenchmarkRow {
  std::string name;  // "pp512", "tg128", "pp512+tg128", "tg128@d2048", "pp512+tg64x8", ...
  bool adapter = false;
  int64_t tokens = 0;           // counted in the rate
  std::vector<double> seconds;  // of each repetition
  double median_rate = 0;       // tokens per second, all streams together
  double best_rate = 0;
};

// What it costs to change between base and adapter in the middle of a context of `depth` tokens.
struct SwitchCost {
  double step_seconds = 0;          // a decode step of the base
  double adapter_step_seconds = 0;  // a decode step with the adapter
  double to_adapter_seconds = 0;    // first step with the adapter after a step of the base
  double to_base_seconds = 0;       // and back, the adapter's tokens dropped
};

// The rows of a benchmark, each with the positions that it needs of the context.
struct BenchmarkPlan {
  std::string name;
  int64_t context = 0;
};
std::vector<BenchmarkPlan> PlanBenchmark(const BenchmarkOptions& options);

// Runs the rows that fit the context; each repetition on fresh sequences, one unmeasured warm-up per row. kNotFound for
// a name in `only` that is no row, kContextOverflow for one that does not fit.
Result<std::vector<BenchmarkRow>> RunBenchmark(Engine& engine, const BenchmarkOptions& options);
Result<SwitchCost> MeasureSwitch(Engine& engine, const Adapter& adapter, int64_t depth);

}  // namespace pith
