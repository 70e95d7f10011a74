// The GRPO loop on tiny models: it learns, also to keep a budget; resume is bit-exact; ranks add up; what teaches
// nothing changes nothing; what cannot work is told.
#include "train/grpo.h"

#include <cmath>
#include <filesystem>
#include <sstream>

#include "base/json.h"
#include "base/random.h"
#include "model/pack.h"
#include "ranks.h"
#include "tiny_chat_model.h"
#include "train/grpo_watch.h"
#include "train/sft.h"
#include "train/train_checkpoint.h"
#include "train_test.h"

namespace pith::train {
namespace {

ReasoningTexts Texts() {
  ReasoningTexts texts;
  texts.budget_template = " {budget}";
  return texts;
}

std::vector<GrpoProblem> Problems(int count) {
  std::vector<GrpoProblem> problems;
  for (int i = 0; i < count; ++i) problems.push_back({"p" + std::to_string(i), {{"user", std::to_string(i)}}, "7"});
  return problems;
}

// A reward that is easily learned: most tokens of the response are of the lower half of the vocabulary.
Verdict LowTokens(const GrpoProblem& /*problem*/, const Rollout& rollout) {
  int64_t low = 0;
  for (const int32_t label : rollout.sample.labels) low += label >= 0 && label < 128 ? 1 : 0;
  return 2 * low > rollout.labels() ? Verdict::kEqual : Verdict::kDifferent;
}

GrpoOptions Options(const std::string& out) {
  GrpoOptions options;
  options.output_dir = out;
  options.per_device_train_batch_size = 4;
  options.gradient_accumulation_steps = 4;
  options.num_generations = 4;
  options.temperature = 1;
  options.loss.max_completion_length = 24;
  options.budgets = {1000, 2000};  // no length matters
  options.max_steps = 4;
  options.learning_rate = 1e-2;
  options.warmup_ratio = 0;
  options.save_steps = 0;
  options.stuck_steps = 0;
  return options;
}

class Grpo : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir();
    base_ = dir_ + "/model";
    WriteTinyModel(base_);
  }

  // With an adapter that does something already; on the LM head too, if asked for.
  std::unique_ptr<TrainModel> NewPolicy(bool head = false) const {
    TrainModelOptions options = WithLora();
    if (head) options.lora->targets.push_back(LinearKind::kLmHead);
    auto model = LoadModel(base_, options);
    std::vector<float> values = model->CopyParameters();
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += 0.02F * (static_cast<float>(RandomUniform(5, 1, i)) - 0.5F);
    }
    EXPECT_TRUE(model->SetParameters(values).ok());
    return model;
  }

  Result<GrpoResult> Train(TrainModel& model, const GrpoOptions& options, const Grader& grader = LowTokens,
                           const std::function<void(const GrpoProgress&)>& on_step = {},
                           const std::atomic<bool>* cancel = nullptr) const {
    // A new run wants a new folder.
    if (!options.resume) std::filesystem::remove_all(options.output_dir);
    const auto text_model = LoadTiny(base_);
    const auto comm = SingleProcess();
    return TrainGrpo(model, *text_model, Texts(), Problems(7), options, *comm, on_step, cancel, grader);
  }

  std::string dir_;
  std::string base_;
};

std::vector<Json> Lines(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream text(testing::ReadFile(path));
  std::string line;
  while (std::getline(text, line)) lines.push_back(Json::parse(line));
  return lines;
}

