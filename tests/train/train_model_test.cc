// The training decoder against transformers, PEFT and torch's AdamW on tiny models (golden vectors of
// tests/golden/models and tests/golden/train), against the engine on packed weights, and against itself.
#include "train/train_model.h"

#include "engine/engine.h"
#include "model/pack.h"
#include "train/optimizer.h"
#include "train_test.h"

namespace pith::train {
namespace {

using testing::GoldenPath;

constexpr int64_t kPrompt = 27;  // of the golden masked runs

TrainBatch BatchOf(const Sample& sample, bool masked) {
  TrainBatch batch;
  AddSample(sample, masked, &batch);
  return batch;
}

// The mask as a mask: one segment, the adapter off on its first tokens.
TrainBatch RowMaskedBatch(const Sample& sample) {
  TrainBatch batch = BatchOf(sample, false);
  batch.segments[0].adapter_from = sample.response;
  batch.segments[0].labels[static_cast<size_t>(sample.response) - 1] = kNoLabel;
  return batch;
}

class GoldenModel : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenModel, LogitsAndStatesEqualTransformers) {
  const auto golden = Golden("models/" + GetParam() + "/golden.safetensors");
  for (const bool whole : {false, true}) {
    TrainModelOptions options = WithLora();
    if (whole) options.lora.reset();
    const auto model = LoadModel(GetParam(), options);
    const auto outputs = model->Run(BatchOf(GoldenSample(GetParam()), false));
    ASSERT_TRUE(outputs.ok()) << outputs.error().message;
    EXPECT_LT(RelativeError(outputs->logits, Floats(*golden, "logits")), 1e-5);
    EXPECT_LT(RelativeError(outputs->states, Floats(*golden, "final_hidden")), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenModel,
                         ::testing::Values("qwen2_tied", "qwen2_untied", "qwen2_yarn", "llama", "llama_rope_llama3",
                                           "llama_rope_linear", "qwen3"));

class GoldenAdapter : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenAdapter, LogitsEqualPeft) {
  const auto model = LoadAdapted(GetParam());
  const auto golden = Golden("models/" + GetParam() + "/adapters/all/golden.safetensors");
  const Sample sample = GoldenSample(GetParam());
  const auto on = model->Run(BatchOf(sample, false));
  ASSERT_TRUE(on.ok());
  EXPECT_LT(RelativeError(on->logits, Floats(*golden, "logits")), 1e-5);
  const auto masked = Floats(*golden, "masked_logits");
  const auto by_rows = model->Run(RowMaskedBatch(sample));
  ASSERT_TRUE(by_rows.ok());
  EXPECT_LT(RelativeError(by_rows->logits, masked), 1e-5);
  // The prompt as a prefix: the response's logits.
  const auto by_prefix = model->Run(BatchOf(sample, true));
  ASSERT_TRUE(by_prefix.ok());
  const auto vocab = static_cast<size_t>(model->config().vocab);
  EXPECT_LT(RelativeError(by_prefix->logits, std::span(masked).subspan(kPrompt * vocab)), 1e-5);
}

void ExpectGradients(TrainModel& model, const SafetensorsFile& golden, const std::string& prefix) {
  for (const Parameter& p : model.parameters()) {
    EXPECT_LT(RelativeError(p.gradient, Floats(golden, prefix + p.name)), 2e-5) << p.name;
  }
}

TEST_P(GoldenAdapter, MaskedGradientsAndAdamWStepEqualTorch) {
  const auto golden = Golden("train/lora_" + GetParam() + ".safetensors");
  const Sample sample = GoldenSample(GetParam());
  for (const TrainBatch& batch : {BatchOf(sample, true), RowMaskedBatch(sample)}) {
    const auto model = LoadAdapted(GetParam());
    EXPECT_NEAR(MeanLoss(*model, batch), static_cast<double>(Floats(*golden, "masked.loss")[0]), 1e-5);
    ASSERT_EQ(model->parameters().size(), 28U);
    ExpectGradients(*model, *golden, "masked.grad.");
    AdamW optimizer(model->parameters(), {.weight_decay = 0.1});
    optimizer.Step(0.01);
    for (const Parameter& p : model->parameters()) {
      // A first step moves each element by the learning rate, whatever its gradient: where that is at the level of
      // float rounding, the direction is open. The error is that of a few such elements.
      EXPECT_LT(RelativeError(p.value, Floats(*golden, "masked.step." + p.name)), 1e-4) << p.name;
    }
  }
}

TEST_P(GoldenAdapter, UnmaskedGradientsEqualPeft) {
  const auto golden = Golden("train/lora_" + GetParam() + ".safetensors");
  const auto model = LoadAdapted(GetParam());
  const TrainBatch batch = BatchOf(GoldenSample(GetParam(), 0), false);
  EXPECT_EQ(batch.Labels(), 63);
  EXPECT_NEAR(MeanLoss(*model, batch), static_cast<double>(Floats(*golden, "all.loss")[0]), 1e-5);
  ExpectGradients(*model, *golden, "all.grad.");
}

TEST_P(GoldenAdapter, CheckpointingChangesNothing) {
  const Sample sample = GoldenSample(GetParam());
  std::vector<float> gradients[2];
  for (const bool checkpointing : {false, true}) {
    TrainModelOptions options = WithLora(0.3);
    options.gradient_checkpointing = checkpointing;
    const auto model = LoadAdapted(GetParam(), options);
    (void)MeanLoss(*model, BatchOf(sample, true), 5);
    gradients[checkpointing ? 1 : 0] = Gradients(*model);
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

INSTANTIATE_TEST_SUITE_P(Adapters, GoldenAdapter, ::testing::Values("qwen2_untied", "llama", "qwen3"));

class GoldenWhole : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenWhole, GradientsOfAllParametersEqualTorch) {
  const auto golden = Golden("train/full_" + GetParam() + ".safetensors");
  for (const bool checkpointing : {false, true}) {
    TrainModelOptions options;
    options.gradient_checkpointing = checkpointing;
    const auto model = LoadModel(GetParam(), options);
    EXPECT_EQ(model->parameters().size() + 1, golden->tensors().size());
    const TrainBatch batch = BatchOf(GoldenSample(GetParam(), 0), false);
    EXPECT_NEAR(MeanLoss(*model, batch), static_cast<double>(Floats(*golden, "loss")[0]), 1e-5);
    ExpectGradients(*model, *golden, "grad.");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenWhole, ::testing::Values("qwen2_tied", "llama_rope_linear", "qwen3"));

TEST(TrainModel, LoraOnTheHead) {
  TrainModelOptions options = WithLora();
  options.lora->alpha = 8;
  options.lora->targets = {LinearKind::kK, LinearKind::kLmHead};
  const auto model = LoadModel("qwen2_untied", options);
  ASSERT_TRUE(model->LoadAdapter(GoldenPath("models/qwen2_untied/adapters/lm_head")).ok());
  const auto golden = Golden("models/qwen2_untied/adapters/lm_head/golden.safetensors");
  const Sample sample = GoldenSample("qwen2_untied");
  const auto on = model->Run(BatchOf(sample, false));
  ASSERT_TRUE(on.ok());
  EXPECT_LT(RelativeError(on->logits, Floats(*golden, "logits")), 1e-5);
  const auto masked = model->Run(RowMaskedBatch(sample));
  ASSERT_TRUE(masked.ok());
  EXPECT_LT(RelativeError(masked->logits, Floats(*golden, "masked_logits")), 1e-5);
  // Gradients against central differences along themselves: f(x + h g) - f(x - h g) = 2 h |g|^2.
  const TrainBatch batch = RowMaskedBatch(sample);
  for (Parameter& p : model->parameters()) {
    model->ZeroGradients();
    (void)MeanLoss(*model, batch);
    const std::vector<float> gradient(p.gradient.begin(), p.gradient.end());
    const std::vector<float> value(p.value.begin(), p.value.end());
    double norm = 0;
    for (const float g : gradient) norm += static_cast<double>(g) * static_cast<double>(g);
    const double h = 1e-2 / std::sqrt(norm);
    const auto shifted = [&](double sign) {
      for (size_t i = 0; i < value.size(); ++i) p.value[i] = value[i] + static_cast<float>(sign * h) * gradient[i];
      return MeanLoss(*model, batch);
    };
    const double difference = shifted(1) - shifted(-1);
    std::copy(value.begin(), value.end(), p.value.begin());
    EXPECT_NEAR(difference / (2 * h * norm), 1.0, 2e-3) << p.name;
  }
}

TEST(TrainModel, DropoutIsAFunctionOfItsKeyAndItsGradientFits) {
  const auto model = LoadAdapted("qwen2_untied", WithLora(0.25));
  const TrainBatch batch = BatchOf(GoldenSample("qwen2_untied"), true);
  const double loss = MeanLoss(*model, batch, 3);
  EXPECT_EQ(MeanLoss(*model, batch, 3), loss);
  EXPECT_NE(MeanLoss(*model, batch, 4), loss);
  for (Parameter& p : model->parameters()) {
    if (p.name.find("layers.0") == std::string::npos) continue;  // gradients through the second layer's dropout too
    model->ZeroGradients();
    (void)MeanLoss(*model, batch, 3);
    const std::vector<float> gradient(p.gradient.begin(), p.gradient.end());
    const std::vector<float> value(p.value.begin(), p.value.end());
    double norm = 0;
    for (const float g : gradient) norm += static_cast<double>(g) * static_cast<double>(g);
    const double h = 1e-2 / std::sqrt(norm);
    const auto shifted = [&](double sign) {
      for (size_t i = 0; i < value.size(); ++i) p.value[i] = value[i] + static_cast<float>(sign * h) * gradient[i];
      return MeanLoss(*model, batch, 3);
    };
    const double difference = shifted(1) - shifted(-1);
    std::copy(value.begin(), value.end(), p.value.begin());
    EXPECT_NEAR(difference / (2 * h * norm), 1.0, 5e-3) << p.name;
  }
}

// Two samples in one pass give the sum of what each gives alone: nothing is seen across samples.
TEST(TrainModel, PackingEqualsSeparateSamples) {
  const Sample whole = GoldenSample("qwen2_untied");
  Sample first = whole;
  first.tokens.resize(40);
  first.labels.resize(40);
  first.labels.back() = kNoLabel;
  Sample second = whole;
  second.tokens.erase(second.tokens.begin(), second.tokens.begin() + 9);
  second.labels.erase(second.labels.begin(), second.labels.begin() + 9);
  second.response -= 9;
  for (const bool masked : {true, false}) {
    const auto model = LoadAdapted("qwen2_untied");
    TrainBatch together;
    std::vector<float> log_probs;
    for (const Sample* sample : {&first, &second}) {
      AddSample(*sample, masked, &together);
      TrainBatch alone;
      AddSample(*sample, masked, &alone);
      const std::vector<float> weights(static_cast<size_t>(alone.Labels()), 0.1F);
      const auto scores = model->Accumulate(alone, weights);
      ASSERT_TRUE(scores.ok());
      log_probs.insert(log_probs.end(), scores->log_probs.begin(), scores->log_probs.end());
    }
    const std::vector<float> separate = Gradients(*model);
    model->ZeroGradients();
    const std::vector<float> weights(static_cast<size_t>(together.Labels()), 0.1F);
    const auto scores = model->Accumulate(together, weights);
    ASSERT_TRUE(scores.ok());
    EXPECT_LT(RelativeError(scores->log_probs, log_probs), 1e-6);
    EXPECT_LT(RelativeError(Gradients(*model), separate), 1e-6);
  }
}

// Several responses on one prompt, as GRPO has them.
TEST(TrainModel, SharedPrefixEqualsSeparatePrefixes) {
  const auto model = LoadAdapted("qwen2_untied");
  const Sample sample = GoldenSample("qwen2_untied");
  TrainBatch shared = BatchOf(sample, true);
  Segment other = shared.segments[0];
  std::reverse(other.tokens.begin(), other.tokens.end());
  shared.segments.push_back(other);
  TrainBatch separate = shared;
  separate.prefixes.push_back(separate.prefixes[0]);
  separate.segments[1].prefix = 1;
  (void)MeanLoss(*model, shared);
  const std::vector<float> gradients = Gradients(*model);
  model->ZeroGradients();
  (void)MeanLoss(*model, separate);
  EXPECT_LT(RelativeError(Gradients(*model), gradients), 1e-6);  // products of other sizes round differently
}

TEST(TrainModel, ScoresAndTheirGradient) {
  const auto model = LoadAdapted("llama");
  const TrainBatch batch = BatchOf(GoldenSample("llama"), true);
  const auto n = static_cast<size_t>(batch.Labels());
  std::vector<float> weights(n);
  for (size_t i = 0; i < n; ++i) weights[i] = 0.01F * static_cast<float>(i) - 0.2F;
  const auto direct = model->Accumulate(batch, weights);
  ASSERT_TRUE(direct.ok());
  const std::vector<float> gradients = Gradients(*model);
  model->ZeroGradients();
  const auto scored = model->Score(batch);
  ASSERT_TRUE(scored.ok());
  EXPECT_EQ(scored->log_probs, direct->log_probs);
  EXPECT_EQ(scored->entropies, direct->entropies);
  const auto by_function = model->AccumulateScores(batch, [&](const TokenScores& scores) -> Result<std::vector<float>> {
    EXPECT_EQ(scores.log_probs, direct->log_probs);
    std::vector<float> gradient = weights;
    for (float& g : gradient) g = -g;
    return gradient;
  });
  ASSERT_TRUE(by_function.ok());
  EXPECT_EQ(Gradients(*model), gradients);
  // Entropies by definition, from the logits.
  const auto outputs = model->Run(batch);
  ASSERT_TRUE(outputs.ok());
  const auto vocab = static_cast<size_t>(model->config().vocab);
  const float* row = outputs->logits.data();
  double sum = 0;
  for (size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]));
  double entropy = 0;
  for (size_t v = 0; v < vocab; ++v) {
    const double p = std::exp(static_cast<double>(row[v])) / sum;
    entropy -= p * std::log(p);
  }
  EXPECT_NEAR(static_cast<double>(direct->entropies[0]), entropy, 1e-4);
  // The base, wherever the mask is.
  const auto base = model->Score(batch, false);
  ASSERT_TRUE(base.ok());
  EXPECT_NE(base->log_probs, scored->log_probs);
}

TEST(TrainModel, ThreadsOnlyRound) {
  std::vector<float> gradients[2];
  for (const int threads : {1, 3}) {
    TrainModelOptions options = WithLora();
    options.threads = threads;
    const auto model = LoadAdapted("qwen3", options);
    (void)MeanLoss(*model, BatchOf(GoldenSample("qwen3"), true));
    gradients[threads == 1 ? 0 : 1] = Gradients(*model);
  }
  EXPECT_LT(RelativeError(gradients[1], gradients[0]), 1e-5);
}

TEST(TrainModel, AFreshAdapterChangesNothingAndOnlyBHasGradient) {
  const auto model = LoadModel("qwen2_untied", WithLora());
  const TrainBatch batch = BatchOf(GoldenSample("qwen2_untied"), true);
  const auto on = model->Score(batch);
  const auto off = model->Score(batch, false);
  ASSERT_TRUE(on.ok() && off.ok());
  EXPECT_EQ(on->log_probs, off->log_probs);
  (void)MeanLoss(*model, batch);
  for (const Parameter& p : model->parameters()) {
    const bool zero = std::all_of(p.gradient.begin(), p.gradient.end(), [](float g) { return g == 0; });
    EXPECT_EQ(zero, p.name.find("lora_A") != std::string::npos) << p.name;
  }
}

TEST(TrainModel, AdapterGoesThroughFilesUnchanged) {
  const auto model = LoadAdapted("qwen3");
  const std::string dir = testing::TempDir() + "/adapter";
  ASSERT_TRUE(model->SaveAdapter(dir, AdapterStorage::kF32).ok());
  const auto again = LoadModel("qwen3", WithLora());
  ASSERT_TRUE(again->LoadAdapter(dir).ok());
  EXPECT_EQ(again->CopyParameters(), model->CopyParameters());
  TrainModelOptions other = WithLora();
  other.lora->rank = 4;
  const auto status = LoadModel("qwen3", other)->LoadAdapter(dir);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  EXPECT_NE(status.error().message.find("has rank 8"), std::string::npos);
}

TEST(TrainModel, WholeModelGoesThroughFilesUnchanged) {
  ModelConfig config = LoadModel("qwen2_tied", {})->config();
  TrainModelOptions options;
  options.seed = 7;
  const auto model = TrainModel::Random(config, options);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const std::string dir = testing::TempDir() + "/model";
  ASSERT_TRUE((*model)->SaveModel(dir, DType::kF32).ok());
  EXPECT_EQ(LoadModel(dir, {})->CopyParameters(), (*model)->CopyParameters());
  const auto same = TrainModel::Random(config, options);
  EXPECT_EQ((*same)->CopyParameters(), (*model)->CopyParameters());
  options.seed = 8;
  EXPECT_NE((*TrainModel::Random(config, options))->CopyParameters(), (*model)->CopyParameters());
}

// ---------------------------------------------------------------------------------------------------- packed base

std::string PackedModel(const std::string& model, const std::string& recipe) {
  const auto checkpoint = Checkpoint::Open(GoldenPath("models/" + model));
  const auto parsed = ParseRecipe(recipe);
  EXPECT_TRUE(parsed.ok()) << parsed.error().message;
  std::string dir = testing::TempDir() + "/packed";
  const auto report = PackCheckpoint(**checkpoint, *parsed, dir);
  EXPECT_TRUE(report.ok()) << report.error().message;
  return dir;
}

class PackedBase : public ::testing::TestWithParam<std::string> {};

// The forward pass is the engine's, number for number but for the order of sums in attention.
TEST_P(PackedBase, LogitsEqualTheEngine) {
  const std::string dir = PackedModel("qwen2_tied", GetParam());
  TrainModelOptions options = WithLora();
  options.seed = 3;
  const auto model = LoadModel(dir, options);
  EXPECT_EQ(model->base(), BaseFormat::kPacked);
  for (Parameter& p : model->parameters()) {  // B away from zero
    for (size_t i = 0; i < p.value.size(); ++i) p.value[i] += 0.02F * static_cast<float>(static_cast<int>(i % 7) - 3);
  }
  const std::string adapter_dir = testing::TempDir() + "/adapter";
  ASSERT_TRUE(model->SaveAdapter(adapter_dir, AdapterStorage::kF32).ok());
  const Sample sample = GoldenSample("qwen2_tied");
  const auto outputs = model->Run(BatchOf(sample, true));
  ASSERT_TRUE(outputs.ok());

  EngineOptions engine_options;
  engine_options.kv = KvType::kF32;
  engine_options.adapters = LoraFormat::kF32;
  engine_options.threads = 2;
  const auto engine = Engine::Load(*Checkpoint::Open(dir), engine_options);
  ASSERT_TRUE(engine.ok());
  const auto adapter = (*engine)->LoadAdapter(adapter_dir);
  ASSERT_TRUE(adapter.ok());
  Sequence sequence = (*engine)->NewSequence();
  const std::span<const int32_t> tokens(sample.tokens);
  ASSERT_TRUE((*engine)->Prefill(sequence, tokens.first(kPrompt), nullptr, {}).ok());
  const StepItem item{&sequence, tokens.subspan(kPrompt), adapter->get(), Rows::kAll, Rows::kNone};
  const auto step = (*engine)->Step({&item, 1});
  ASSERT_TRUE(step.ok());
  EXPECT_LT(RelativeError(outputs->logits, step->logits), 1e-4);
}

// Gradients through the 8-bit transposed copy against those of the same (dequantized) weights in float32.
TEST_P(PackedBase, GradientsStayWithinAPercent) {
  const std::string dir = PackedModel("qwen2_tied", GetParam());
  std::vector<float> gradients[2];
  for (const BaseFormat base : {BaseFormat::kF32, BaseFormat::kPacked}) {
    TrainModelOptions options = WithLora();
    options.base = base;
    const auto model = LoadModel(dir, options);
    EXPECT_EQ(model->base(), base);
    for (Parameter& p : model->parameters()) {
      for (size_t i = 0; i < p.value.size(); ++i) p.value[i] += 0.01F * static_cast<float>(static_cast<int>(i % 7) - 3);
    }
    (void)MeanLoss(*model, BatchOf(GoldenSample("qwen2_tied"), true));
    gradients[base == BaseFormat::kPacked ? 1 : 0] = Gradients(*model);
  }
  const double error = RelativeError(gradients[1], gradients[0]);
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 1e-2);
  RecordProperty("relative_error", std::to_string(error));
}

INSTANTIATE_TEST_SUITE_P(Recipes, PackedBase,
                         ::testing::Values("w4g32,weigh=none", "w8g32", "w4g32m,head=w8g32,weigh=none",
                                           "w4,head=w8,weigh=none"));

// --------------------------------------------------------------------------------------------------------- errors

TEST(TrainModelErrors, BatchesAreChecked) {
  const auto model = LoadAdapted("qwen2_untied");
  const auto expect = [&](const TrainBatch& batch, const std::vector<float>& weights, const std::string& text) {
    const auto scores = model->Accumulate(batch, weights);
    ASSERT_FALSE(scores.ok()) << text;
    EXPECT_EQ(scores.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(scores.error().message.find(text), std::string::npos) << scores.error().message;
  };
  const TrainBatch good = BatchOf(GoldenSample("qwen2_untied"), true);
  const std::vector<float> weights(static_cast<size_t>(good.Labels()), 1.0F);
  expect({}, {}, "without segments");
  expect(good, {1.0F}, "1 weights for");
  TrainBatch bad = good;
  bad.segments[0].tokens[3] = 96;
  expect(bad, weights, "token 96");
  bad = good;
  bad.segments[0].labels[3] = -2;
  expect(bad, weights, "label -2");
  bad = good;
  bad.segments[0].labels.pop_back();
  expect(bad, weights, "labels");
  bad = good;
  bad.segments[0].prefix = 1;
  expect(bad, weights, "prefix 1 of 1");
  bad = good;
  bad.prefixes[0].clear();
  expect(bad, weights, "empty prefix");
  bad = good;
  std::fill(bad.segments[0].labels.begin(), bad.segments[0].labels.end(), kNoLabel);
  expect(bad, {}, "without labels");
  const auto whole = LoadModel("qwen2_untied", {});
  EXPECT_FALSE(whole->Accumulate(good, weights).ok());
}

TEST(TrainModelErrors, NumbersThatAreNotFiniteAreFound) {
  const auto model = LoadAdapted("qwen2_untied");
  model->parameters()[0].value[0] = std::numeric_limits<float>::quiet_NaN();
  const TrainBatch batch = BatchOf(GoldenSample("qwen2_untied"), true);
  const std::vector<float> weights(static_cast<size_t>(batch.Labels()), 1.0F);
  const auto scores = model->Accumulate(batch, weights);
  ASSERT_FALSE(scores.ok());
  EXPECT_EQ(scores.error().code, ErrorCode::kNumeric);
}

TEST(TrainModelErrors, OptionsAreChecked) {
  const auto checkpoint = Checkpoint::Open(GoldenPath("models/qwen2_untied"));
  const auto load = [&](const TrainModelOptions& options) { return TrainModel::Load(*checkpoint, options); };
  TrainModelOptions options = WithLora();
  options.lora->rank = 0;
  EXPECT_EQ(load(options).error().code, ErrorCode::kInvalidArgument);
  options = WithLora(1.0);
  EXPECT_EQ(load(options).error().code, ErrorCode::kInvalidArgument);
  options = WithLora();
  options.base = BaseFormat::kPacked;
  EXPECT_EQ(load(options).error().code, ErrorCode::kUnsupported);
}

TEST(Blas, IsOpenBlas) {
  const BlasInfo info = DescribeBlas();
  EXPECT_EQ(info.warning, "") << info.description;
  EXPECT_NE(info.description.find("OpenBLAS"), std::string::npos) << info.description;
}

// Scores at a temperature are those of the logits divided by it, and the gradient is theirs.
TEST(TrainModel, Temperature) {
  const auto model = LoadAdapted("qwen2_untied");
  TrainBatch batch;
  AddSample(GoldenSample("qwen2_untied"), true, &batch);
  const auto outputs = model->Run(batch);
  ASSERT_TRUE(outputs.ok());
  batch.temperature = 0.7F;
  const auto scores = model->Score(batch);
  ASSERT_TRUE(scores.ok());
  const auto vocab = static_cast<size_t>(model->config().vocab);
  size_t label_index = 0;
  const Segment& segment = batch.segments[0];
  for (size_t t = 0; t < segment.labels.size(); ++t) {
    if (segment.labels[t] == kNoLabel) continue;
    const float* row = outputs->logits.data() + t * vocab;
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]) / 0.7);
    const double want = static_cast<double>(row[segment.labels[t]]) / 0.7 - std::log(sum);
    double entropy = 0;
    for (size_t v = 0; v < vocab; ++v) {
      const double log_p = static_cast<double>(row[v]) / 0.7 - std::log(sum);
      entropy -= std::exp(log_p) * log_p;
    }
    EXPECT_NEAR(scores->log_probs[label_index], want, 1e-5);
    EXPECT_NEAR(scores->entropies[label_index], entropy, 1e-5);
    ++label_index;
  }
  // Along the gradient the loss falls by its squared norm.
  MeanLoss(*model, batch);
  const std::vector<float> gradient = Gradients(*model);
  const std::vector<float> start = model->CopyParameters();
  double norm = 0;
  for (const float g : gradient) norm += static_cast<double>(g) * static_cast<double>(g);
  const auto loss_at = [&](double step) {
    std::vector<float> moved = start;
    for (size_t i = 0; i < moved.size(); ++i) moved[i] -= static_cast<float>(step * static_cast<double>(gradient[i]));
    EXPECT_TRUE(model->SetParameters(moved).ok());
    return MeanLoss(*model, batch);
  };
  const double step = 1e-2 / std::sqrt(norm);
  const double slope = (loss_at(-step) - loss_at(step)) / (2 * step);
  EXPECT_NEAR(slope / norm, 1.0, 1e-2);
  batch.temperature = 0;
  EXPECT_EQ(model->Score(batch).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace pith::train
