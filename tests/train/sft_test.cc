// The SFT loop on tiny models: it learns, it resumes bit for bit, also after kill -9, and it stops on what cannot work.
#include "train/sft.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "base/json.h"
#include "base/random.h"
#include "model/pack.h"
#include "train/train_checkpoint.h"
#include "train_test.h"

namespace pith::train {
namespace {

// Samples with a pattern to learn: the response counts up from the prompt's last token.
std::vector<Sample> CountingSamples(int count, uint64_t seed) {
  std::vector<Sample> samples;
  for (int i = 0; i < count; ++i) {
    const auto stream = static_cast<uint64_t>(i);
    const auto prompt = 3 + static_cast<int64_t>(RandomBits(seed, stream, 0) % 8);
    const auto response = 4 + static_cast<int64_t>(RandomBits(seed, stream, 1) % 10);
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < prompt; ++t) {
      tokens.push_back(static_cast<int32_t>(RandomBits(seed, stream, static_cast<uint64_t>(t) + 2) % 90));
    }
    for (int64_t t = 0; t < response; ++t) tokens.push_back((tokens.back() + 1) % 96);
    Sample sample;
    sample.response = prompt;
    for (size_t t = 0; t + 1 < tokens.size(); ++t) {
      sample.tokens.push_back(tokens[t]);
      sample.labels.push_back(static_cast<int64_t>(t) + 1 >= prompt ? tokens[t + 1] : kNoLabel);
    }
    samples.push_back(sample);
  }
  return samples;
}

SftOptions Options(const std::string& out) {
  SftOptions options;
  options.output_dir = out;
  options.per_device_train_batch_size = 2;
  options.gradient_accumulation_steps = 2;
  options.max_length = 64;
  options.max_steps = 12;
  options.learning_rate = 2e-2;
  options.save_steps = 0;
  return options;
}

std::unique_ptr<TrainModel> NewModel(bool lora = true) {
  TrainModelOptions options;
  if (lora) options = WithLora(0.1);
  options.seed = 11;
  return LoadModel("qwen2_tied", options);
}

Result<SftResult> Train(TrainModel& model, const SftOptions& options, const std::vector<Sample>& eval = {},
                        const std::atomic<bool>* cancel = nullptr) {
  const auto comm = SingleProcess();
  return TrainSft(model, CountingSamples(40, 1), eval, options, *comm, {}, cancel);
}

std::vector<Json> Metrics(const std::string& out) {
  std::vector<Json> lines;
  std::istringstream text(testing::ReadFile(out + "/metrics.jsonl"));
  std::string line;
  while (std::getline(text, line)) lines.push_back(Json::parse(line));
  return lines;
}

TEST(Sft, LearnsAndWritesWhatItDid) {
  for (const bool lora : {true, false}) {
    const std::string out = testing::TempDir() + "/out";
    SftOptions options = Options(out);
    options.max_steps = 200;
    if (!lora) options.learning_rate = 1e-2;
    const auto model = NewModel(lora);
    const auto before = EvaluateLoss(*model, CountingSamples(40, 1), lora, 64);
    const auto result = Train(*model, options);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result->steps, 200);
    const auto after = EvaluateLoss(*model, CountingSamples(40, 1), lora, 64);
    ASSERT_TRUE(before.ok() && after.ok());
    EXPECT_GT(*before, 4.0);
    EXPECT_LT(*after, 0.2);
    const auto metrics = Metrics(out);
    ASSERT_EQ(metrics.size(), 200U);
    EXPECT_EQ(metrics[199]["step"], 200);
    EXPECT_LT(metrics[199]["loss"].get<double>(), metrics[0]["loss"].get<double>() / 2);
    // What was written is what is held.
    if (lora) {
      const auto again = NewModel();
      ASSERT_TRUE(again->LoadAdapter(out).ok());
      EXPECT_EQ(again->CopyParameters(), model->CopyParameters());
    } else {
      EXPECT_EQ(LoadModel(out, {})->CopyParameters(), model->CopyParameters());
    }
  }
}

TEST(Sft, ResumeIsBitExact) {
  for (const bool lora : {true, false}) {
    const std::string straight = testing::TempDir() + "/straight";
    const std::string cut = testing::TempDir() + "/cut";
    const auto whole = NewModel(lora);
    ASSERT_TRUE(Train(*whole, Options(straight)).ok());
    // Cancelled during step 5, which it finishes.
    SftOptions options = Options(cut);
    std::atomic<bool> cancel{false};
    const auto comm = SingleProcess();
    const auto first = NewModel(lora);
    const auto stopped = TrainSft(
        *first, CountingSamples(40, 1), {}, options, *comm,
        [&](const SftProgress& progress) { cancel = progress.step == 5; }, &cancel);
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
    EXPECT_NE(first->CopyParameters(), whole->CopyParameters());
    options.resume = true;
    const auto second = NewModel(lora);
    const auto result = Train(*second, options);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result->steps, 12);
    EXPECT_EQ(second->CopyParameters(), whole->CopyParameters());
    EXPECT_EQ(testing::ReadFile(cut + "/checkpoint-12/optimizer.safetensors"),
              testing::ReadFile(straight + "/checkpoint-12/optimizer.safetensors"));
    const auto a = Metrics(straight);
    const auto b = Metrics(cut);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      for (const char* key : {"step", "loss", "grad_norm", "learning_rate", "epoch", "tokens"}) {
        EXPECT_EQ(a[i][key], b[i][key]) << i << key;
      }
    }
  }
}

