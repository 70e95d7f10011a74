// Rollouts of the engine against the trainer: the same policy, the same mask, the same log-probabilities; a policy that
// was changed is never served from keys and values of the old one (demands 93, 96, 97).
#include "train/rollout.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/random.h"
#include "model/pack.h"
#include "tiny_chat_model.h"
#include "train_test.h"

namespace pith::train {
namespace {

std::unique_ptr<TrainModel> TinyPolicy(const std::string& dir, bool round_cache = false) {
  TrainModelOptions options = WithLora();
  options.round_cache = round_cache;
  auto model = LoadModel(dir, options);
  // Not the zeros that a fresh B is: an adapter that changes something.
  std::vector<float> values = model->CopyParameters();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] += 0.2F * (static_cast<float>(RandomUniform(5, 1, i)) - 0.5F);
  }
  EXPECT_TRUE(model->SetParameters(values).ok());
  return model;
}

std::vector<RolloutPrompt> Prompts(const TextModel& model, int count) {
  std::vector<RolloutPrompt> prompts;
  for (int i = 0; i < count; ++i) {
    const auto tokens = model.Render({{"user", "question " + std::to_string(i * 37)}});
    EXPECT_TRUE(tokens.ok());
    prompts.push_back({*tokens, 40, static_cast<uint64_t>(i) + 100});
  }
  return prompts;
}

// The trainer's log-probabilities of a group, in the form that GRPO uses.
std::vector<float> TrainerScores(TrainModel& model, const std::vector<Rollout>& group, double temperature) {
  TrainBatch batch;
  batch.temperature = static_cast<float>(temperature);
  for (const Rollout& rollout : group) AddSample(rollout.sample, true, &batch);
  EXPECT_EQ(batch.prefixes.size(), 1U);  // the prompt is there once
  const auto scores = model.Score(batch);
  EXPECT_TRUE(scores.ok()) << scores.error().message;
  return scores->log_probs;
}

std::vector<float> EngineScores(const std::vector<Rollout>& group) {
  std::vector<float> all;
  for (const Rollout& rollout : group) all.insert(all.end(), rollout.log_probs.begin(), rollout.log_probs.end());
  return all;
}

double MeanDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    sum += std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
  }
  return sum / static_cast<double>(a.size());
}

TEST(Rollout, EngineAndTrainerAgree) {
  const std::string dir = testing::TempDir() + "/model";
  WriteTinyModel(dir);
  const auto checkpoint = Checkpoint::Open(dir);
  const auto recipe = ParseRecipe("w4g32,head=w8g32,weigh=none");
  ASSERT_TRUE(PackCheckpoint(**checkpoint, *recipe, dir + "-packed").ok());
  WriteTokenizer(dir + "-packed");
  double most_without = 0;
  for (const bool packed : {false, true}) {
    for (const KvType kv : {KvType::kF32, KvType::kInt8}) {
      const auto model = TinyPolicy(packed ? dir + "-packed" : dir, kv == KvType::kInt8);
      const auto unrounded = TinyPolicy(packed ? dir + "-packed" : dir, false);
      ASSERT_EQ(model->base() == BaseFormat::kPacked, packed);
      const auto text_model = LoadTiny(packed ? dir + "-packed" : dir, kv);
      const auto policy = RolloutPolicy::Create(*text_model, {});
      ASSERT_TRUE(policy.ok());
      ASSERT_TRUE((*policy)->Take(*model).ok());
      for (const double temperature : {0.8, 1.0, 1.7}) {
        const auto groups = GenerateRollouts((*policy)->model(), Prompts(*text_model, 2),
                                             {.generations = 4, .temperature = temperature});
        ASSERT_TRUE(groups.ok()) << groups.error().message;
        for (const auto& group : *groups) {
          const double difference = MeanDifference(TrainerScores(*model, group, temperature), EngineScores(group));
          // The same numbers, also int8 keys and values, but for the order of float sums.
          EXPECT_LT(difference, 2e-6) << packed << " " << temperature;
          if (kv == KvType::kF32) continue;
          // The rounding of the cache is what makes them agree.
          const double without = MeanDifference(TrainerScores(*unrounded, group, temperature), EngineScores(group));
          EXPECT_GT(without, 20 * difference) << packed << " " << temperature;
          most_without = std::max(most_without, without);
        }
      }
    }
  }
  RecordProperty("most_without_rounding", std::to_string(most_without));
}

