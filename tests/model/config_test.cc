#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "model/config_checks.h"
#include "support/data.h"
#include "support/gguf_builder.h"

namespace pith {
namespace {

using testing::GgufBuilder;
using testing::ParseGguf;

Json Base(const std::string& type = "llama") {
  return Json{{"model_type", type},     {"hidden_size", 64},        {"intermediate_size", 128},
              {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
              {"vocab_size", 300},      {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 512},
              {"rope_theta", 10000.0}};
}

Result<ModelConfig> Parse(const Json& json) { return ParseHfConfig(json.dump(), "config.json"); }

Json With(Json json, const std::string& key, Json value) {
  json[key] = std::move(value);
  return json;
}
Json Without(Json json, const std::string& key) {
  json.erase(key);
  return json;
}

void ExpectError(const Json& json, ErrorCode code, const std::string& part) {
  const auto config = Parse(json);
  ASSERT_FALSE(config.ok()) << "accepted " << json.dump();
  EXPECT_EQ(config.error().code, code) << config.error().message;
  EXPECT_NE(config.error().message.find(part), std::string::npos) << config.error().message;
}

TEST(HfConfig, Llama) {
  Json json = With(Base(), "bos_token_id", 1);
  json["eos_token_id"] = {2, 3, 2};
  const auto config = Parse(json);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->arch, Architecture::kLlama);
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->intermediate, 128);
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->vocab, 300);
  EXPECT_EQ(config->max_position, 512);
  EXPECT_EQ(config->rms_eps, 1e-5);
  EXPECT_EQ(config->bos_id, 1);
  EXPECT_EQ(config->eos_ids, (std::vector<int32_t>{2, 3}));
  EXPECT_FALSE(config->tied_embeddings || config->attention_bias || config->attention_out_bias || config->mlp_bias ||
               config->qk_norm);
  EXPECT_EQ(config->rope_scaling.kind, RopeScalingKind::kNone);
}

TEST(HfConfig, BiasesAndTies) {
  const auto llama =
      Parse(With(With(With(Base(), "attention_bias", true), "mlp_bias", true), "tie_word_embeddings", true));
  EXPECT_TRUE(llama->attention_bias && llama->attention_out_bias && llama->mlp_bias && llama->tied_embeddings);
  const auto qwen2 = Parse(With(Base("qwen2"), "attention_bias", false));  // the class always has them on q, k, v
  EXPECT_TRUE(qwen2->attention_bias);
  EXPECT_FALSE(qwen2->attention_out_bias || qwen2->mlp_bias || qwen2->qk_norm);
  const auto qwen3 = Parse(Base("qwen3"));
  EXPECT_TRUE(qwen3->qk_norm);
  EXPECT_FALSE(qwen3->attention_bias || qwen3->attention_out_bias);
  EXPECT_EQ(qwen3->head_dim, 128);
  EXPECT_EQ(Parse(With(Base("qwen3"), "head_dim", 32))->head_dim, 32);
  EXPECT_EQ(Parse(Without(Base(), "num_key_value_heads"))->kv_heads, 4);
}