// The canary of a sampler that does not get the adapter (demand 96): then the reward cannot rise.
TEST_F(Grpo, LearnsAnEasyReward) {
  for (const GrpoLossType type : {GrpoLossType::kGrpo, GrpoLossType::kDapo, GrpoLossType::kDrGrpo}) {
    GrpoOptions options = Options(dir_ + "/out");
    options.max_steps = 25;
    options.loss.type = type;
    options.learning_rate = 2e-2;
    options.schedule = ScheduleKind::kConstant;
    if (type == GrpoLossType::kDrGrpo) options.scale_rewards = ScaleRewards::kNone;
    // The states of random weights can hardly be turned towards one half of the vocabulary; the head can.
    const auto model = NewPolicy(true);
    double first = 0;
    double last = 0;
    const auto result = Train(*model, options, LowTokens, [&](const GrpoProgress& progress) {
      if (progress.step <= 4) first += progress.reward / 4;
      if (progress.step > 21) last += progress.reward / 4;
    });
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result->steps, 25);
    EXPECT_LT(first, 0.75) << GrpoLossTypeName(type);
    EXPECT_GT(last, 0.95) << GrpoLossTypeName(type);
    // What was written is what is held, with the texts that the runtime needs.
    const auto again = NewPolicy(true);
    ASSERT_TRUE(again->LoadAdapter(dir_ + "/out").ok());
    EXPECT_EQ(again->CopyParameters(), model->CopyParameters());
    for (const char* where : {"/out", "/out/checkpoint-25"}) {
      const auto texts = ReadReasoningTexts(dir_ + where);
      ASSERT_TRUE(texts.ok() && *texts);
      EXPECT_EQ((*texts)->budget_template, " {budget}");
    }
  }
}

TEST_F(Grpo, WritesWhatItDid) {
  const GrpoOptions options = Options(dir_ + "/out");
  ASSERT_TRUE(Train(*NewPolicy(), options).ok());
  const auto metrics = Lines(dir_ + "/out/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 4U);
  for (const Json& line : metrics) {
    for (const char* name : {"step",
                             "epoch",
                             "reward",
                             "reward_std",
                             "accuracy",
                             "mean_length",
                             "max_length",
                             "truncated",
                             "answer_think_ratio",
                             "frac_reward_zero_std",
                             "loss",
                             "kl",
                             "entropy",
                             "grad_norm",
                             "clip_ratio",
                             "rollout_logp_difference",
                             "learning_rate",
                             "rollout_seconds",
                             "score_seconds",
                             "update_seconds"}) {
      EXPECT_TRUE(line.contains(name) && line[name].is_number()) << name << " " << line;
    }
    EXPECT_LT(line["rollout_logp_difference"].get<double>(), 1e-5);
    EXPECT_EQ(line["clip_ratio"], 0.0);  // one iteration: the ratio is 1
  }
  const auto samples = Lines(dir_ + "/out/samples.jsonl");
  ASSERT_EQ(samples.size(), 4U * 16);
  double reward = 0;
  std::set<int64_t> budgets;
  for (size_t i = 0; i < 16; ++i) {
    const Json& sample = samples[i];
    const auto budget = sample["budget"].get<int64_t>();
    budgets.insert(budget);
    // The budget is in the prompt, put there by the reasoning texts.
    const auto prompt = sample["prompt"].get<std::string>();
    EXPECT_NE(prompt.find(" " + std::to_string(budget) + "<|im_end|>"), std::string::npos) << prompt;
    EXPECT_EQ(sample["completion"].get<std::string>().rfind("<think>\n", 0), 0U);
    EXPECT_EQ(sample["budget"], samples[i / 4 * 4]["budget"]);  // one a group
    reward += sample["reward"].get<double>() / 16;
  }
  EXPECT_EQ(budgets, (std::set<int64_t>{1000, 2000}));
  EXPECT_NEAR(reward, metrics[0]["reward"].get<double>(), 1e-12);
}

// The reference is a frozen copy of the start adapter, not the base (demands 94, 95).
TEST_F(Grpo, KlIsExactlyZeroAtTheStart) {
  const auto checkpoint = Checkpoint::Open(base_);
  const auto recipe = ParseRecipe("w4g32,head=w8g32,weigh=none");
  ASSERT_TRUE(PackCheckpoint(**checkpoint, *recipe, dir_ + "/packed").ok());
  WriteTokenizer(dir_ + "/packed");
  for (const char* name : {"/model", "/packed"}) {
    base_ = dir_ + name;
    GrpoOptions options = Options(dir_ + "/out");
    options.temperature = 0.8;
    const auto model = NewPolicy();
    std::vector<double> kl;
    ASSERT_TRUE(Train(*model, options, LowTokens, [&](const GrpoProgress& progress) {
                  kl.push_back(progress.kl.value());
                }).ok());
    EXPECT_EQ(kl[0], 0.0) << name;
    EXPECT_GT(kl[1], 0.0) << name;
    EXPECT_GT(kl[3], 0.0) << name;
  }
}

TEST_F(Grpo, ResumeIsBitExact) {
  for (const int64_t iterations : {1, 2}) {
    const std::string straight = dir_ + "/straight" + std::to_string(iterations);
    const std::string cut = dir_ + "/cut" + std::to_string(iterations);
    GrpoOptions options = Options(straight);
    options.max_steps = 5;
    options.num_iterations = iterations;
    options.stuck_steps = 3;
    const auto whole = NewPolicy();
    ASSERT_TRUE(Train(*whole, options).ok());
    // Cancelled in the rollouts of step 3: that step is dropped.
    options.output_dir = cut;
    std::atomic<bool> cancel{false};
    const auto first = NewPolicy();
    const auto stopped = Train(
        *first, options, LowTokens, [&](const GrpoProgress& progress) { cancel = progress.step == 2; }, &cancel);
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
    EXPECT_EQ(*ListCheckpoints(cut), std::vector<int64_t>{2});
    EXPECT_NE(first->CopyParameters(), whole->CopyParameters());
    options.resume = true;
    const auto second = NewPolicy();
    const auto result = Train(*second, options);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result->steps, 5);
    EXPECT_EQ(second->CopyParameters(), whole->CopyParameters());
    for (const char* file : {"/checkpoint-5/optimizer.safetensors", "/checkpoint-5/adapter_model.safetensors",
                             "/samples.jsonl", "/checkpoint-5/trainer_state.json"}) {
      EXPECT_EQ(testing::ReadFile(cut + file), testing::ReadFile(straight + file)) << file;
    }
    auto a = Lines(straight + "/metrics.jsonl");
    auto b = Lines(cut + "/metrics.jsonl");
    for (auto* lines : {&a, &b}) {
      for (Json& line : *lines) {
        for (const char* time : {"rollout_seconds", "score_seconds", "update_seconds", "seconds"}) line.erase(time);
      }
    }
    EXPECT_EQ(a, b);
    // Another start is another run.
    const auto other = LoadModel(base_, WithLora());
    const auto refused = Train(*other, options);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kMismatch);
    EXPECT_NE(refused.error().message.find("start_adapter"), std::string::npos) << refused.error().message;
  }
}

