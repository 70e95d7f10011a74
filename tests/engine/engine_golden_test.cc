// The engine against transformers and PEFT on tiny models (tests/golden/models, made by make_models.py), and against
// itself: chunks, streams, adapters and threads must not change a bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/engine.h"
#include "model/safetensors.h"
#include "support/data.h"

namespace pith {
namespace {

using testing::GoldenPath;

std::vector<float> Floats(const SafetensorsFile& file, const std::string& name) {
  const Tensor* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  auto values = ToFloats(*tensor);
  EXPECT_TRUE(values.ok());
  return *values;
}

std::vector<int32_t> Ints(const SafetensorsFile& file, const std::string& name) {
  const Tensor* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<int32_t> values(static_cast<size_t>(tensor->elements()));
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

// The measure: L2 distance over all logits, relative to their L2 norm.
double RelativeError(std::span<const float> got, std::span<const float> want) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
    norm += static_cast<double>(want[i]) * want[i];
  }
  return std::sqrt(error / norm);
}

EngineOptions Exact(int threads = 2) {
  return {.weights = WeightFormat::kF32, .kv = KvType::kF32, .adapters = LoraFormat::kF32, .threads = threads};
}

// The tiny models hold 256 positions; this is one of them with room for 4,096.
std::string LongContextModel(const std::string& model) {
  const std::string source = GoldenPath("models/" + model);
  const std::string dir = testing::TempDir();
  std::string config = testing::ReadFile(source + "/config.json");
  const std::string key = "\"max_position_embeddings\": ";
  const size_t at = config.find(key);
  EXPECT_NE(at, std::string::npos);
  config.replace(at + key.size(), config.find_first_not_of("0123456789", at + key.size()) - at - key.size(), "4096");
  std::ofstream(dir + "/config.json") << config;
  std::filesystem::copy_file(source + "/model.safetensors", dir + "/model.safetensors");
  return dir;
}

std::unique_ptr<Engine> LoadEngine(const std::string& model, const EngineOptions& options) {
  auto checkpoint = Checkpoint::Open(model[0] == '/' ? model : GoldenPath("models/" + model));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  auto engine = Engine::Load(*checkpoint, options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return std::move(*engine);
}

std::shared_ptr<const SafetensorsFile> LoadGolden(const std::string& path) {
  auto file = SafetensorsFile::Open(GoldenPath("models/" + path + "/golden.safetensors"));
  EXPECT_TRUE(file.ok()) << file.error().message;
  return *file;
}

// All logits of the tokens, `chunk` of them a step, the adapter on from `adapter_from` on.
std::vector<float> AllLogits(Engine& engine, std::span<const int32_t> tokens, int64_t chunk,
                             const Adapter* adapter = nullptr, int64_t adapter_from = 0, Sequence* into = nullptr) {
  Sequence own = engine.NewSequence();
  Sequence& sequence = into != nullptr ? *into : own;
  std::vector<float> logits;
  const auto total = static_cast<int64_t>(tokens.size());
  for (int64_t at = 0; at < total;) {
    const bool on = adapter != nullptr && at >= adapter_from;
    int64_t n = std::min(chunk, total - at);
    if (adapter != nullptr && !on) n = std::min(n, adapter_from - at);
    const StepItem item{&sequence, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(n)),
                        on ? adapter : nullptr, Rows::kAll, Rows::kNone};
    const auto output = engine.Step({&item, 1});
    EXPECT_TRUE(output.ok()) << output.error().message;
    if (!output.ok()) return logits;
    logits.insert(logits.end(), output->logits.begin(), output->logits.end());
    at += n;
  }
  return logits;
}

class GoldenModel : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenModel, LogitsAndStatesEqualTransformers) {
  const auto golden = LoadGolden(GetParam());
  const auto engine = LoadEngine(GetParam(), Exact());
  const auto tokens = Ints(*golden, "input_ids");
  ASSERT_EQ(tokens.size(), 64U);
  Sequence sequence = engine->NewSequence();
  const StepItem item{&sequence, tokens, nullptr, Rows::kAll, Rows::kAll};
  const auto output = engine->Step({&item, 1});
  ASSERT_TRUE(output.ok()) << output.error().message;
  EXPECT_LT(RelativeError(output->logits, Floats(*golden, "logits")), 1e-4);
  EXPECT_LT(RelativeError(output->states, Floats(*golden, "final_hidden")), 1e-4);
}

