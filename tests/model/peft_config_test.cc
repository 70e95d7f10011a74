#include "model/peft_config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"

namespace pith {
namespace {

OrderedJson Base() {
  return {{"peft_type", "LORA"}, {"r", 8}, {"lora_alpha", 16}, {"target_modules", {"q_proj", "v_proj"}}};
}

Result<PeftConfig> ParseWith(const std::string& field, const OrderedJson& value) {
  OrderedJson json = Base();
  json[field] = value;
  return PeftConfig::Parse(json.dump(), "adapter_config.json");
}

bool Targets(const PeftConfig& config, const std::string& name) {
  const auto result = config.Targets(name);
  EXPECT_TRUE(result.ok());
  return result.ok() && result.value();
}

TEST(PeftConfig, UnsupportedFieldsAreNamed) {
  const std::vector<std::pair<std::string, OrderedJson>> refused = {
      {"peft_type", "ADALORA"},
      {"use_dora", true},
      {"bias", "all"},
      {"bias", "lora_only"},
      {"modules_to_save", {"lm_head"}},
      {"fan_in_fan_out", true},
      {"lora_bias", true},
      {"layer_replication", {{0, 1}, {1, 2}}},
      {"trainable_token_indices", {1, 2}},
      {"trainable_token_indices", {{"embed_tokens", {1}}}},
      {"megatron_config", {{"tensor_parallel", 2}}},
      {"use_qalora", true},
      {"target_parameters", {"experts.weight"}},
      {"arrow_config", {{"top_k", 3}}},
      {"init_lora_weights", "pissa"},
      {"init_lora_weights", "pissa_niter_16"},
      {"init_lora_weights", "olora"},
      {"init_lora_weights", "corda"},
      {"init_lora_weights", "loftq"},
      {"init_lora_weights", "something_new"},
  };
  for (const auto& [field, value] : refused) {
    const auto config = ParseWith(field, value);
    ASSERT_FALSE(config.ok()) << field;
    EXPECT_EQ(config.error().code, ErrorCode::kUnsupported) << field;
    EXPECT_NE(config.error().message.find(field), std::string::npos) << config.error().message;
  }
}

TEST(PeftConfig, MalformedFieldsAreNamed) {
  const std::vector<std::pair<std::string, OrderedJson>> bad = {
      {"peft_type", 3},
      {"r", 0},
      {"r", -1},
      {"r", 257},
      {"r", 8.0},
      {"r", "8"},
      {"r", nullptr},
      {"r", uint64_t{1} << 63},
      {"lora_alpha", "16"},
      {"lora_alpha", nullptr},
      {"lora_alpha", 1e300},
      {"use_rslora", "yes"},
      {"use_rslora", 1},
      {"rank_pattern", {1, 2}},
      {"rank_pattern", {{"q_proj", 0}}},
      {"rank_pattern", {{"q_proj", 1000}}},
      {"rank_pattern", {{"q_proj", "8"}}},
      {"rank_pattern", {{"(q_proj", 8}}},
      {"alpha_pattern", {{"*", 8}}},
      {"alpha_pattern", {{"q_proj", nullptr}}},
      {"target_modules", nullptr},
      {"target_modules", OrderedJson::array()},
      {"target_modules", ""},
      {"target_modules", {1, 2}},
      {"target_modules", {{"a", 1}}},
      {"target_modules", "["},
      {"exclude_modules", 7},
      {"exclude_modules", {nullptr}},
      {"layers_to_transform", "0"},
      {"layers_to_transform", {0, -1}},
      {"layers_to_transform", {0.5}},
      {"layers_pattern", "layers"},  // without layers_to_transform
      {"init_lora_weights", 1},
      {"alora_invocation_tokens", OrderedJson::array()},
      {"alora_invocation_tokens", "think"},
      {"alora_invocation_tokens", {-1}},
      {"alora_invocation_tokens", {int64_t{1} << 31}},
  };
  for (const auto& [field, value] : bad) {
    const auto config = ParseWith(field, value);
    ASSERT_FALSE(config.ok()) << field << " = " << value;
    EXPECT_EQ(config.error().code, ErrorCode::kMalformed) << field << " = " << value;
    EXPECT_NE(config.error().message.find(field), std::string::npos) << config.error().message;
  }
  for (const char* text : {"", "[]", "3", "{", "{\"r\":1e999}", "{}"})
    EXPECT_FALSE(PeftConfig::Parse(text, "x").ok()) << text;
  EXPECT_FALSE(PeftConfig::Parse(std::string(100000, '['), "x").ok());
  EXPECT_FALSE(ParseWith("target_modules", std::string(100000, 'a')).ok());
}

TEST(PeftConfig, DefaultsAndHarmlessFieldsPassSilently) {
  OrderedJson json = Base();
  for (const char* field :
       {"modules_to_save", "layer_replication", "megatron_config", "trainable_token_indices", "exclude_modules",
        "layers_to_transform", "layers_pattern", "alora_invocation_tokens", "arrow_config", "target_parameters",
        "corda_config", "eva_config", "auto_mapping", "revision", "use_rslora", "rank_pattern"}) {
    json[field] = nullptr;
  }
  json["alpha_pattern"] = OrderedJson::object();
  json["loftq_config"] = OrderedJson::object();
  json["megatron_core"] = "megatron.core";
  json["init_lora_weights"] = "gaussian";
  json["lora_dropout"] = 0.05;
  json["qalora_group_size"] = 16;
  json["peft_version"] = "0.18.0";
  json["inference_mode"] = true;
  json["task_type"] = "CAUSAL_LM";
  json["unknown_but_off"] = false;
  const auto config = PeftConfig::Parse(json.dump(), "x");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_TRUE(config->warnings().empty());
}

TEST(PeftConfig, UnknownFieldsAndOtherTasksAreReported) {
  OrderedJson json = Base();
  json["new_trick"] = {{"power", 2}};
  json["task_type"] = "SEQ_CLS";
  const auto config = PeftConfig::Parse(json.dump(), "x");
  ASSERT_TRUE(config.ok()) << config.error().message;
  ASSERT_EQ(config->warnings().size(), 2u);
  EXPECT_NE(config->warnings()[0].find("new_trick"), std::string::npos);
  EXPECT_NE(config->warnings()[1].find("SEQ_CLS"), std::string::npos);
}

TEST(PeftConfig, MissingRankAndAlphaAreReported) {
  const auto config = PeftConfig::Parse(R"({"peft_type": "LORA", "target_modules": ["q_proj"]})", "x");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->warnings().size(), 2u);
  EXPECT_EQ(*config->Rank("q_proj"), 8);
  EXPECT_EQ(*config->Alpha("q_proj"), 8);
}

TEST(PeftConfig, Scaling) {
  const auto plain = ParseWith("use_rslora", false);
  const auto stabilized = ParseWith("use_rslora", true);
  ASSERT_TRUE(plain.ok() && stabilized.ok());
  EXPECT_DOUBLE_EQ(plain->Scaling(8, 16), 2.0);
  EXPECT_DOUBLE_EQ(stabilized->Scaling(8, 16), 16 / std::sqrt(8.0));
}

TEST(PeftConfig, FirstMatchingPatternCounts) {
  // Not in alphabetic order: the order of the file decides.
  const auto config =
      ParseWith("alpha_pattern", {{"layers\\.1\\..*", 3}, {"q_proj", 5}, {"a|layers.0.self_attn.v_proj", 7}});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(*config->Alpha("model.layers.1.self_attn.q_proj"), 3);
  EXPECT_EQ(*config->Alpha("model.layers.0.self_attn.q_proj"), 5);
  EXPECT_EQ(*config->Alpha("model.layers.0.self_attn.v_proj"), 7);
  EXPECT_EQ(*config->Alpha("model.layers.10.self_attn.v_proj"), 16);
  EXPECT_EQ(*config->Alpha("q_proj"), 5);
  EXPECT_EQ(*config->Alpha("model.xq_proj"), 16);
  EXPECT_EQ(*config->Alpha("q_proj.more"), 16);
}

TEST(PeftConfig, TargetsByList) {
  const auto config = ParseWith("target_modules", {"q_proj", "model.layers.1.mlp.up_proj"});
  ASSERT_TRUE(config.ok());
  EXPECT_TRUE(Targets(*config, "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(Targets(*config, "q_proj"));
  EXPECT_TRUE(Targets(*config, "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(Targets(*config, "model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(Targets(*config, "model.layers.0.self_attn.qq_proj"));
}

TEST(PeftConfig, TargetsByPatternMatchWholeNames) {
  const auto config = ParseWith("target_modules", R"(model\.layers\.\d+\.self_attn\.(q|k)_proj)");
  ASSERT_TRUE(config.ok());
  EXPECT_TRUE(Targets(*config, "model.layers.11.self_attn.k_proj"));
  EXPECT_FALSE(Targets(*config, "model.layers.11.self_attn.v_proj"));
  EXPECT_FALSE(Targets(*config, "x.model.layers.11.self_attn.k_proj"));
  EXPECT_FALSE(Targets(*config, "model.layers.11.self_attn.k_proj.x"));
}

TEST(PeftConfig, AllLinearLeavesOutTheHead) {
  for (const char* spelling : {"all-linear", "All-Linear"}) {
    const auto config = ParseWith("target_modules", spelling);
    ASSERT_TRUE(config.ok());
    EXPECT_TRUE(Targets(*config, "model.layers.0.mlp.gate_proj"));
    EXPECT_FALSE(Targets(*config, "lm_head"));
  }
}

TEST(PeftConfig, ExcludedModules) {
  const auto list = ParseWith("exclude_modules", {"layers.1.self_attn.q_proj", "model.layers.0.self_attn.v_proj"});
  const auto pattern = ParseWith("exclude_modules", ".*1.*|model.layers.0.self_attn.v_proj");
  ASSERT_TRUE(list.ok() && pattern.ok());
  for (const auto* config : {&*list, &*pattern}) {
    EXPECT_TRUE(Targets(*config, "model.layers.0.self_attn.q_proj"));
    EXPECT_FALSE(Targets(*config, "model.layers.1.self_attn.q_proj"));
    EXPECT_FALSE(Targets(*config, "model.layers.0.self_attn.v_proj"));
  }
}

TEST(PeftConfig, LayersToTransform) {
  OrderedJson json = Base();
  json["target_modules"] = {"q_proj", "lm_head"};
  for (const OrderedJson& layers : {OrderedJson(1), OrderedJson({3, 1})}) {
    json["layers_to_transform"] = layers;
    for (const OrderedJson& pattern : {OrderedJson(), OrderedJson("layers"), OrderedJson({"h", "layers"})}) {
      json["layers_pattern"] = pattern;
      const auto config = PeftConfig::Parse(json.dump(), "x");
      ASSERT_TRUE(config.ok()) << config.error().message;
      EXPECT_TRUE(Targets(*config, "model.layers.1.self_attn.q_proj"));
      EXPECT_FALSE(Targets(*config, "model.layers.0.self_attn.q_proj"));
      EXPECT_FALSE(Targets(*config, "model.layers.11.self_attn.q_proj"));
      EXPECT_EQ(Targets(*config, "model.layers.3.self_attn.q_proj"), layers.is_array());
      EXPECT_FALSE(Targets(*config, "lm_head"));
    }
  }
  json["layers_pattern"] = "blocks";
  const auto other = PeftConfig::Parse(json.dump(), "x");
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(Targets(*other, "model.layers.1.self_attn.q_proj"));
}

TEST(PeftConfig, HostilePatternsEndWithAnError) {
  const auto exponential = ParseWith("target_modules", "(([a-z])+.)+[A-Z]([a-z])+$");
  ASSERT_TRUE(exponential.ok());
  const auto result = exponential->Targets(std::string(200, 'a'));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kMalformed);
  EXPECT_NE(result.error().message.find("target_modules"), std::string::npos);
  EXPECT_FALSE(ParseWith("target_modules", "((((a{1000}){1000}){1000}){1000})").ok());
  EXPECT_FALSE(ParseWith("target_modules", std::string(5000, '(') + std::string(5000, ')')).ok());
}

}  // namespace
}  // namespace pith
