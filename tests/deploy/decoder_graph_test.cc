// The static graphs, computed operator by operator, against golden logits of transformers and PEFT: any cut into parts,
// chunks, both targets, adapters and heads.
#include "deploy/decoder_graph.h"

#include <gtest/gtest.h>

#include "deploy/golden_model.h"
#include "deploy/graph_evaluator.h"
#include "deploy/graph_host.h"
#include "deploy/onnx_export.h"
#include "deploy/onnx_weights.h"

namespace pith {
namespace {

using testing::GoldenIds;
using testing::GoldenPath;
using testing::Open;

constexpr int64_t kContext = 120;

struct Setup {
  int64_t tokens = 16;
  int64_t parts = 1;
  bool qnn = false;
  bool lora_inputs = false;
  const AdapterFile* adapter = nullptr;
  const SwitcherHead* switcher = nullptr;
  const VerifierHead* verifier = nullptr;
};

// The graphs of a model, ready to be computed.
struct Graphs {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::string folder = testing::TempDir();
  std::vector<std::unique_ptr<GraphEvaluator>> parts;

  Graphs(const std::string& model, const Setup& setup) : checkpoint(Open(GoldenPath("models/" + model))) {
    DecoderGraphOptions options;
    options.tokens = setup.tokens;
    options.context = kContext;
    options.convolutions = options.per_head = setup.qnn;
    options.lora_inputs = setup.lora_inputs;
    options.switcher = setup.switcher;
    options.verifier = setup.verifier;
    if (setup.adapter != nullptr) {
      for (const LoraModule& module : setup.adapter->modules) {
        options.lora_ranks[LinearName(module.layer, module.kind)] = module.rank;
      }
    }
    const auto plan = PlanParts(checkpoint->config(), setup.parts);
    for (const GraphPart& part : *plan) {
      const auto weights = WritePartWeights(*checkpoint, *FoldedKeys::Of(*checkpoint), part, setup.adapter,
                                            setup.switcher, setup.verifier, folder, {});
      EXPECT_TRUE(weights.ok()) << weights.error().message;
      OnnxGraph graph = BuildDecoderGraph(checkpoint->config(), part, options, weights->places);
      // ONNX Runtime computes no convolution with a matrix; the evaluator would.
      for (const OnnxNode& node : graph.nodes) {
        if (node.op == "Conv") {
          EXPECT_EQ(graph.values.at(node.inputs[1]).shape.size(), 4U) << node.name;
        }
      }
      auto evaluator = GraphEvaluator::Create(std::move(graph), folder);
      EXPECT_TRUE(evaluator.ok()) << evaluator.error().message;
      parts.push_back(std::move(*evaluator));
    }
  }