TEST_P(GoldenModel, ChunksAndThreadsChangeNothing) {
  const auto golden = LoadGolden(GetParam());
  const auto tokens = Ints(*golden, "input_ids");
  for (const KvType kv : {KvType::kF32, KvType::kBF16, KvType::kInt8}) {
    EngineOptions options = Exact(1);
    options.kv = kv;
    const auto one = LoadEngine(GetParam(), options);
    const auto whole = AllLogits(*one, tokens, 64);
    options.threads = 3;
    const auto three = LoadEngine(GetParam(), options);
    for (const int64_t chunk : {1, 5, 31}) EXPECT_EQ(AllLogits(*three, tokens, chunk), whole) << "chunk " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenModel,
                         ::testing::Values("qwen2_tied", "qwen2_untied", "qwen2_yarn", "llama", "llama_rope_llama3",
                                           "llama_rope_linear", "qwen3"));

struct AdapterCase {
  std::string model, adapter;
};

class GoldenAdapter : public ::testing::TestWithParam<AdapterCase> {};

TEST_P(GoldenAdapter, LogitsEqualPeft) {
  const auto& [model, name] = GetParam();
  const auto engine = LoadEngine(model, Exact());
  const std::string folder = model + "/adapters/" + name;
  const auto golden = LoadGolden(folder);
  const auto tokens = Ints(*golden, "input_ids");
  const auto adapter = engine->LoadAdapter(GoldenPath("models/" + folder));
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  EXPECT_LT(RelativeError(AllLogits(*engine, tokens, 64, adapter->get()), Floats(*golden, "logits")), 1e-4);
  const int64_t prompt = Ints(*golden, "prompt_length")[0];
  EXPECT_LT(RelativeError(AllLogits(*engine, tokens, 64, adapter->get(), prompt), Floats(*golden, "masked_logits")),
            1e-4);
}

// int8 factors: one scale per row leaves about 1 / 127 of the largest element; the whole must stay near PEFT's logits
// and keep every exactness of the float path (chunks, threads).
TEST_P(GoldenAdapter, Int8FactorsStayClose) {
  const auto& [model, name] = GetParam();
  EngineOptions options = Exact(3);
  options.adapters = LoraFormat::kInt8;
  const auto engine = LoadEngine(model, options);
  const std::string folder = model + "/adapters/" + name;
  const auto golden = LoadGolden(folder);
  const auto tokens = Ints(*golden, "input_ids");
  const auto adapter = engine->LoadAdapter(GoldenPath("models/" + folder));
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  const auto whole = AllLogits(*engine, tokens, 64, adapter->get());
  EXPECT_LT(RelativeError(whole, Floats(*golden, "logits")), 2e-2);
  EXPECT_EQ(AllLogits(*engine, tokens, 1, adapter->get()), whole);
  EXPECT_EQ(AllLogits(*engine, tokens, 7, adapter->get()), whole);
}

INSTANTIATE_TEST_SUITE_P(Adapters, GoldenAdapter,
                         ::testing::Values(AdapterCase{"qwen2_untied", "all"}, AdapterCase{"qwen2_untied", "all_bf16"},
                                           AdapterCase{"qwen2_untied", "subset"}, AdapterCase{"qwen2_untied", "rslora"},
                                           AdapterCase{"qwen2_untied", "patterns"},
                                           AdapterCase{"qwen2_untied", "patterns_rslora"},
                                           AdapterCase{"qwen2_untied", "lm_head"}, AdapterCase{"llama", "all"},
                                           AdapterCase{"qwen3", "all"}));

// ------------------------------------------------------------------------------- switching (rule 2; demands 01, 02,
// 03, 06)

class Switching : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.threads = 2;
    engine_ = LoadEngine(LongContextModel("qwen2_untied"), options);
    tokens_ = Ints(*LoadGolden("qwen2_untied"), "input_ids");
    all_ = *engine_->LoadAdapter(GoldenPath("models/qwen2_untied/adapters/all"));
    other_ = *engine_->LoadAdapter(GoldenPath("models/qwen2_untied/adapters/patterns"));
  }
  std::span<const int32_t> Prompt() const { return std::span(tokens_).first(40); }
  std::span<const int32_t> Response() const { return std::span(tokens_).subspan(40); }

  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> tokens_;
  std::shared_ptr<const Adapter> all_, other_;
};