TEST(HfConfig, MissingAndOutOfRangeSizesNameTheKey) {
  for (const char* key :
       {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    ExpectError(Without(Base(), key), ErrorCode::kMalformed, key);
    ExpectError(With(Base(), key, nullptr), ErrorCode::kMalformed, key);
  }
  const std::pair<const char*, const char*> sizes[] = {
      {"hidden_size", ""},          {"intermediate_size", "MLP"},           {"num_hidden_layers", "layers"},
      {"num_attention_heads", ""},  {"num_key_value_heads", "key/value"},   {"head_dim", "head size"},
      {"vocab_size", "vocabulary"}, {"max_position_embeddings", "position"}};
  for (const auto& [key, part] : sizes) {
    for (const Json& value : {Json(0), Json(-1), Json(int64_t{1} << 62), Json(std::numeric_limits<int64_t>::min())}) {
      ExpectError(With(Base(), key, value), ErrorCode::kMalformed, part);
    }
    for (const Json& value : {Json(~uint64_t{0}), Json(1.5), Json("64"), Json(true), Json::array(), Json::object()}) {
      ExpectError(With(Base(), key, value), ErrorCode::kMalformed, std::string("'") + key + "'");
    }
  }
  ExpectError(With(Base(), "num_key_value_heads", 3), ErrorCode::kMalformed, "cannot share");
  ExpectError(With(Base(), "head_dim", 15), ErrorCode::kMalformed, "odd");
  ExpectError(With(Base(), "hidden_size", 65), ErrorCode::kMalformed, "head_dim");
  ExpectError(With(Base(), "rms_norm_eps", -1.0), ErrorCode::kMalformed, "epsilon");
  ExpectError(With(Base(), "rope_theta", 0.0), ErrorCode::kMalformed, "RoPE base");
  EXPECT_EQ(ParseHfConfig("{\"model_type\":\"llama\",\"rope_theta\":1e999}", "c").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(ParseHfConfig("[]", "c").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(ParseHfConfig("{", "c").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(ParseHfConfig(std::string(100000, '['), "c").error().code, ErrorCode::kMalformed);
}

TEST(HfConfig, RefusesWhatWouldChangeTheResult) {
  ExpectError(Base("mistral"), ErrorCode::kUnsupported, "mistral");
  ExpectError(With(Base("qwen2"), "architectures", {"Qwen2ForSequenceClassification"}), ErrorCode::kUnsupported,
              "Qwen2ForCausalLM");
  ExpectError(With(Base(), "hidden_act", "gelu"), ErrorCode::kUnsupported, "gelu");
  ExpectError(With(Base(), "partial_rotary_factor", 0.5), ErrorCode::kUnsupported, "partial_rotary_factor");
  ExpectError(With(Base(), "rope_interleaved", true), ErrorCode::kUnsupported, "rope_interleaved");
  EXPECT_TRUE(Parse(With(Base(), "rope_interleaved", false)).ok());

  Json window = With(With(Base("qwen2"), "sliding_window", 128), "max_window_layers", 1);
  EXPECT_TRUE(Parse(window).ok());
  EXPECT_TRUE(Parse(With(window, "use_sliding_window", false)).ok());
  ExpectError(With(window, "use_sliding_window", true), ErrorCode::kUnsupported, "liding");
  EXPECT_TRUE(Parse(With(With(window, "use_sliding_window", true), "max_window_layers", 2)).ok());
  ExpectError(With(window, "layer_types", {"full_attention", "sliding_attention"}), ErrorCode::kUnsupported,
              "layer_types");
  EXPECT_TRUE(Parse(With(window, "layer_types", {"full_attention", "full_attention"})).ok());

  for (const char* type : {"dynamic", "longrope", "mrope", "su"}) {
    ExpectError(With(Base(), "rope_scaling", {{"rope_type", type}, {"factor", 2.0}}), ErrorCode::kUnsupported, type);
  }
}

TEST(HfConfig, RopeScalingInBothSpellings) {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  for (const auto& config :
       {Parse(With(Base(), "rope_scaling", llama3)),
        Parse(With(Without(Base(), "rope_theta"), "rope_parameters", With(llama3, "rope_theta", 5e5)))}) {
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->rope_scaling.kind, RopeScalingKind::kLlama3);
    EXPECT_EQ(config->rope_scaling.factor, 8.0);
    EXPECT_EQ(config->rope_scaling.original_max_position, 8192);
  }
  EXPECT_EQ(
      Parse(With(Without(Base(), "rope_theta"), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}))
          ->rope_theta,
      5e5);
  EXPECT_EQ(Parse(With(Base(), "rope_scaling", {{"type", "linear"}, {"factor", 2}}))->rope_scaling.kind,
            RopeScalingKind::kLinear);
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    ExpectError(With(Base(), "rope_scaling", Without(llama3, key)), ErrorCode::kMalformed, key);
  }
  ExpectError(With(Base(), "rope_scaling", With(llama3, "high_freq_factor", 1.0)), ErrorCode::kMalformed,
              "freq_factor");
  ExpectError(With(Base(), "rope_scaling", With(llama3, "factor", 0.0)), ErrorCode::kMalformed, "factor");
  ExpectError(With(Base(), "rope_scaling", With(llama3, "original_max_position_embeddings", 0)), ErrorCode::kMalformed,
              "original");
  ExpectError(With(Base(), "rope_scaling", 4), ErrorCode::kMalformed, "rope_scaling");
  ExpectError(With(With(Base(), "rope_scaling", llama3), "rope_parameters", {{"rope_type", "default"}}),
              ErrorCode::kMalformed, "differ");
}

TEST(HfConfig, TokenIds) {
  EXPECT_EQ(Parse(With(Base(), "eos_token_id", 7))->eos_ids, std::vector<int32_t>{7});
  EXPECT_TRUE(Parse(With(Base(), "eos_token_id", nullptr))->eos_ids.empty());
  for (const Json& value :
       {Json(-1), Json(int64_t{1} << 31), Json(~uint64_t{0}), Json(1.0), Json("2"), Json({1, "2"})}) {
    ExpectError(With(Base(), "eos_token_id", value), ErrorCode::kMalformed, "eos_token_id");
  }
  ModelConfig config = *Parse(With(Base(), "eos_token_id", 7));
  ASSERT_TRUE(MergeGenerationConfig(R"({"eos_token_id":[9,7,8]})", "g", &config).ok());
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{7, 9, 8}));
  EXPECT_EQ(MergeGenerationConfig(R"({"eos_token_id":[-9]})", "g", &config).error().code, ErrorCode::kMalformed);
}