TEST(Rollout, WhatIsLearnedIsWhatWasDrawn) {
  const std::string dir = testing::TempDir() + "/model";
  WriteTinyModel(dir);
  const auto model = TinyPolicy(dir);
  const auto text_model = LoadTiny(dir);
  const auto policy = RolloutPolicy::Create(*text_model, {});
  ASSERT_TRUE((*policy)->Take(*model).ok());
  const auto prompts = Prompts(*text_model, 3);
  const auto groups = GenerateRollouts((*policy)->model(), prompts, {.generations = 8, .temperature = 1.3});
  ASSERT_TRUE(groups.ok());
  const std::vector<int32_t>& open = (*policy)->model().forced->open;
  const auto forced = static_cast<int64_t>(open.size());
  int ended = 0;
  for (size_t g = 0; g < groups->size(); ++g) {
    ASSERT_EQ((*groups)[g].size(), 8U);
    for (const Rollout& rollout : (*groups)[g]) {
      const Sample& sample = rollout.sample;
      ASSERT_EQ(sample.response, static_cast<int64_t>(prompts[g].tokens.size()));
      ASSERT_EQ(sample.labels.size(), sample.tokens.size());
      EXPECT_TRUE(std::equal(prompts[g].tokens.begin(), prompts[g].tokens.end(), sample.tokens.begin()));
      EXPECT_TRUE(std::equal(open.begin(), open.end(), sample.tokens.begin() + sample.response));
      int64_t labels = 0;
      for (size_t t = 0; t < sample.labels.size(); ++t) {
        const bool drawn = static_cast<int64_t>(t) >= sample.response + forced - 1;  // predicts what follows <think>\n
        EXPECT_EQ(sample.labels[t] != kNoLabel, drawn) << t;
        if (drawn && t + 1 < sample.tokens.size()) {
          EXPECT_EQ(sample.labels[t], sample.tokens[t + 1]);
        }
        labels += drawn ? 1 : 0;
      }
      EXPECT_EQ(labels, rollout.labels());
      // A token that ends the response is learned, and is not counted in its length (demand 82).
      const bool end = !rollout.truncated || rollout.length < 40;
      EXPECT_EQ(rollout.labels(), rollout.length - forced + (end ? 1 : 0));
      if (end) {
        const int32_t last = sample.labels.back();
        EXPECT_TRUE(last == kEndOfText || last == kImEnd) << last;
        ++ended;
      } else {
        EXPECT_EQ(rollout.length, 40);
      }
    }
  }
  EXPECT_GT(ended, 0);
}

TEST(Rollout, EveryPolicyIsItsOwn) {
  const std::string dir = testing::TempDir() + "/model";
  WriteTinyModel(dir);
  const auto model = TinyPolicy(dir);
  const auto text_model = LoadTiny(dir);
  const auto policy = RolloutPolicy::Create(*text_model, {});
  const auto prompts = Prompts(*text_model, 2);
  const auto run = [&](int64_t streams) {
    EXPECT_TRUE((*policy)->Take(*model).ok());
    const auto groups =
        GenerateRollouts((*policy)->model(), prompts, {.generations = 3, .temperature = 1, .max_streams = streams});
    EXPECT_TRUE(groups.ok());
    std::vector<std::vector<float>> scores;
    for (const auto& group : *groups) scores.push_back(EngineScores(group));
    return scores;
  };
  const auto first = run(64);
  const uint64_t id = (*policy)->model().adapter->id();
  EXPECT_EQ(run(3), first);  // nothing depends on what shares a step
  EXPECT_NE((*policy)->model().adapter->id(), id);
  const std::vector<float> before = model->CopyParameters();
  std::vector<float> other = before;
  for (float& value : other) value *= 1.5F;
  ASSERT_TRUE(model->SetParameters(other).ok());
  const auto changed = run(64);
  EXPECT_NE(changed, first);
  ASSERT_TRUE(model->SetParameters(before).ok());
  EXPECT_EQ(run(64), first);
}

TEST(Rollout, Errors) {
  const std::string dir = testing::TempDir() + "/model";
  WriteTinyModel(dir);
  const auto text_model = LoadTiny(dir);
  const auto policy = RolloutPolicy::Create(*text_model, {});
  EXPECT_EQ((*policy)->Take(*LoadModel("qwen2_tied", WithLora())).error().code, ErrorCode::kMismatch);
  EXPECT_EQ((*policy)->Take(*LoadModel(dir, {})).error().code, ErrorCode::kInvalidArgument);
  const auto model = TinyPolicy(dir);
  ASSERT_TRUE((*policy)->Take(*model).ok());
  std::atomic<bool> cancel{true};
  EXPECT_EQ(GenerateRollouts((*policy)->model(), Prompts(*text_model, 1), {.cancel = &cancel}).error().code,
            ErrorCode::kCancelled);
  auto prompts = Prompts(*text_model, 2);
  prompts[1].tokens.assign(1000, 65);
  const auto too_long = GenerateRollouts((*policy)->model(), prompts, {});
  ASSERT_FALSE(too_long.ok());
  EXPECT_EQ(too_long.error().code, ErrorCode::kContextOverflow);
  EXPECT_NE(too_long.error().message.find("prompt 1"), std::string::npos) << too_long.error().message;
  // NaN in the policy is an error of the engine, never a token (demand 98).
  std::vector<float> broken = model->CopyParameters();
  broken[0] = std::nanf("");
  ASSERT_TRUE(model->SetParameters(broken).ok());
  EXPECT_FALSE((*policy)->Take(*model).ok());
}

}  // namespace
}  // namespace pith::train