TEST_F(Switching, AdapterOnTheBasePromptEqualsAColdMaskedRun) {
  const auto cold = AllLogits(*engine_, tokens_, 64, all_.get(), 40);
  Sequence prompt = engine_->NewSequence();
  (void)AllLogits(*engine_, Prompt(), 13, nullptr, 0, &prompt);
  Sequence stream = prompt;
  const auto warm = AllLogits(*engine_, Response(), 1, all_.get(), 0, &stream);
  const std::vector<float> tail(cold.end() - static_cast<int64_t>(warm.size()), cold.end());
  EXPECT_EQ(warm, tail);
  // And the base on the same prompt afterwards is the base alone.
  const auto base = AllLogits(*engine_, tokens_, 64);
  Sequence again = prompt;
  const auto after = AllLogits(*engine_, Response(), 1, nullptr, 0, &again);
  EXPECT_EQ(after, std::vector<float>(base.end() - static_cast<int64_t>(after.size()), base.end()));
}

TEST_F(Switching, AdaptersNeverMix) {
  const auto first = AllLogits(*engine_, tokens_, 64, all_.get(), 40);
  const auto second = AllLogits(*engine_, tokens_, 64, other_.get(), 40);
  EXPECT_NE(first, second);
  Sequence prompt = engine_->NewSequence();
  (void)AllLogits(*engine_, Prompt(), 40, nullptr, 0, &prompt);
  // Three streams in one batch on one prompt: base, one adapter, the other.
  Sequence streams[3] = {prompt, prompt, prompt};
  std::vector<float> logits[3];
  const Adapter* adapters[3] = {nullptr, all_.get(), other_.get()};
  for (const int32_t token : Response()) {
    std::vector<StepItem> items;
    for (int s = 0; s < 3; ++s) items.push_back({&streams[s], {&token, 1}, adapters[s], Rows::kLast, Rows::kNone});
    const auto output = engine_->Step(items);
    ASSERT_TRUE(output.ok());
    for (int s = 0; s < 3; ++s) {
      const auto row = output->LogitsRow(s);
      logits[s].insert(logits[s].end(), row.begin(), row.end());
    }
  }
  const auto base = AllLogits(*engine_, tokens_, 64);
  const auto n = static_cast<int64_t>(logits[0].size());
  EXPECT_EQ(logits[0], std::vector<float>(base.end() - n, base.end()));
  EXPECT_EQ(logits[1], std::vector<float>(first.end() - n, first.end()));
  EXPECT_EQ(logits[2], std::vector<float>(second.end() - n, second.end()));
}