TEST(RopeFrequencies, EqualTransformers) {
  const auto golden = ParseJson(testing::ReadFile(testing::GoldenPath("config/rope.json")), "rope.json");
  ASSERT_TRUE(golden.ok());
  ASSERT_GE(golden->size(), 9u);
  for (const auto& [name, entry] : golden->items()) {
    const auto config = Parse(entry["config"]);
    ASSERT_TRUE(config.ok()) << name << ": " << config.error().message;
    const RopeFrequencies rope = ComputeRopeFrequencies(*config);
    const auto expected = entry["inv_freq"].get<std::vector<double>>();
    ASSERT_EQ(rope.inv_freq.size(), expected.size()) << name;
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(rope.inv_freq[i], expected[i], 1e-6 * expected[i]) << name << " pair " << i;
    }
    EXPECT_NEAR(rope.attention_factor, entry["attention_factor"].get<double>(), 1e-12) << name;
  }
}

// Metadata of a tiny GGUF model.
GgufBuilder Metadata(const std::string& arch) {
  GgufBuilder builder;
  builder.AddString("general.architecture", arch);
  builder.AddU32(arch + ".embedding_length", 64).AddU32(arch + ".feed_forward_length", 128);
  builder.AddU32(arch + ".block_count", 2).AddU32(arch + ".attention.head_count", 4);
  builder.AddU32(arch + ".attention.head_count_kv", 2).AddU32(arch + ".context_length", 512);
  builder.AddF32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  return builder;
}

Result<ModelConfig> ParseGgufConfig(GgufBuilder builder) {
  builder.AddFloats("token_embd.weight", {64, 10}, 0.0f);
  const auto file = ParseGguf(builder.Build());
  if (!file.ok()) return file.error();
  return ConfigFromGguf(**file);
}

TEST(GgufConfig, SizesBiasesTiesAndEnds) {
  GgufBuilder builder = Metadata("qwen2");
  builder.AddF32("qwen2.rope.freq_base", 1e6f);
  builder.AddU32("tokenizer.ggml.bos_token_id", 4).AddU32("tokenizer.ggml.eos_token_id", 5);
  builder.AddU32("tokenizer.ggml.eot_token_id", 6).AddU32("tokenizer.ggml.eom_token_id", ~0u);
  builder.AddStrings("tokenizer.ggml.tokens", {"a", "<|endoftext|>", "<|im_end|>", "b", "c", "d", "e"});
  builder.AddArray<int32_t>("tokenizer.ggml.token_type", GgufType::kI32, {1, 3, 1, 1, 3, 3, 3});
  builder.AddFloats("blk.0.attn_q.bias", {64}, 0.0f).AddFloats("output.weight", {64, 10}, 0.0f);
  const auto config = ParseGgufConfig(builder);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->arch, Architecture::kQwen2);
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->vocab, 10);
  EXPECT_EQ(config->rope_theta, 1e6);
  EXPECT_TRUE(config->attention_bias);
  EXPECT_FALSE(config->tied_embeddings || config->attention_out_bias || config->mlp_bias || config->qk_norm);
  EXPECT_EQ(config->bos_id, 4);
  // The text of a normal token (2) is no end, an absent id (2^32 - 1) is none.
  EXPECT_EQ(config->eos_ids, (std::vector<int32_t>{5, 6, 1}));
  EXPECT_TRUE(ParseGgufConfig(Metadata("llama"))->tied_embeddings);
  EXPECT_TRUE(ParseGgufConfig(Metadata("qwen3"))->qk_norm);
}