TEST_F(Grpo, TwoRanksEqualOneWithTwiceThePrompts) {
  GrpoOptions options = Options(dir_ + "/together");
  options.max_steps = 2;
  options.gradient_accumulation_steps = 1;
  EXPECT_TRUE(InTwoRanks([&] {
    const auto comm = CommFromEnvironment();
    if (!comm.ok()) return 1;
    const auto text_model = LoadTiny(base_);
    const auto model = NewPolicy();
    return TrainGrpo(*model, *text_model, Texts(), Problems(7), options, **comm, {}, nullptr, LowTokens).ok() ? 0 : 2;
  }));
  options.output_dir = dir_ + "/alone";
  options.gradient_accumulation_steps = 2;
  const auto alone = NewPolicy();
  const auto before = alone->CopyParameters();
  ASSERT_TRUE(Train(*alone, options).ok());
  const auto ranks = LoadModel(base_, WithLora());
  ASSERT_TRUE(ranks->LoadAdapter(dir_ + "/together").ok());
  EXPECT_LT(RelativeError(ranks->CopyParameters(), alone->CopyParameters()), 1e-5);
  EXPECT_GT(RelativeError(before, alone->CopyParameters()), 1e-3);
  const auto a = Lines(dir_ + "/together/metrics.jsonl");
  const auto b = Lines(dir_ + "/alone/metrics.jsonl");
  for (size_t i = 0; i < 2; ++i) {
    for (const char* name : {"reward", "accuracy", "mean_length", "max_length", "samples", "labels", "entropy"}) {
      EXPECT_NEAR(a[i][name].get<double>(), b[i][name].get<double>(), 1e-4) << name;
    }
  }
  // Each rank writes its own samples.
  EXPECT_EQ(Lines(dir_ + "/together/samples.jsonl").size(), 8U);
  EXPECT_EQ(Lines(dir_ + "/together/samples-rank1.jsonl").size(), 8U);
}