// An adapter made from factors in memory is the one that was read from a file, but for its id.
TEST_F(Switching, AdaptersFromMemory) {
  const auto file = AdapterFile::Open(GoldenPath("models/qwen2_untied/adapters/all"), engine_->config());
  ASSERT_TRUE(file.ok());
  std::vector<std::vector<float>> factors;
  for (const LoraModule& module : (*file)->modules) {
    factors.push_back(*ToFloats(module.a));
    factors.push_back(*ToFloats(module.b));
  }
  std::vector<LoraWeights> weights;
  for (size_t i = 0; i < (*file)->modules.size(); ++i) {
    const LoraModule& module = (*file)->modules[i];
    weights.push_back({module.layer, module.kind, module.rank,
                       static_cast<double>(module.scaling) * static_cast<double>(module.rank), factors[2 * i],
                       factors[2 * i + 1]});
  }
  const auto read = *Adapter::Load(GoldenPath("models/qwen2_untied/adapters/all"), engine_->config(), LoraFormat::kF32);
  const auto made = Adapter::Make(engine_->config(), weights, false);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(AllLogits(*engine_, tokens_, 64, made->get(), 40), AllLogits(*engine_, tokens_, 64, read.get(), 40));
  EXPECT_NE((*made)->id(), read->id());
  EXPECT_NE((*Adapter::Make(engine_->config(), weights, false))->id(), (*made)->id());
  // rsLoRA divides by the root of the rank: the same adapter with another alpha.
  auto rooted = weights;
  for (LoraWeights& module : rooted) module.alpha /= std::sqrt(static_cast<double>(module.rank));
  const auto again = *Adapter::Make(engine_->config(), rooted, true);
  EXPECT_NEAR(again->Find(0, LinearKind::kQ)->scaling, read->Find(0, LinearKind::kQ)->scaling, 1e-6);
  // Errors name the module.
  factors[0][3] = std::nanf("");
  const auto broken = Adapter::Make(engine_->config(), weights, false);
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message.find("model.layers.0"), std::string::npos) << broken.error().message;
  EXPECT_EQ(Adapter::Make(engine_->config(), {}, false).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(Switching, PrefixIsReusedOnlyWhereEverythingMatches) {
  Sequence sequence = engine_->NewSequence();
  (void)AllLogits(*engine_, Prompt(), 40, nullptr, 0, &sequence);
  (void)AllLogits(*engine_, Response(), 24, all_.get(), 0, &sequence);
  EXPECT_EQ(sequence.CommonPrefix(tokens_, all_->id(), 40), 64);
  EXPECT_EQ(sequence.CommonPrefix(tokens_, other_->id(), 40), 40);  // base part only
  EXPECT_EQ(sequence.CommonPrefix(tokens_, 0, 64), 40);
  EXPECT_EQ(sequence.CommonPrefix(tokens_, all_->id(), 0), 0);  // the prompt was made by the base
  const auto reloaded = *engine_->LoadAdapter(GoldenPath("models/qwen2_untied/adapters/all"));
  EXPECT_EQ(sequence.CommonPrefix(tokens_, reloaded->id(), 40), 40);  // a reload may hold other weights
  auto changed = tokens_;
  changed[7] ^= 1;
  EXPECT_EQ(sequence.CommonPrefix(changed, all_->id(), 40), 7);
  // Truncating and going on equals a cold run of what is left.
  sequence.Truncate(40);
  const auto warm = AllLogits(*engine_, Response(), 24, nullptr, 0, &sequence);
  const auto base = AllLogits(*engine_, tokens_, 64);
  EXPECT_EQ(warm, std::vector<float>(base.end() - static_cast<int64_t>(warm.size()), base.end()));
}

TEST_F(Switching, SharedPromptIsStoredOnce) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < 5; ++i) prompt.insert(prompt.end(), tokens_.begin(), tokens_.end());  // 320 tokens, 5 blocks
  Sequence base = engine_->NewSequence();
  (void)AllLogits(*engine_, prompt, 128, nullptr, 0, &base);
  EXPECT_EQ(engine_->kv_pool().blocks_in_use(), 5);
  std::vector<Sequence> streams(8, base);
  std::vector<StepItem> items;
  for (auto& stream : streams)
    items.push_back({&stream, std::span(tokens_).first(1), nullptr, Rows::kLast, Rows::kNone});
  const auto output = engine_->Step(items);
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(engine_->kv_pool().blocks_in_use(), 5 + 8);
  // Eight equal streams agree with one alone.
  const std::vector<float> together(output->logits.begin(), output->logits.end());
  Sequence alone = base;
  const auto want = AllLogits(*engine_, std::span(tokens_).first(1), 1, nullptr, 0, &alone);
  for (size_t s = 0; s < 8; ++s) {
    EXPECT_EQ(0, std::memcmp(want.data(), together.data() + s * want.size(), want.size() * sizeof(float))) << s;
  }
}