TEST(GgufConfig, RopeScaling) {
  const auto linear = ParseGgufConfig(
      Metadata("llama").AddString("llama.rope.scaling.type", "linear").AddF32("llama.rope.scaling.factor", 4.0f));
  EXPECT_EQ(linear->rope_scaling.kind, RopeScalingKind::kLinear);
  EXPECT_EQ(linear->rope_scaling.factor, 4.0);
  EXPECT_EQ(ParseGgufConfig(Metadata("llama").AddF32("llama.rope.scale_linear", 2.0f))->rope_scaling.factor, 2.0);
  const auto yarn = ParseGgufConfig(Metadata("qwen2")
                                        .AddString("qwen2.rope.scaling.type", "yarn")
                                        .AddF32("qwen2.rope.scaling.factor", 4.0f)
                                        .AddU32("qwen2.rope.scaling.original_context_length", 128));
  EXPECT_EQ(yarn->rope_scaling.kind, RopeScalingKind::kYarn);
  EXPECT_EQ(yarn->rope_scaling.original_max_position, 128);
  EXPECT_NEAR(ComputeRopeFrequencies(*yarn).attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-12);
  EXPECT_EQ(ParseGgufConfig(Metadata("llama").AddString("llama.rope.scaling.type", "longrope")).error().code,
            ErrorCode::kUnsupported);

  // llama3 scaling comes as divisors.
  const auto divided = ParseGgufConfig(Metadata("llama").AddFloats("rope_freqs.weight", {8}, 2.0f));
  ASSERT_TRUE(divided.ok()) << divided.error().message;
  const auto plain = ParseGgufConfig(Metadata("llama"));
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(ComputeRopeFrequencies(*divided).inv_freq[i], ComputeRopeFrequencies(*plain).inv_freq[i] / 2.0);
  }
  EXPECT_EQ(ParseGgufConfig(Metadata("llama").AddFloats("rope_freqs.weight", {4}, 2.0f)).error().code,
            ErrorCode::kMismatch);
  EXPECT_EQ(ParseGgufConfig(Metadata("llama").AddFloats("rope_freqs.weight", {8}, 0.0f)).error().code,
            ErrorCode::kMalformed);
}

TEST(GgufConfig, Refusals) {
  const auto code = [](const GgufBuilder& builder) {
    const auto config = ParseGgufConfig(builder);
    return config.ok() ? ErrorCode::kInternal : config.error().code;
  };
  EXPECT_EQ(code(Metadata("gemma")), ErrorCode::kUnsupported);
  EXPECT_EQ(code(GgufBuilder()), ErrorCode::kNotFound);
  EXPECT_EQ(code(GgufBuilder().AddString("general.architecture", "llama")), ErrorCode::kNotFound);
  EXPECT_EQ(code(Metadata("llama").AddU32("llama.attention.sliding_window", 128)), ErrorCode::kUnsupported);
  EXPECT_EQ(code(Metadata("llama").AddU32("llama.expert_count", 8)), ErrorCode::kUnsupported);
  EXPECT_EQ(code(Metadata("llama").AddF32("llama.logit_scale", 0.5f)), ErrorCode::kUnsupported);
  EXPECT_EQ(code(Metadata("llama").AddF32("llama.attention.scale", 0.5f)), ErrorCode::kUnsupported);
  EXPECT_EQ(code(Metadata("llama").Add("llama.attention.causal", GgufType::kBool, uint8_t{0})),
            ErrorCode::kUnsupported);
  EXPECT_EQ(code(Metadata("llama").Add("split.count", GgufType::kU16, uint16_t{2})), ErrorCode::kUnsupported);
  EXPECT_EQ(code(Metadata("llama").AddString("general.type", "adapter")), ErrorCode::kUnsupported);
  EXPECT_EQ(code(Metadata("llama").AddU32("llama.rope.dimension_count", 8)), ErrorCode::kUnsupported);
  EXPECT_EQ(code(Metadata("llama").AddU32("llama.attention.value_length", 8)), ErrorCode::kUnsupported);
  EXPECT_EQ(code(Metadata("llama").AddU32("llama.attention.key_length", 0)), ErrorCode::kMalformed);
  EXPECT_EQ(code(Metadata("llama")
                     .AddU32("llama.attention.key_length", 15)
                     .AddU32("llama.attention.value_length", 15)
                     .AddU32("llama.rope.dimension_count", 15)),
            ErrorCode::kMalformed);
  GgufBuilder no_embedding = Metadata("llama");
  EXPECT_EQ(ConfigFromGguf(**ParseGguf(no_embedding.Build())).error().code, ErrorCode::kNotFound);
  GgufBuilder zero = GgufBuilder().AddString("general.architecture", "llama");
  zero.AddU32("llama.embedding_length", 64).AddU32("llama.feed_forward_length", 128).AddU32("llama.block_count", 2);
  zero.AddU32("llama.attention.head_count", 0).AddU32("llama.context_length", 512);
  zero.AddF32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  EXPECT_EQ(code(zero), ErrorCode::kMalformed);
}

}  // namespace
}  // namespace pith