// Groups whose rewards are equal teach nothing: by default they change nothing, not even through the KL term; when they
// are kept, only the KL term acts, and it pulls back to the start (demands 83, 86).
TEST_F(Grpo, EqualGroups) {
  const Grader all_right = [](const GrpoProblem&, const Rollout&) { return Verdict::kEqual; };
  const auto model = NewPolicy();
  const auto before = model->CopyParameters();
  GrpoOptions options = Options(dir_ + "/out");
  options.loss.beta = 0.5;
  double zero_std = 0;
  ASSERT_TRUE(Train(*model, options, all_right, [&](const GrpoProgress& p) {
                zero_std = p.frac_reward_zero_std;
                EXPECT_EQ(p.samples, 0);
                EXPECT_FALSE(p.loss.has_value());
              }).ok());
  EXPECT_EQ(zero_std, 1.0);
  EXPECT_EQ(model->CopyParameters(), before);
  // Kept: at the start the KL term has no slope either.
  options.keep_zero_std_groups = true;
  options.max_steps = 1;
  ASSERT_TRUE(Train(*model, options, all_right, [](const GrpoProgress& p) {
                EXPECT_EQ(p.samples, 16);
                EXPECT_EQ(*p.gradient_norm, 0.0);
              }).ok());
  EXPECT_EQ(model->CopyParameters(), before);
  // And once the policy has left the start, it pulls back, though no reward tells anything.
  int64_t graded = 0;
  const Grader then_all_right = [&](const GrpoProblem& problem, const Rollout& rollout) {
    return graded++ < 16 ? LowTokens(problem, rollout) : Verdict::kEqual;
  };
  options.max_steps = 2;
  options.learning_rate = 2e-2;
  options.schedule = ScheduleKind::kConstant;
  std::vector<GrpoProgress> steps;
  const auto moved = NewPolicy(true);
  ASSERT_TRUE(Train(*moved, options, then_all_right, [&](const GrpoProgress& p) { steps.push_back(p); }).ok());
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[1].frac_reward_zero_std, 1.0);
  EXPECT_GT(steps[1].kl.value(), 0.0);
  EXPECT_GT(steps[1].gradient_norm.value(), 0.0);
}

// Rewards that the grader could not give, and truncated responses, are on neither side of any mean (demands 83, 87).
TEST_F(Grpo, WhatIsLeftOutIsInNoCount) {
  GrpoOptions options = Options(dir_ + "/out");
  options.max_steps = 1;
  // Of each group one response can be graded: nothing to compare.
  int64_t count = 0;
  const Grader one_each = [&](const GrpoProblem&, const Rollout&) {
    return count++ % 4 == 0 ? Verdict::kEqual : Verdict::kTooHard;
  };
  auto model = NewPolicy();
  const auto before = model->CopyParameters();
  ASSERT_TRUE(Train(*model, options, one_each, [](const GrpoProgress& p) {
                EXPECT_EQ(p.valid, 0.25);
                EXPECT_EQ(p.reward, 1.0);  // the mean of those that have one
                EXPECT_EQ(p.samples, 0);
              }).ok());
  EXPECT_EQ(model->CopyParameters(), before);
  // Two of four: only they are learned from.
  count = 0;
  const Grader two_each = [&](const GrpoProblem&, const Rollout&) {
    const int64_t i = count++ % 4;
    return i == 0 ? Verdict::kEqual : i == 1 ? Verdict::kDifferent : Verdict::kTooHard;
  };
  ASSERT_TRUE(Train(*model, options, two_each, [](const GrpoProgress& p) {
                EXPECT_EQ(p.samples, 8);
                EXPECT_TRUE(std::isfinite(*p.loss) && std::isfinite(*p.gradient_norm));
                EXPECT_GT(*p.gradient_norm, 0);
              }).ok());
  EXPECT_NE(model->CopyParameters(), before);
  // All are cut at this length: with the mask on them nothing is left, and nothing is divided by it.
  options.loss.max_completion_length = 12;
  options.mask_truncated_completions = true;
  model = NewPolicy();
  ASSERT_TRUE(Train(*model, options, LowTokens, [](const GrpoProgress& p) {
                EXPECT_GT(p.truncated, 0.9);
                EXPECT_LE(p.samples, 1);
              }).ok());
}

