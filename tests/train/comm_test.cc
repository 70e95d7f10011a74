// Two ranks over gloo on the loopback interface give the update of one rank with twice the batch.
#include "train/comm.h"

#include <atomic>
#include <cstdlib>

#include "ranks.h"
#include "train/sft.h"
#include "train/train_checkpoint.h"
#include "train_test.h"

namespace pith::train {
namespace {

TEST(Comm, SumsOverRanks) {
  EXPECT_TRUE(InTwoRanks([] {
    const auto comm = CommFromEnvironment();
    if (!comm.ok()) return 1;
    std::vector<float> values(1000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + static_cast<float>((*comm)->rank());
    if (!(*comm)->AllReduceSum(values).ok() || !(*comm)->Barrier().ok()) return 2;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] != 2.0F * static_cast<float>(i) + 1.0F) return 3;
    }
    return 0;
  }));
}

std::vector<Sample> Samples() {
  std::vector<Sample> samples;
  for (int i = 0; i < 12; ++i) {
    Sample sample = GoldenSample("qwen2_untied", 20);
    sample.tokens.resize(30 + 2 * static_cast<size_t>(i));
    sample.labels.resize(sample.tokens.size());
    samples.push_back(sample);
  }
  return samples;
}

SftOptions Options(const std::string& out, int64_t rows) {
  SftOptions options;
  options.output_dir = out;
  options.per_device_train_batch_size = rows;
  options.gradient_accumulation_steps = 2;
  options.max_length = 64;
  options.max_steps = 3;
  options.save_steps = 0;
  return options;
}

TEST(Comm, TwoRanksEqualOneWithTwiceTheBatch) {
  const std::string together = testing::TempDir() + "/together";
  EXPECT_TRUE(InTwoRanks([&] {
    const auto comm = CommFromEnvironment();
    if (!comm.ok()) return 1;
    const auto model = LoadAdapted("qwen2_untied");
    return TrainSft(*model, Samples(), {}, Options(together, 1), **comm).ok() ? 0 : 2;
  }));
  const auto alone = LoadAdapted("qwen2_untied");
  const auto before = alone->CopyParameters();
  const auto comm = SingleProcess();
  ASSERT_TRUE(TrainSft(*alone, Samples(), {}, Options(testing::TempDir() + "/alone", 2), *comm).ok());
  const auto ranks = LoadModel("qwen2_untied", WithLora());
  ASSERT_TRUE(ranks->LoadAdapter(together).ok());
  EXPECT_LT(RelativeError(ranks->CopyParameters(), alone->CopyParameters()), 1e-6);
  EXPECT_GT(RelativeError(before, alone->CopyParameters()), 1e-4);
}

// Rank 0 alone writes checkpoints; the others must not wait for it where it does not come.
TEST(Comm, TwoRanksEvaluateSaveAndStop) {
  const std::string out = testing::TempDir() + "/together";
  EXPECT_TRUE(InTwoRanks([&] {
    const auto comm = CommFromEnvironment();
    if (!comm.ok()) return 1;
    const auto model = LoadAdapted("qwen2_untied");
    SftOptions options = Options(out, 1);
    options.max_steps = 6;
    options.eval_steps = 2;
    const auto result = TrainSft(*model, Samples(), Samples(), options, **comm);
    if (!result.ok()) return 2;
    // One rank is asked to stop: both do, at the same step.
    options.resume = true;
    options.max_steps = 6;
    options.output_dir = out + "_stopped";
    const auto again = LoadAdapted("qwen2_untied");
    const std::atomic<bool> stop((*comm)->rank() == 1);
    const auto stopped = TrainSft(*again, Samples(), {}, options, **comm, {}, &stop);
    return !stopped.ok() && stopped.error().code == ErrorCode::kCancelled ? 0 : 3;
  }));
  EXPECT_EQ(*ListCheckpoints(out + "_stopped"), std::vector<int64_t>{1});
}

TEST(Comm, TheEnvironmentIsChecked) {
  ::unsetenv("WORLD_SIZE");
  EXPECT_EQ((*CommFromEnvironment())->size(), 1);
  for (const auto& [rank, size] : {std::pair{"2", "2"}, {"x", "2"}, {"0", "-3"}, {"0", "99999999"}}) {
    SetRank(0, 2, 5000);
    ::setenv("RANK", rank, 1);
    ::setenv("WORLD_SIZE", size, 1);
    EXPECT_EQ(CommFromEnvironment().error().code, ErrorCode::kInvalidArgument) << rank << " of " << size;
  }
  ::unsetenv("WORLD_SIZE");
}

}  // namespace
}  // namespace pith::train