// Goes on with the run in `out` in a process of its own, a checkpoint every step; negative when there is none.
pid_t TrainInAChild(const std::string& out) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  SftOptions options = Options(out);
  options.save_steps = 1;
  options.resume = true;
  const auto model = NewModel();
  ::_exit(Train(*model, options).ok() ? 0 : 1);
}

void ExpectAsUndisturbed(const std::string& out) {
  const auto whole = NewModel();
  ASSERT_TRUE(Train(*whole, Options(testing::TempDir() + "/straight")).ok());
  const auto survived = NewModel();
  ASSERT_TRUE(survived->LoadAdapter(out).ok());
  EXPECT_EQ(survived->CopyParameters(), whole->CopyParameters());
}

// The process dies at any moment; it goes on and ends where an undisturbed run ends.
TEST(Sft, SurvivesKillNine) {
  const std::string out = testing::TempDir() + "/out";
  int kills = 0;
  int64_t last_step = 0;
  for (int attempt = 0; attempt < 200; ++attempt) {
    const pid_t child = TrainInAChild(out);
    ASSERT_GE(child, 0);
    const auto wait = 15000 + static_cast<useconds_t>(RandomBits(1, 1, static_cast<uint64_t>(attempt)) % 60000);
    ::usleep(kills < 12 ? wait : 60000000U / 4);
    if (kills < 12) ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const auto steps = ListCheckpoints(out);
    ASSERT_TRUE(steps.ok());
    if (!steps->empty()) {
      EXPECT_GE(steps->back(), last_step);  // a whole checkpoint is never lost
      last_step = steps->back();
    }
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    ++kills;
  }
  EXPECT_EQ(last_step, 12);
  ExpectAsUndisturbed(out);
  RecordProperty("kills", kills);
}

// When an unfinished checkpoint in `out` was last written to; nothing without one.
std::optional<std::filesystem::file_time_type> Unfinished(const std::string& out) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(out, error)) {
    if (entry.path().extension() != ".partial") continue;
    const auto time = std::filesystem::last_write_time(entry.path(), error);
    if (!error) return time;
  }
  return std::nullopt;
}

// The kills that matter: while a checkpoint is being written. Each leaves an unfinished one behind and costs no more
// than the step under way.
TEST(Sft, KilledWhileWritingACheckpoint) {
  const std::string out = testing::TempDir() + "/out";
  constexpr int kHits = 4;
  int hits = 0;
  int64_t last_step = 0;
  bool finished = false;
  for (int attempt = 0; attempt < 100 && !finished; ++attempt) {
    const auto left = Unfinished(out);
    const pid_t child = TrainInAChild(out);
    ASSERT_GE(child, 0);
    int status = 0;
    bool ended = false;
    while (!ended && hits < kHits) {
      ended = ::waitpid(child, &status, WNOHANG) == child;
      if (const auto now = Unfinished(out); ended || !now || now == left) continue;
      ::kill(child, SIGKILL);
      break;
    }
    if (!ended) {
      ASSERT_EQ(::waitpid(child, &status, 0), child);
    }
    finished = WIFEXITED(status);
    ASSERT_TRUE(!finished || WEXITSTATUS(status) == 0);
    const auto now = Unfinished(out);
    hits += !finished && now && now != left ? 1 : 0;
    const auto steps = ListCheckpoints(out);
    ASSERT_TRUE(steps.ok());
    if (!steps->empty()) {
      EXPECT_GE(steps->back(), last_step);
      last_step = steps->back();
    }
  }
  EXPECT_EQ(hits, kHits);
  EXPECT_TRUE(finished);
  EXPECT_EQ(last_step, 12);
  ExpectAsUndisturbed(out);
}

TEST(Sft, OtherOptionsDoNotResume) {
  const std::string out = testing::TempDir() + "/out";
  SftOptions options = Options(out);
  options.max_steps = 2;
  ASSERT_TRUE(Train(*NewModel(), options).ok());
  options.resume = true;
  options.learning_rate = 1e-3;
  const auto result = Train(*NewModel(), options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kMismatch);
  EXPECT_NE(result.error().message.find("learning_rate=0.001"), std::string::npos) << result.error().message;
}