TEST_F(Switching, StreamsOfDifferentLengthsEqualLonelyOnes) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < 10; ++i) prompt.insert(prompt.end(), tokens_.begin(), tokens_.end());
  prompt.resize(597);  // two partitions, the last block partly filled
  Sequence base = engine_->NewSequence();
  (void)AllLogits(*engine_, prompt, 128, nullptr, 0, &base);
  std::vector<Sequence> streams(5, base);
  std::vector<Sequence> lonely(5, base);
  streams[4] = engine_->NewSequence();  // one that shares nothing
  lonely[4] = engine_->NewSequence();
  for (int step = 0; step < 70; ++step) {
    std::vector<StepItem> items;
    std::vector<int32_t> next(5);
    for (size_t s = 0; s < 5; ++s) {
      next[s] = static_cast<int32_t>((static_cast<size_t>(step) * 7 + s * 13) % 60 + 3);
      if (s == 2 && step > 10) continue;  // finished early
      items.push_back({&streams[s], {&next[s], 1}, s % 2 == 0 ? nullptr : all_.get(), Rows::kLast, Rows::kNone});
    }
    const auto output = engine_->Step(items);
    ASSERT_TRUE(output.ok());
    std::vector<float> batch(output->logits.begin(), output->logits.end());
    size_t row = 0;
    for (size_t s = 0; s < 5; ++s) {
      if (s == 2 && step > 10) continue;
      const auto want = AllLogits(*engine_, {&next[s], 1}, 1, s % 2 == 0 ? nullptr : all_.get(), 0, &lonely[s]);
      const auto vocab = want.size();
      ASSERT_EQ(0, std::memcmp(want.data(), batch.data() + row * vocab, vocab * sizeof(float)))
          << "step " << step << " stream " << s;
      ++row;
    }
  }
}

// -------------------------------------------------------------------------------------------------------- typed
// outcomes

TEST(EngineErrors, OverflowCancelAndBadTokens) {
  EngineOptions options;
  options.context = 50;
  const auto engine = LoadEngine("llama", options);
  std::vector<int32_t> tokens(64, 1);
  Sequence sequence = engine->NewSequence();
  const auto overflow = engine->Prefill(sequence, tokens, nullptr, {});
  ASSERT_FALSE(overflow.ok());
  EXPECT_EQ(overflow.error().code, ErrorCode::kContextOverflow);
  EXPECT_NE(overflow.error().message.find("64"), std::string::npos);
  EXPECT_NE(overflow.error().message.find("50"), std::string::npos);
  EXPECT_EQ(sequence.length(), 0);

  std::atomic<bool> cancel{true};
  PrefillOptions cancellable;
  cancellable.cancel = &cancel;
  const auto cancelled = engine->Prefill(sequence, std::span(tokens).first(10), nullptr, cancellable);
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);

  for (const int32_t bad : {-1, static_cast<int32_t>(engine->config().vocab), INT32_MAX, INT32_MIN}) {
    const StepItem item{&sequence, {&bad, 1}, nullptr, Rows::kLast, Rows::kNone};
    const auto output = engine->Step({&item, 1});
    ASSERT_FALSE(output.ok());
    EXPECT_EQ(output.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(sequence.length(), 0);
}

TEST(EngineErrors, SequencesOfAnotherEngineAreRefused) {
  const auto one = LoadEngine("llama", {});
  const auto two = LoadEngine("llama", {});
  Sequence sequence = one->NewSequence();
  const int32_t token = 1;
  const StepItem item{&sequence, {&token, 1}, nullptr, Rows::kLast, Rows::kNone};
  const auto output = two->Step({&item, 1});
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.error().code, ErrorCode::kMismatch);
}

}  // namespace
}  // namespace pith
