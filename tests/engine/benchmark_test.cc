#include "engine/benchmark.h"

#include <gtest/gtest.h>

#include "support/data.h"

namespace pith {
namespace {

std::unique_ptr<Engine> TinyEngine(int64_t context) {
  const auto checkpoint = Checkpoint::Open(testing::GoldenPath("models/llama"));
  EXPECT_TRUE(checkpoint.ok());
  EngineOptions options;
  options.context = context;
  options.threads = 1;
  auto engine = Engine::Load(*checkpoint, options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return std::move(*engine);
}

BenchmarkOptions Small() {
  BenchmarkOptions options;
  options.prompt = 8;
  options.generate = 4;
  options.depth = 16;
  options.streams = {1, 3};
  options.repetitions = 2;
  return options;
}

std::vector<std::string> Names(const std::vector<BenchmarkRow>& rows) {
  std::vector<std::string> names;
  for (const BenchmarkRow& row : rows) names.push_back(row.name);
  return names;
}

TEST(Benchmark, RunsEveryRowOfThePlan) {
  const auto engine = TinyEngine(64);
  const auto rows = RunBenchmark(*engine, Small());
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  EXPECT_EQ(Names(*rows), (std::vector<std::string>{"pp8", "tg4", "pp8+tg4", "tg4@d16", "pp8+tg2x1", "pp8+tg2x3"}));
  std::vector<std::string> planned;
  for (const BenchmarkPlan& plan : PlanBenchmark(Small())) planned.push_back(plan.name);
  EXPECT_EQ(Names(*rows), planned);
  for (const BenchmarkRow& row : *rows) {
    EXPECT_EQ(row.seconds.size(), 2u) << row.name;
    EXPECT_GT(row.median_rate, 0) << row.name;
  }
  EXPECT_EQ(rows->back().tokens, 6);
}

TEST(Benchmark, OnlyNamedRowsAndNoUnknownNames) {
  const auto engine = TinyEngine(64);
  BenchmarkOptions options = Small();
  options.only = {"tg4"};
  const auto rows = RunBenchmark(*engine, options);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(Names(*rows), std::vector<std::string>{"tg4"});

  options.only = {"tg128"};
  const auto unknown = RunBenchmark(*engine, options);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_NE(unknown.error().message.find("'tg128'"), std::string::npos) << unknown.error().message;
  EXPECT_NE(unknown.error().message.find("tg4@d16"), std::string::npos) << unknown.error().message;
}

TEST(Benchmark, RowsLongerThanTheContextAreLeftOutUnlessNamed) {
  const auto engine = TinyEngine(12);
  BenchmarkOptions options = Small();
  const auto rows = RunBenchmark(*engine, options);
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  EXPECT_EQ(Names(*rows), (std::vector<std::string>{"pp8", "tg4", "pp8+tg4", "pp8+tg2x1", "pp8+tg2x3"}));
  options.only = {"tg4@d16"};
  const auto named = RunBenchmark(*engine, options);
  ASSERT_FALSE(named.ok());
  EXPECT_EQ(named.error().code, ErrorCode::kContextOverflow);
}

}  // namespace
}  // namespace pith