// A new run in the folder of another one would mix with it: the older checkpoints have the higher steps.
TEST(Sft, ANewRunDoesNotWriteOverAnother) {
  const std::string out = testing::TempDir() + "/out";
  ASSERT_TRUE(Train(*NewModel(), Options(out)).ok());
  const auto steps = *ListCheckpoints(out);
  const auto again = Train(*NewModel(), Options(out));
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(again.error().message.find("--resume"), std::string::npos);
  EXPECT_EQ(*ListCheckpoints(out), steps);
}

TEST(Sft, KeepsTheLastAndTheBest) {
  const std::string out = testing::TempDir() + "/out";
  SftOptions options = Options(out);
  options.eval_steps = 2;
  options.save_steps = 1;
  options.save_total_limit = 2;
  options.learning_rate = 0.3;  // soon gets worse
  options.schedule = ScheduleKind::kConstant;
  options.warmup_ratio = 0;
  const auto model = NewModel();
  const auto result = Train(*model, options, CountingSamples(10, 3));
  ASSERT_TRUE(result.ok()) << result.error().message;
  const auto steps = ListCheckpoints(out);
  ASSERT_TRUE(steps.ok());
  std::set<int64_t> want = {11, 12, result->best_step};
  EXPECT_EQ(std::set<int64_t>(steps->begin(), steps->end()), want);
  // The result is the best one.
  const auto loss = EvaluateLoss(*model, CountingSamples(10, 3), true, 64);
  ASSERT_TRUE(loss.ok());
  EXPECT_DOUBLE_EQ(*loss, *result->best_eval_loss);
  const auto again = NewModel();
  ASSERT_TRUE(again->LoadAdapter(out).ok());
  EXPECT_EQ(again->CopyParameters(), model->CopyParameters());
}

TEST(Sft, StopsOnWhatCannotWork) {
  SftOptions options = Options(testing::TempDir() + "/out");
  const auto model = NewModel();
  const auto comm = SingleProcess();
  EXPECT_EQ(TrainSft(*model, {}, {}, options, *comm).error().code, ErrorCode::kInvalidArgument);
  Sample one_token;  // a response of one token: its prediction is the base's
  one_token.tokens = {1, 2, 3};
  one_token.labels = {kNoLabel, kNoLabel, 4};
  one_token.response = 3;
  EXPECT_EQ(TrainSft(*model, {one_token}, {}, options, *comm).error().code, ErrorCode::kInvalidArgument);
  options.gradient_accumulation_steps = 0;
  EXPECT_EQ(Train(*model, options).error().code, ErrorCode::kInvalidArgument);
  options = Options(testing::TempDir() + "/out");
  options.learning_rate = 1e30;
  const auto diverged = Train(*model, options);
  ASSERT_FALSE(diverged.ok());
  EXPECT_EQ(diverged.error().code, ErrorCode::kNumeric);
  EXPECT_NE(diverged.error().message.find("step "), std::string::npos) << diverged.error().message;
}

// Masked and unmasked runs see the same data and learn other things; dropout and order come from the seed.
TEST(Sft, SeedAndMaskDecide) {
  std::vector<std::vector<float>> results;
  for (int variant = 0; variant < 4; ++variant) {
    SftOptions options = Options(testing::TempDir() + "/out");
    options.max_steps = 3;
    if (variant == 2) options.seed = 5;
    if (variant == 3) options.mask_prompt_adapter = false;
    const auto model = NewModel();
    ASSERT_TRUE(Train(*model, options).ok());
    results.push_back(model->CopyParameters());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_NE(results[0], results[2]);
  EXPECT_NE(results[0], results[3]);
}

// The loss on a packed base falls as on the same weights in float32.
TEST(Sft, PackedBaseLearnsAsFloat) {
  const auto checkpoint = Checkpoint::Open(testing::GoldenPath("models/qwen2_tied"));
  const auto recipe = ParseRecipe("w4g32,head=w8g32,weigh=none");
  const std::string dir = testing::TempDir() + "/packed";
  ASSERT_TRUE(PackCheckpoint(**checkpoint, *recipe, dir).ok());
  double last[2];
  for (const BaseFormat base : {BaseFormat::kF32, BaseFormat::kPacked}) {
    TrainModelOptions model_options = WithLora();
    model_options.base = base;
    const auto model = LoadModel(dir, model_options);
    SftOptions options = Options(testing::TempDir() + "/out");
    options.max_steps = 80;
    const auto result = Train(*model, options);
    ASSERT_TRUE(result.ok());
    last[base == BaseFormat::kPacked ? 1 : 0] = *EvaluateLoss(*model, CountingSamples(40, 1), true, 64);
  }
  EXPECT_LT(last[0], 1.0);
  EXPECT_NEAR(last[1], last[0], 0.1 * last[0]);
}

}  // namespace
}  // namespace pith::train