TEST_F(Grpo, OptionsAreChecked) {
  const auto model = NewPolicy();
  const auto refused = [&](const std::function<void(GrpoOptions*)>& change, const std::string& text) {
    GrpoOptions options = Options(dir_ + "/out");
    change(&options);
    const auto result = Train(*model, options);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
  };
  refused([](GrpoOptions* o) { o->num_generations = 1; }, "num-generations");
  refused([](GrpoOptions* o) { o->num_generations = 5; }, "multiple of num-generations");
  refused([](GrpoOptions* o) { o->temperature = 0; }, "temperature");
  refused([](GrpoOptions* o) { o->budgets = {}; }, "budgets");
  refused([](GrpoOptions* o) { o->budgets = {100, 0}; }, "budget");
  refused([](GrpoOptions* o) { o->window.half_width = 2; }, "window");
  refused([](GrpoOptions* o) { o->loss.epsilon = 1; }, "epsilon");
  refused([](GrpoOptions* o) { o->loss.max_completion_length = 510; }, "no prompt leaves room");
  refused([](GrpoOptions* o) { o->num_iterations = 0; }, "num-iterations");
  const auto text_model = LoadTiny(base_);
  const auto comm = SingleProcess();
  const auto run = [&](TrainModel& other, const std::vector<GrpoProblem>& problems) {
    return TrainGrpo(other, *text_model, Texts(), problems, Options(dir_ + "/out"), *comm).error();
  };
  EXPECT_EQ(run(*model, {}).code, ErrorCode::kInvalidArgument);
  EXPECT_NE(run(*LoadModel(base_, WithLora(0.1)), Problems(2)).message.find("dropout"), std::string::npos);
  EXPECT_NE(run(*LoadModel(base_, {}), Problems(2)).message.find("adapter"), std::string::npos);
}

