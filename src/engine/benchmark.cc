#include "engine/benchmark.h"

#include <algorithm>
#include <chrono>

#include "base/random.h"

namespace pith {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<int32_t> RandomTokens(const Engine& engine, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(RandomBits(1, 0, static_cast<uint64_t>(i)) %
                                          static_cast<uint64_t>(engine.config().vocab)));
  }
  return tokens;
}

Status PrefillBase(Engine& engine, Sequence& sequence, std::span<const int32_t> tokens) {
  const auto output = engine.Prefill(sequence, tokens, nullptr, {});
  return output.ok() ? Status() : Status(output.error());
}

// `count` steps of one token for every stream. The tokens are fixed: sampling is not what is measured, logits are
// computed.
Status DecodeSteps(Engine& engine, std::span<Sequence> streams, int64_t count, const Adapter* adapter) {
  const std::vector<int32_t> tokens = RandomTokens(engine, count);
  for (int64_t i = 0; i < count; ++i) {
    std::vector<StepItem> items;
    for (Sequence& stream : streams) {
      items.push_back({&stream, {&tokens[static_cast<size_t>(i)], 1}, adapter, Rows::kLast, Rows::kNone});
    }
    PITH_RETURN_IF_ERROR(engine.Step(items));
  }
  return {};
}

std::string PromptName(const BenchmarkOptions& options) { return "pp" + std::to_string(options.prompt); }
std::string GenerateName(const BenchmarkOptions& options) { return "tg" + std::to_string(options.generate); }
std::string DeepName(const BenchmarkOptions& options) {
  return GenerateName(options) + "@d" + std::to_string(options.depth);
}
// Tokens that each of the parallel streams generates.
int64_t StreamTokens(const BenchmarkOptions& options) { return std::max<int64_t>(1, options.generate / 2); }
std::string StreamsName(const BenchmarkOptions& options, int64_t streams) {
  return PromptName(options) + "+tg" + std::to_string(StreamTokens(options)) + "x" + std::to_string(streams);
}

Status CheckNames(const Engine& engine, const BenchmarkOptions& options) {
  const std::vector<BenchmarkPlan> plans = PlanBenchmark(options);
  for (const std::string& name : options.only) {
    const auto found =
        std::find_if(plans.begin(), plans.end(), [&](const BenchmarkPlan& plan) { return plan.name == name; });
    if (found == plans.end()) {
      std::string names;
      for (const BenchmarkPlan& plan : plans) names += (names.empty() ? "" : ", ") + plan.name;
      return Error{ErrorCode::kNotFound, "no test is named '" + name + "'; with these options there are: " + names};
    }
    if (found->context > engine.context()) {
      return Error{ErrorCode::kContextOverflow, "the test '" + name + "' needs " + std::to_string(found->context) +
                                                    " positions and the context has " +
                                                    std::to_string(engine.context())};
    }
  }
  return {};
}

}  // namespace

std::vector<BenchmarkPlan> PlanBenchmark(const BenchmarkOptions& options) {
  std::vector<BenchmarkPlan> plans;
  if (options.prompt > 0) plans.push_back({PromptName(options), options.prompt});
  if (options.generate > 0) plans.push_back({GenerateName(options), options.generate + 1});
  if (options.prompt > 0 && options.generate > 0) {
    plans.push_back({PromptName(options) + "+" + GenerateName(options), options.prompt + options.generate});
  }
  if (options.depth > 0 && options.generate > 0) {
    plans.push_back({DeepName(options), options.depth + options.generate});
  }
  if (options.prompt > 0) {
    for (const int64_t streams : options.streams) {
      if (streams > 0) plans.push_back({StreamsName(options, streams), options.prompt + StreamTokens(options)});
    }
  }
  return plans;
}

