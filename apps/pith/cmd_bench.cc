// pith bench: speed of a model on this machine, in rows like llama-bench's.
#include <cstdio>
#include <memory>

#include "base/progress.h"
#include "command.h"
#include "engine/benchmark.h"
#include "engine_options.h"
#include "json_output.h"
#include "kernels/limits.h"
#include "kernels/self_test.h"
#include "kernels/targets.h"
#include "run_stats.h"

namespace pith {

namespace {

struct BenchOptions {
  EngineFlags engine;
  BenchmarkOptions benchmark;
  std::string adapter;
  int64_t random_adapter = 0;
  bool limits = false;
  bool self_test = false;
};

double LinearMacsPerToken(const ModelConfig& config) {
  double macs = 0;
  for (const LinearKind kind : {LinearKind::kQ, LinearKind::kK, LinearKind::kV, LinearKind::kO, LinearKind::kGate,
                                LinearKind::kUp, LinearKind::kDown}) {
    const LinearShape shape = ShapeOf(config, kind);
    macs += static_cast<double>(shape.in) * static_cast<double>(shape.out);
  }
  return macs * static_cast<double>(config.layers);
}

Status RunBench(const Cli& cli, const BenchOptions& options) {
  if (options.self_test) {
    ThreadPool pool(options.engine.threads);
    PITH_RETURN_IF_ERROR(kernels::SelfTest(pool));
    if (cli.json()) {
      PrintJson({{"self_test", "passed"}, {"kernels", ActiveKernelTarget()}});
    } else {
      std::printf("self-test passed on %s\n", ActiveKernelTarget().c_str());
    }
    return {};
  }
  const RunClock clock;
  PITH_ASSIGN(const auto model, LoadTextModel(options.engine));
  Engine& engine = model->engine();
  const double ready = clock.SecondsSinceProgramStart();
  std::shared_ptr<const Adapter> adapter;
  if (!options.adapter.empty()) {
    PITH_ASSIGN(adapter, engine.LoadAdapter(options.adapter));
  } else if (options.random_adapter > 0) {
    adapter = Adapter::Random(engine.config(), options.random_adapter, engine.options().adapters);
  }
  BenchmarkOptions benchmark = options.benchmark;
  if (!cli.json()) {
    std::printf("model %s, weights %s, kv %s, activations %s, %d threads, kernels %s\n", options.engine.model.c_str(),
                engine.weights().description.c_str(), options.engine.kv.c_str(), options.engine.activations.c_str(),
                engine.pool().threads(), ActiveKernelTarget().c_str());
    std::printf("%-22s %-8s %12s %12s\n", "test", "adapter", "median t/s", "best t/s");
  }
  OrderedJson rows = OrderedJson::array();
  double decode_rate = 0;
  double prefill_rate = 0;
  for (const Adapter* with : {static_cast<const Adapter*>(nullptr), adapter.get()}) {
    if (with == nullptr && !rows.empty()) break;
    benchmark.adapter = with;
    PITH_ASSIGN(const auto measured, RunBenchmark(engine, benchmark));
    for (const BenchmarkRow& row : measured) {
      if (!cli.json()) {
        std::printf("%-22s %-8s %12.2f %12.2f\n", row.name.c_str(), row.adapter ? "on" : "off", row.median_rate,
                    row.best_rate);
        std::fflush(stdout);
      }
      if (!row.adapter && row.name == "tg" + std::to_string(benchmark.generate)) decode_rate = row.median_rate;
      if (!row.adapter && row.name == "pp" + std::to_string(benchmark.prompt)) prefill_rate = row.median_rate;
      rows.push_back({{"test", row.name},
                      {"adapter", row.adapter},
                      {"tokens", row.tokens},
                      {"seconds", row.seconds},
                      {"median_tokens_per_second", row.median_rate},
                      {"best_tokens_per_second", row.best_rate}});
    }
  }
  OrderedJson json{{"model", options.engine.model},
                   {"weights", engine.weights().description},
                   {"kv", options.engine.kv},
                   {"activations", options.engine.activations},
                   {"threads", engine.pool().threads()},
                   {"kernels", ActiveKernelTarget()},
                   {"file_bytes", model->checkpoint()->file_bytes()},
                   {"weight_bytes_per_token", engine.weights().bytes_per_token},
                   {"ready_s", ready},
                   {"rows", rows},
                   {"left_out", OrderedJson::array()}};
  for (const BenchmarkPlan& plan : PlanBenchmark(benchmark)) {
    if (plan.context <= engine.context()) continue;
    json["left_out"].push_back(plan.name);
    if (!cli.json()) {
      std::printf("%-22s left out: it needs %lld positions, the context has %lld\n", plan.name.c_str(),
                  static_cast<long long>(plan.context), static_cast<long long>(engine.context()));
    }
  }
  if (adapter != nullptr && benchmark.depth > 0) {
    PITH_ASSIGN(const SwitchCost cost, MeasureSwitch(engine, *adapter, benchmark.depth));
    json["switch"] = {{"step_s", cost.step_seconds},
                      {"adapter_step_s", cost.adapter_step_seconds},
                      {"to_adapter_s", cost.to_adapter_seconds},
                      {"to_base_s", cost.to_base_seconds}};
    if (!cli.json()) {
      std::printf("switch at depth %lld: to adapter %.1f ms, back %.1f ms (a step: base %.1f ms, adapter %.1f ms)\n",
                  static_cast<long long>(benchmark.depth), cost.to_adapter_seconds * 1e3, cost.to_base_seconds * 1e3,
                  cost.step_seconds * 1e3, cost.adapter_step_seconds * 1e3);
    }
  }
  json["peak_rss_bytes"] = PeakRss();
  if (!cli.json()) {
    std::printf("file %s, weights read per token %s, peak memory %s, ready after %.2f s\n",
                HumanBytes(model->checkpoint()->file_bytes()).c_str(),
                HumanBytes(engine.weights().bytes_per_token).c_str(), HumanBytes(PeakRss()).c_str(), ready);
  }
  if (options.limits) {
    const MachineLimits limits = MeasureLimits(engine.pool());
    const double read_share =
        decode_rate * static_cast<double>(engine.weights().bytes_per_token) / limits.read_bytes_per_second;
    const bool a16 = options.engine.activations == "a16";
    // A 16-bit activation is two 8-bit digits: two 8-bit multiply-adds each.
    const double mac_share =
        prefill_rate * LinearMacsPerToken(engine.config()) * (a16 ? 2 : 1) / limits.int8_macs_per_second;
    json["limits"] = {{"read_bytes_per_second", limits.read_bytes_per_second},
                      {"int8_macs_per_second", limits.int8_macs_per_second},
                      {"int16_macs_per_second", limits.int16_macs_per_second},
                      {"f32_macs_per_second", limits.f32_macs_per_second},
                      {"decode_share_of_read", read_share},
                      {"prefill_share_of_int8", mac_share}};
    if (!cli.json()) {
      std::printf("limits: read %.1f GB/s, int8 %.0f, int16 %.0f, f32 %.0f GMAC/s\n",
                  limits.read_bytes_per_second * 1e-9, limits.int8_macs_per_second * 1e-9,
                  limits.int16_macs_per_second * 1e-9, limits.f32_macs_per_second * 1e-9);
      std::printf("reached: decode %.0f %% of the read bandwidth, prefill %.0f %% of the int8 peak\n", read_share * 100,
                  mac_share * 100);
    }
  }
  if (cli.json()) PrintJson(json);
  return {};
}

}  // namespace

void AddBenchCommand(Cli& cli) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* app =
      cli.AddCommand("bench", "Measure speed: prefill, decode, depth, shared-prompt streams, adapter switch.",
                     "pith bench -m qwen2.5-coder-0.5b --random-adapter 128 --limits");
  AddEngineOptions(app, options->engine);
  BenchmarkOptions& benchmark = options->benchmark;
  app->add_option("-p,--n-prompt", benchmark.prompt, "Prompt tokens (pp)")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_option("-n,--n-gen", benchmark.generate, "Generated tokens (tg)")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_option("-d,--n-depth", benchmark.depth, "Context length of the deep test; 0 = none")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_option("--streams", benchmark.streams, "Numbers of streams on one shared prompt")
      ->delimiter(',')
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_option("-r,--repetitions", benchmark.repetitions, "Measured repetitions of each test")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_option("--only", benchmark.only, "Only the tests of these names")->delimiter(',');
  CLI::Option* adapter =
      app->add_option("--adapter,--lora", options->adapter, "Measure with this PEFT LoRA directory too");
  SetCompletion(adapter, {.kind = CompletionHint::Kind::kFile, .words = {}});
  app->add_option("--random-adapter", options->random_adapter, "Measure with a random adapter of this rank too")
      ->check(CLI::Range(1, 256))
      ->excludes(adapter);
  app->add_flag("--limits", options->limits,
                "Measure the machine's read bandwidth and multiply peaks, and the share reached");
  app->add_flag("--self-test", options->self_test, "Only check the kernels of this machine against their references");
  cli.OnRun(app, [&cli, options] { return RunBench(cli, *options); });
}

}  // namespace pith