// What cannot be learned from is told after some steps, or ends the run (demand 89).
TEST_F(Grpo, StuckRunsAreTold) {
  GrpoOptions options = Options(dir_ + "/out");
  options.stuck_steps = 2;
  options.max_steps = 6;
  std::vector<std::string> warnings;
  const auto keep = [&](const GrpoProgress& p) {
    warnings.insert(warnings.end(), p.warnings.begin(), p.warnings.end());
  };
  // The real grader: random bytes answer nothing.
  ASSERT_TRUE(Train(*NewPolicy(), options, GradeRollout, keep).ok());
  int wrong = 0;
  int equal = 0;
  for (const auto& warning : warnings) {
    wrong += warning.find("no response was right") != std::string::npos ? 1 : 0;
    equal += warning.find("rewards of every group were equal") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(wrong, 3);
  EXPECT_EQ(equal, 3);
  options.stop_when_stuck = true;
  options.output_dir = dir_ + "/stopped";
  const auto stopped = Train(*NewPolicy(), options, GradeRollout);
  ASSERT_FALSE(stopped.ok());
  EXPECT_NE(stopped.error().message.find("stopped after step 2"), std::string::npos) << stopped.error().message;
  EXPECT_EQ(*ListCheckpoints(options.output_dir), std::vector<int64_t>{2});
}

TEST(GrpoWatch, SpeaksWhenASignGoesOn) {
  GrpoWatch watch(3);
  const GrpoSigns healthy{
      .zero_std = 0.5, .truncated = 0.2, .accuracy = 0.4, .difference = 0.01, .entropy = 0.6, .vocab = 100};
  GrpoSigns all_cut = healthy;
  all_cut.truncated = 1;
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(watch.Take(all_cut).empty());
  EXPECT_FALSE(watch.stuck());
  EXPECT_EQ(watch.Take(all_cut).size(), 1U);
  EXPECT_TRUE(watch.stuck());
  EXPECT_TRUE(watch.Take(all_cut).empty());
  EXPECT_TRUE(watch.Take(healthy).empty());
  EXPECT_FALSE(watch.stuck());
  struct Case {
    GrpoSigns signs;
    const char* text;
  };
  std::vector<Case> cases(6, {healthy, ""});
  cases[0].signs.difference = 0.3;
  cases[0].text = "different log-probabilities";
  cases[1].signs.difference = std::nan("");
  cases[1].text = "different log-probabilities";
  cases[2].signs.repetition = 0.9;
  cases[2].text = "repeated";
  cases[3].signs.entropy = 4.55;  // log(100) is 4.605
  cases[3].text = "at random";
  cases[4].signs.entropy = 1e-4;
  cases[4].text = "no entropy";
  cases[5].signs.zero_std = 1;
  cases[5].text = "equal";
  for (const Case& c : cases) {
    GrpoWatch one(1);
    const auto said = one.Take(c.signs);
    ASSERT_EQ(said.size(), 1U) << c.text;
    EXPECT_NE(said[0].find(c.text), std::string::npos) << said[0];
  }
  GrpoWatch silent(0);
  EXPECT_TRUE(silent.Take(all_cut).empty());
  // It goes on where a checkpoint left it.
  GrpoWatch before(2);
  EXPECT_TRUE(before.Take(all_cut).empty());
  GrpoWatch after(2);
  after.Restore(before.counts());
  EXPECT_EQ(after.Take(all_cut).size(), 1U);
}

// Budget forcing from end to end: the base was taught to think for a random while and then to answer rightly; rewarded
// by accuracy and the barrier around its budget, the adapter learns to think shorter, and stays right.
TEST_F(Grpo, LearnsToKeepABudget) {
  const auto tokenizer = ByteTokenizer();
  std::vector<Sample> samples;
  for (uint64_t i = 0; i < 64; ++i) {
    const std::string thoughts(4 + RandomBits(1, 2, i) % 28, 'a');
    const auto sample = ChatSample(
        *tokenizer, TemplateFamily::kChatML,
        {{"user", std::to_string(i % 8) + " 40"}, {"assistant", "<think>\n" + thoughts + "</think>\\boxed{7}"}}, false);
    ASSERT_TRUE(sample.ok());
    samples.push_back(*sample);
  }
  TrainModelOptions full;
  full.threads = 2;
  const auto base = LoadModel(base_, full);
  SftOptions sft;
  sft.output_dir = base_;
  sft.max_length = 128;
  sft.per_device_train_batch_size = 8;
  sft.gradient_accumulation_steps = 1;
  sft.max_steps = 150;
  sft.learning_rate = 1e-2;
  sft.save_steps = 0;
  const auto comm = SingleProcess();
  const auto taught = TrainSft(*base, samples, {}, sft, *comm);
  ASSERT_TRUE(taught.ok()) << taught.error().message;
  WriteTokenizer(base_);

  GrpoOptions options = Options(dir_ + "/out");
  options.loss.max_completion_length = 80;
  options.num_generations = 8;
  options.per_device_train_batch_size = 8;
  options.gradient_accumulation_steps = 2;
  options.budgets = {40};
  options.window.half_width = 0.5;
  options.max_steps = 30;
  options.learning_rate = 1e-2;
  const auto model = LoadModel(base_, WithLora());
  std::vector<GrpoProgress> steps;
  const auto result =
      Train(*model, options, GradeRollout, [&](const GrpoProgress& progress) { steps.push_back(progress); });
  ASSERT_TRUE(result.ok()) << result.error().message;
  const auto mean = [&](size_t begin, double GrpoProgress::*field) {
    double sum = 0;
    for (size_t i = begin; i < begin + 5; ++i) sum += steps[i].*field / 5;
    return sum;
  };
  EXPECT_GT(mean(0, &GrpoProgress::accuracy), 0.5);
  EXPECT_GT(mean(25, &GrpoProgress::accuracy), 0.9);
  EXPECT_GT(mean(25, &GrpoProgress::reward), mean(0, &GrpoProgress::reward) + 0.2);
  EXPECT_LT(mean(25, &GrpoProgress::mean_length), mean(0, &GrpoProgress::mean_length) - 5);
}

}  // namespace
}  // namespace pith::train