Result<std::vector<BenchmarkRow>> RunBenchmark(Engine& engine, const BenchmarkOptions& options) {
  PITH_RETURN_IF_ERROR(CheckNames(engine, options));
  std::vector<BenchmarkRow> rows;
  const std::vector<BenchmarkPlan> plans = PlanBenchmark(options);
  const auto wanted = [&](const std::string& name) {
    const auto plan = std::find_if(plans.begin(), plans.end(), [&](const BenchmarkPlan& p) { return p.name == name; });
    if (plan == plans.end() || plan->context > engine.context()) return false;
    return options.only.empty() || std::find(options.only.begin(), options.only.end(), name) != options.only.end();
  };
  // `body` measures one repetition: prepares, then returns the seconds of the part that counts.
  const auto measure = [&](const std::string& name, int64_t tokens, const auto& body) -> Status {
    if (options.on_row) options.on_row(name);
    BenchmarkRow row;
    row.name = name;
    row.adapter = options.adapter != nullptr;
    row.tokens = tokens;
    for (int i = -1; i < options.repetitions; ++i) {
      PITH_ASSIGN(const double seconds, body());
      if (i >= 0) row.seconds.push_back(seconds);
    }
    row.median_rate = static_cast<double>(tokens) / Median(row.seconds);
    row.best_rate = static_cast<double>(tokens) / *std::min_element(row.seconds.begin(), row.seconds.end());
    rows.push_back(std::move(row));
    return {};
  };
  const std::string pp = PromptName(options);
  const std::string tg = GenerateName(options);
  const std::vector<int32_t> prompt = RandomTokens(engine, options.prompt);

  // The prompt is the base's in every mode, so its row does not depend on the adapter.
  if (options.adapter == nullptr && wanted(pp)) {
    const auto body = [&]() -> Result<double> {
      Sequence sequence = engine.NewSequence();
      const auto start = Clock::now();
      PITH_RETURN_IF_ERROR(PrefillBase(engine, sequence, prompt));
      return SecondsSince(start);
    };
    PITH_RETURN_IF_ERROR(measure(pp, options.prompt, body));
  }
  if (wanted(tg)) {
    const auto body = [&]() -> Result<double> {
      Sequence sequence = engine.NewSequence();
      PITH_RETURN_IF_ERROR(PrefillBase(engine, sequence, std::span(prompt).first(1)));
      const auto start = Clock::now();
      PITH_RETURN_IF_ERROR(DecodeSteps(engine, {&sequence, 1}, options.generate, options.adapter));
      return SecondsSince(start);
    };
    PITH_RETURN_IF_ERROR(measure(tg, options.generate, body));
  }
  if (wanted(pp + "+" + tg)) {
    const auto body = [&]() -> Result<double> {
      Sequence sequence = engine.NewSequence();
      const auto start = Clock::now();
      PITH_RETURN_IF_ERROR(PrefillBase(engine, sequence, prompt));
      PITH_RETURN_IF_ERROR(DecodeSteps(engine, {&sequence, 1}, options.generate, options.adapter));
      return SecondsSince(start);
    };
    PITH_RETURN_IF_ERROR(measure(pp + "+" + tg, options.prompt + options.generate, body));
  }
  const std::string deep = DeepName(options);
  if (wanted(deep)) {
    Sequence base = engine.NewSequence();
    PITH_RETURN_IF_ERROR(PrefillBase(engine, base, RandomTokens(engine, options.depth)));
    const auto body = [&]() -> Result<double> {
      Sequence sequence = base;
      const auto start = Clock::now();
      PITH_RETURN_IF_ERROR(DecodeSteps(engine, {&sequence, 1}, options.generate, options.adapter));
      return SecondsSince(start);
    };
    PITH_RETURN_IF_ERROR(measure(deep, options.generate, body));
  }
  const int64_t each = StreamTokens(options);
  Sequence shared = engine.NewSequence();
  for (const int64_t n : options.streams) {
    const std::string name = StreamsName(options, n);
    if (!wanted(name)) continue;
    if (shared.length() == 0) PITH_RETURN_IF_ERROR(PrefillBase(engine, shared, prompt));
    const auto body = [&]() -> Result<double> {
      std::vector<Sequence> streams(static_cast<size_t>(n), shared);
      const auto start = Clock::now();
      PITH_RETURN_IF_ERROR(DecodeSteps(engine, streams, each, options.adapter));
      return SecondsSince(start);
    };
    PITH_RETURN_IF_ERROR(measure(name, each * n, body));
  }
  return rows;
}

Result<SwitchCost> MeasureSwitch(Engine& engine, const Adapter& adapter, int64_t depth) {
  depth = std::min(depth, engine.context() - 32);
  if (depth < 1) return Error{ErrorCode::kInvalidArgument, "the context is too short to measure a switch"};
  Sequence base = engine.NewSequence();
  PITH_RETURN_IF_ERROR(PrefillBase(engine, base, RandomTokens(engine, depth)));
  constexpr int kRepeats = 9;
  std::vector<double> step, adapter_step, to_adapter, to_base;
  const auto timed = [&](Sequence& sequence, const Adapter* with, std::vector<double>* into) -> Status {
    const auto start = Clock::now();
    PITH_RETURN_IF_ERROR(DecodeSteps(engine, {&sequence, 1}, 1, with));
    into->push_back(SecondsSince(start));
    return {};
  };
  std::vector<double> ignored;
  for (int i = 0; i < kRepeats; ++i) {
    Sequence sequence = base;
    PITH_RETURN_IF_ERROR(timed(sequence, nullptr, &ignored));
    PITH_RETURN_IF_ERROR(timed(sequence, nullptr, &step));
    PITH_RETURN_IF_ERROR(timed(sequence, &adapter, &to_adapter));
    PITH_RETURN_IF_ERROR(timed(sequence, &adapter, &adapter_step));
    const auto start = Clock::now();
    sequence.Truncate(depth + 2);
    PITH_RETURN_IF_ERROR(DecodeSteps(engine, {&sequence, 1}, 1, nullptr));
    to_base.push_back(SecondsSince(start));
  }
  return SwitchCost{Median(step), Median(adapter_step), Median(to_adapter), Median(to_base)};
}

}  // namespace pith