  GraphHost Host(int64_t tokens) const {
    std::vector<const GraphEvaluator*> list;
    for (const auto& part : parts) list.push_back(part.get());
    return {checkpoint->config(), list, tokens, kContext};
  }
};

// Logits of all tokens, fed in chunks that the sizes say, over and over; alpha 0 before `adapter_from`, 1 from there
// on.
std::vector<float> Logits(const Graphs& graphs, const std::vector<int32_t>& ids, int64_t tokens,
                          const std::vector<int64_t>& chunks, int64_t adapter_from = 1 << 20) {
  GraphHost host = graphs.Host(tokens);
  std::vector<float> logits;
  const auto total = static_cast<int64_t>(ids.size());
  for (int64_t at = 0, i = 0; at < total; ++i) {
    int64_t n = std::min(chunks[static_cast<size_t>(i) % chunks.size()], total - at);
    if (at < adapter_from) n = std::min(n, adapter_from - at);
    const auto outputs = host.Feed(std::span(ids).subspan(static_cast<size_t>(at), static_cast<size_t>(n)),
                                   at < adapter_from ? 0.0F : 1.0F);
    EXPECT_TRUE(outputs.ok()) << outputs.error().message;
    if (!outputs.ok()) return logits;
    const auto& out = outputs->at("logits");
    const auto vocab = static_cast<size_t>(out.shape[2]);
    const auto rows = out.data.subspan(static_cast<size_t>(tokens - n) * vocab);
    logits.insert(logits.end(), rows.begin(), rows.end());
    at += n;
  }
  return logits;
}

struct Case {
  const char* model;
  int64_t parts;
  bool qnn;
};

class DecoderGraphModel : public ::testing::TestWithParam<Case> {};

TEST_P(DecoderGraphModel, LogitsAreTransformers) {
  const auto [model, parts, qnn] = GetParam();
  const Graphs graphs(model, {.tokens = 16, .parts = parts, .qnn = qnn});
  const auto logits = Logits(graphs, GoldenIds(model), 16, {16, 3, 7, 1});
  const auto golden = testing::GoldenFloats(std::string(model) + "/golden.safetensors", "logits");
  EXPECT_LT(testing::RelativeError(logits, golden), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Models, DecoderGraphModel,
                         ::testing::Values(Case{"qwen2_tied", 1, false}, Case{"qwen2_tied", 3, true},
                                           Case{"qwen2_tied", 1, true}, Case{"qwen2_untied", 2, false},
                                           Case{"qwen2_yarn", 1, true}, Case{"llama", 1, false},
                                           Case{"llama_rope_llama3", 2, false}, Case{"llama_rope_llama3", 1, true},
                                           Case{"llama_rope_linear", 1, false}, Case{"llama_rope_linear", 2, true},
                                           Case{"qwen3", 1, false}, Case{"qwen3", 3, true}));

struct AdapterCase {
  const char *model, *adapter;
  bool qnn;
};

class DecoderGraphAdapter : public ::testing::TestWithParam<AdapterCase> {};

// The base's prompt, then the adapter on the same cache: the golden masked run. And alpha 0 is the base, bit for bit.
TEST_P(DecoderGraphAdapter, SwitchesOnTheSameCache) {
  const auto [model, name, qnn] = GetParam();
  const std::string dir = std::string(model) + "/adapters/" + name;
  const auto adapter =
      AdapterFile::Open(GoldenPath("models/" + dir), Open(GoldenPath("models/" + std::string(model)))->config());
  ASSERT_TRUE(adapter.ok()) << adapter.error().message;
  const auto ids = GoldenIds(model);
  for (const bool inputs : {false, true}) {
    const Graphs graphs(model, {.tokens = 8, .parts = 2, .qnn = qnn, .lora_inputs = inputs, .adapter = adapter->get()});
    const auto masked = testing::GoldenFloats(dir + "/golden.safetensors", "masked_logits");
    EXPECT_LT(testing::RelativeError(Logits(graphs, ids, 8, {8}, 27), masked), 1e-4);
    const auto on = testing::GoldenFloats(dir + "/golden.safetensors", "logits");
    EXPECT_LT(testing::RelativeError(Logits(graphs, ids, 8, {8, 1}, 0), on), 1e-4);
    const Graphs base(model, {.tokens = 8, .parts = 2, .qnn = qnn});
    EXPECT_EQ(Logits(graphs, ids, 8, {8}), Logits(base, ids, 8, {8}));
  }
}

INSTANTIATE_TEST_SUITE_P(Adapters, DecoderGraphAdapter,
                         ::testing::Values(AdapterCase{"qwen2_untied", "all", false},
                                           AdapterCase{"qwen2_untied", "all", true},
                                           AdapterCase{"qwen2_untied", "patterns_rslora", false},
                                           AdapterCase{"qwen2_untied", "lm_head", true},
                                           AdapterCase{"qwen2_untied", "subset", false},
                                           AdapterCase{"llama", "all", true}, AdapterCase{"qwen3", "all", false}));

class DecoderGraphKeys : public ::testing::TestWithParam<const char*> {};

// The engine's equalizer is in the weights: what comes out is the engine's cache, divided by sqrt(head_dim).
TEST_P(DecoderGraphKeys, AreTheEngines) {
  const std::string model = GetParam();
  const Graphs graphs(model, {.tokens = 16});
  const ModelConfig& config = graphs.checkpoint->config();
  EngineOptions options;
  options.weights = WeightFormat::kF32;
  options.kv = KvType::kF32;
  options.threads = 1;
  const auto engine = Engine::Load(graphs.checkpoint, options);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  auto ids = GoldenIds(model);
  ids.resize(16);
  Sequence sequence = (*engine)->NewSequence();
  const StepItem item{&sequence, ids, nullptr, Rows::kNone, Rows::kNone};
  ASSERT_TRUE((*engine)->Step({&item, 1}).ok());
  GraphHost host = graphs.Host(16);
  const auto outputs = host.Feed(ids, 0);
  ASSERT_TRUE(outputs.ok()) << outputs.error().message;
  const float root = std::sqrt(static_cast<float>(config.head_dim));
  bool equalized = false;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const GraphArray& got = outputs->at("past_key_" + std::to_string(layer) + "_out");
    std::vector<float> keys, want;
    for (int64_t h = 0; h < config.kv_heads; ++h) {
      const auto* k = static_cast<const float*>(sequence.blocks()[0]->At(layer, h).k);
      for (int64_t j = 0; j < config.head_dim; ++j) {
        for (int64_t t = 0; t < 16; ++t) want.push_back(k[j * kKvBlockTokens + t]);
      }
    }
    for (const float value : got.data) keys.push_back(value * root);
    EXPECT_LT(testing::RelativeError(keys, want), 1e-5) << layer;
    for (const float scale : (*engine)->weights().layers[static_cast<size_t>(layer)].key_scale) {
      equalized = equalized || scale != 1.0F;
    }
  }
  EXPECT_TRUE(equalized) << "nothing was tested";
}

INSTANTIATE_TEST_SUITE_P(Models, DecoderGraphKeys, ::testing::Values("qwen2_untied", "qwen2_tied", "llama", "qwen3"));

TEST(DecoderGraph, HeadsAreOutputs) {
  const auto checkpoint = Open(GoldenPath("models/qwen3"));
  const auto hidden = static_cast<size_t>(checkpoint->config().hidden);
  SwitcherHead switcher;
  switcher.hidden = static_cast<int64_t>(hidden);
  switcher.inner = 2;
  switcher.pooling.chunk = 16;
  VerifierHead verifier;
  verifier.hidden = switcher.hidden;
  for (size_t i = 0; i < hidden; ++i) {
    switcher.w1.push_back(0.05F * static_cast<float>(i % 7) - 0.1F);
    switcher.w1.push_back(0.03F * static_cast<float>(i % 5) - 0.05F);
    verifier.w.push_back(0.02F * static_cast<float>(i % 9) - 0.07F);
  }
  switcher.b1 = {0.3F, 0.2F};
  switcher.w2 = {0.7F, -0.4F};
  switcher.b2 = 0.1F;
  verifier.b = -0.2F;
  const auto ids = GoldenIds("qwen3");
  const auto states = testing::GoldenFloats("qwen3/golden.safetensors", "final_hidden");
  for (const bool qnn : {false, true}) {
    const Graphs graphs("qwen3", {.tokens = 16, .qnn = qnn, .switcher = &switcher, .verifier = &verifier});
    GraphHost host = graphs.Host(16);
    std::vector<double> average(hidden);
    GraphArray pooled = GraphArray::Of({1, switcher.hidden}, std::vector<float>(hidden));
    for (size_t begin = 0; begin < 40; begin += 16) {
      const size_t n = std::min<size_t>(16, 40 - begin);
      std::vector<float> weights(16);
      std::fill(weights.end() - static_cast<int64_t>(n), weights.end(), 1.0F / static_cast<float>(n));
      const float blend = begin == 0 ? 1.0F : 0.5F;
      const auto outputs = host.Feed(std::span(ids).subspan(begin, n), 0,
                                     {{"switcher_weights", GraphArray::Of({1, 16}, weights)},
                                      {"switcher_blend", GraphArray::Of({1}, {blend})},
                                      {"switcher_state_in", pooled}});
      ASSERT_TRUE(outputs.ok()) << outputs.error().message;
      pooled = outputs->at("switcher_state_out");
      for (size_t j = 0; j < hidden; ++j) {
        double mean = 0;
        for (size_t t = begin; t < begin + n; ++t) mean += static_cast<double>(states[t * hidden + j]);
        mean /= static_cast<double>(n);
        average[j] += static_cast<double>(blend) * (mean - average[j]);
      }
      const std::vector<float> state(average.begin(), average.end());
      EXPECT_NEAR(outputs->at("switcher_score").data[0], switcher.Score(state), 1e-5);
      for (size_t t = 0; t < n; ++t) {
        EXPECT_NEAR(outputs->at("verifier_score").data[16 - n + t],
                    verifier.Score(std::span(states).subspan((begin + t) * hidden, hidden)), 1e-5);
      }
    }
  }
}

TEST(DecoderGraph, NamesAndShapesAreTheContracts) {
  const Graphs graphs("qwen2_untied", {.tokens = 1, .parts = 3});
  const OnnxGraph& last = graphs.parts[2]->graph();
  EXPECT_EQ(last.name, "token_ar1_cl120_3_of_3");
  std::map<std::string, std::vector<int64_t>> inputs, outputs;
  for (const OnnxValue& value : last.inputs) inputs[value.name] = value.shape;
  for (const OnnxValue& value : last.outputs) outputs[value.name] = value.shape;
  const std::map<std::string, std::vector<int64_t>> want_inputs = {
      {"hidden_2", {1, 1, 32}},           {"attention_mask", {1, 1, 1, 120}}, {"position_ids_cos", {1, 1, 1, 4}},
      {"position_ids_sin", {1, 1, 1, 4}}, {"past_key_1_in", {2, 1, 8, 119}},  {"past_value_1_in", {2, 1, 119, 8}}};
  const std::map<std::string, std::vector<int64_t>> want_outputs = {
      {"logits", {1, 1, 96}}, {"past_key_1_out", {2, 1, 8, 1}}, {"past_value_1_out", {2, 1, 1, 8}}};
  EXPECT_EQ(inputs, want_inputs);
  EXPECT_EQ(outputs, want_outputs);
  const OnnxGraph& first = graphs.parts[0]->graph();
  ASSERT_EQ(first.inputs.size(), 1U);
  EXPECT_EQ(first.inputs[0].name, "input_ids");
  EXPECT_EQ(first.inputs[0].type, OnnxType::kInt32);
  GraphPart part;
  EXPECT_EQ(GraphName(part, 128, 4096), "prompt_ar128_cl4096_1_of_1");
}

TEST(DecoderGraph, WrongRequestsAreErrors) {
  const auto checkpoint = Open(GoldenPath("models/llama"));
  const auto expect = [&](const OnnxExportOptions& options, const std::string& out = testing::TempDir() + "/out") {
    const auto result = ExportOnnx(*checkpoint, out, options);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument) << result.error().message;
  };
  expect({.tokens = {}});
  expect({.tokens = {0}, .context = 64});
  expect({.tokens = {4, 4}, .context = 64});
  expect({.tokens = {64}, .context = 64});
  expect({.tokens = {1}, .context = 100000});
  EXPECT_FALSE(PlanParts(checkpoint->config(), 0).ok());
  EXPECT_FALSE(PlanParts(checkpoint->config(), 4).ok());
  const auto parts = *PlanParts(checkpoint->config(), 3);
  EXPECT_EQ(parts[1].begin, 0);
  EXPECT_EQ(parts[2].end, 2);
  EXPECT_TRUE(parts[2].head && parts[0].embedding && !parts[1].head);
  // More tokens than places.
  const Graphs graphs("llama", {.tokens = 16});
  GraphHost host = graphs.Host(16);
  EXPECT_EQ(host.Feed(std::vector<int32_t>(17, 1), 0).error().code, ErrorCode::kContextOverflow);
  EXPECT_EQ(graphs.parts[0]->Run({}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace pith
