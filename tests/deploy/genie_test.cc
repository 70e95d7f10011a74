// GENIE's configuration files against the facts of the method's section 6, the preflight on known shapes, a whole
// bundle.
#include "deploy/genie.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/json.h"
#include "base/sha256.h"
#include "deploy/genie_bundle.h"
#include "deploy/golden_model.h"
#include "deploy/onnx_file.h"

namespace pith {
namespace {

using testing::GoldenPath;
using testing::Open;

ModelConfig Qwen7B() {
  ModelConfig config;
  config.arch = Architecture::kQwen2;
  config.hidden = 3584;
  config.intermediate = 18944;
  config.layers = 28;
  config.heads = 28;
  config.kv_heads = 4;
  config.head_dim = 128;
  config.vocab = 152064;
  config.max_position = 32768;
  config.rope_theta = 1000000;
  config.attention_bias = true;
  config.eos_ids = {151645, 151643};
  config.bos_id = 151644;
  return config;
}

ModelConfig Qwen05B() {
  ModelConfig config = Qwen7B();
  config.hidden = 896;
  config.intermediate = 4864;
  config.layers = 24;
  config.heads = 14;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.vocab = 151936;
  return config;
}

GenieSizes SizesOf(const ModelConfig& config, const GenieOptions& options) {
  const auto parts = PlanParts(config, options.parts);
  return ComputeGenieSizes(config, *parts, options.context, nullptr);
}

bool Blocked(const ModelConfig& config, const GenieOptions& options) {
  for (const Finding& finding : Preflight(config, *FindChip(options.chip), options, SizesOf(config, options))) {
    if (finding.blocks) return true;
  }
  return false;
}

TEST(Genie, SizesAreThoseOfTheMethod) {
  const GenieSizes sizes = SizesOf(Qwen7B(), {.parts = 6});
  EXPECT_EQ(sizes.kv_bytes, 28672U * 4096U);          // 28,672 B a token, 112 MiB for 4096
  EXPECT_EQ(sizes.embedding_bytes, 152064U * 3584U);  // 0.545 GB
  // Linears and an LM head of 4 bits would be 3.54 GB.
  EXPECT_NEAR(static_cast<double>(sizes.layer_bytes) + static_cast<double>(sizes.head_bytes) / 2, 3.54e9, 0.01e9);
  const auto parts = PlanParts(Qwen7B(), 6);
  const GenieSizes wide = ComputeGenieSizes(Qwen7B(), *parts, 4096, nullptr, {.linears = 8, .head = 4});
  EXPECT_EQ(wide.layer_bytes, 2 * sizes.layer_bytes);
  EXPECT_EQ(wide.head_bytes, sizes.head_bytes / 2);
}

TEST(Genie, PreflightFlagsWhatDoesNotFit) {
  EXPECT_FALSE(Blocked(Qwen05B(), {.chip = "8gen2", .parts = 1, .device_memory_gib = 8}));
  EXPECT_FALSE(Blocked(Qwen7B(), {.chip = "8elite", .parts = 6, .device_memory_gib = 16}));
  EXPECT_TRUE(Blocked(Qwen7B(), {.chip = "8elite", .parts = 1, .device_memory_gib = 16}));  // one part
  EXPECT_TRUE(Blocked(Qwen7B(), {.chip = "8gen2", .parts = 6, .device_memory_gib = 6}));    // memory
  EXPECT_TRUE(Blocked(Qwen05B(), {.context = 65536}));
  EXPECT_TRUE(Blocked(Qwen05B(), {.decodes = false}));
  EXPECT_TRUE(Blocked(Qwen05B(), {.switcher = true}));  // no dialog of GENIE's feeds its inputs
  ModelConfig scaled = Qwen05B();
  scaled.rope_scaling.kind = RopeScalingKind::kLlama3;  // the configuration has no key for it
  EXPECT_TRUE(Blocked(scaled, {}));
  const GenieOptions options{.chip = "8gen3", .parts = 6, .device_memory_gib = 12};
  bool warned = false;
  for (const Finding& finding : Preflight(Qwen7B(), *FindChip("8gen3"), options, SizesOf(Qwen7B(), options))) {
    warned = warned || finding.text.find("16 GB") != std::string::npos;
  }
  EXPECT_TRUE(warned);
  EXPECT_EQ(FindChip("8gen9").error().code, ErrorCode::kInvalidArgument);
}

TEST(Genie, ConfigsHaveTheKnownKeysAndValues) {
  const GenieOptions options{.chip = "8elite", .parts = 6};
  const std::string text = GenieConfigText(Qwen7B(), options, nullptr);
  ASSERT_TRUE(ValidateGenieConfig(text, "x").ok());
  const Json dialog = (*ParseJson(text, "x"))["dialog"];
  EXPECT_EQ(dialog["version"], 1);
  EXPECT_EQ(dialog["type"], "basic");
  EXPECT_EQ(
      dialog["context"],
      (Json{{"size", 4096}, {"n-vocab", 152064}, {"bos-token", 151644}, {"eos-token", 151645}, {"eot-token", 151643}}));
  EXPECT_EQ(dialog["engine"]["backend"]["QnnHtp"], (Json{{"use-mmap", true},
                                                         {"spill-fill-bufsize", 0},
                                                         {"mmap-budget", 0},
                                                         {"poll", true},
                                                         {"cpu-mask", "0xe0"},
                                                         {"kv-dim", 128},
                                                         {"pos-id-dim", 64},
                                                         {"rope-theta", 1000000},
                                                         {"allow-async-init", false}}));
  EXPECT_EQ(dialog["engine"]["model"]["binary"]["ctx-bins"].size(), 6U);
  const std::string htp = HtpConfigText(*FindChip("8elite"));
  ASSERT_TRUE(ValidateHtpConfig(htp, "x").ok());
  const Json device = (*ParseJson(htp, "x"))["devices"][0];
  EXPECT_EQ(device["soc_model"], 69);
  EXPECT_EQ(device["dsp_arch"], "v79");
}

TEST(Genie, UnknownAndMissingKeysFail) {
  const std::string text = GenieConfigText(Qwen7B(), {.parts = 6}, nullptr);
  const std::function<void(Json&)> changes[] = {
      [](Json& j) { j["dialog"]["more"] = 1; },
      [](Json& j) { j["dialog"]["sampler"].erase("temp"); },
      [](Json& j) { j["dialog"]["engine"]["backend"]["QnnHtp"]["kv_dim"] = 1; },
      [](Json& j) {
        j["dialog"]["engine"]["model"]["binary"]["lora"] = {{"version", 1}};
      },
      [](Json& j) {
        j["dialog"]["context"]["size"] = {{"deep", 1}};
      },
      [](Json& j) { j["dialog"] = 3; },
      [](Json& j) { j["dialog"]["tokenizer"] = Json::array({Json::array({1})}); },
  };
  for (const auto& change : changes) {
    Json json = *ParseJson(text, "x");
    change(json);
    const Status status = ValidateGenieConfig(json.dump(), "x");
    ASSERT_FALSE(status.ok()) << json.dump();
    EXPECT_EQ(status.error().code, ErrorCode::kMalformed);
  }
  Json htp = *ParseJson(HtpConfigText(*FindChip("xelite")), "x");
  htp["devices"][0]["cores"][0]["core"] = 0;
  EXPECT_FALSE(ValidateHtpConfig(htp.dump(), "x").ok());
}

TEST(Genie, WholeBundle) {
  if (!OnnxIsBuiltIn()) GTEST_SKIP() << "SKIPPED LOUDLY: built without libonnx";
  const std::string model = testing::ModelWithTokenizer("qwen2_untied");
  testing::WriteText(model + "/tokenizer_config.json",
                     Json{{"chat_template",
                           "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                           "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
                           "{{ '<|im_start|>assistant\\n' }}{% endif %}"}}
                         .dump());
  const auto checkpoint = Open(model);
  const auto adapter = *AdapterFile::Open(GoldenPath("models/qwen2_untied/adapters/subset"), checkpoint->config());
  OnnxExportOptions graphs;
  graphs.tokens = {8, 1};
  graphs.adapter = adapter.get();
  EncodingOptions encodings;
  encodings.tokens = testing::GoldenIds("qwen2_untied");
  const GenieOptions options{.chip = "8gen3", .context = 64, .parts = 3, .adapter_name = "reason"};
  const std::string out = testing::TempDir() + "/bundle";
  const auto report = ExportGenie(*checkpoint, out, graphs, encodings, options);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->fits());
  const std::string genie = testing::ReadFile(out + "/genie_config.json");
  EXPECT_TRUE(ValidateGenieConfig(genie, "x").ok());
  const Json lora = (*ParseJson(genie, "x"))["dialog"]["engine"]["model"]["binary"]["lora"];
  EXPECT_EQ(lora["alpha-tensor-name"], "lora_alpha");
  // The adapter is on layer 1 only: the embedding and layer 0 have no section.
  EXPECT_EQ(lora["adapters"][0]["bin-sections"], (Json{"", "", "reason_3_of_3.bin"}));
  EXPECT_NE(testing::ReadFile(out + "/updatable_tensors.txt").find("model.layers.1.mlp.down_proj.lora_B\n"),
            std::string::npos);
  EXPECT_NE(testing::ReadFile(out + "/sample_prompt.txt").find("<|im_start|>assistant\n"), std::string::npos);
  const std::string base = testing::ReadFile(out + "/genie_config_base.json");
  EXPECT_TRUE(ValidateGenieConfig(base, "x").ok());
  EXPECT_FALSE((*ParseJson(base, "x"))["dialog"]["engine"]["model"]["binary"].contains("lora"));
  const std::string commands = testing::ReadFile(out + "/commands.sh");
  for (const char* step : {"qairt-converter --input_network token_ar1_cl64_3_of_3.onnx", "qairt-quantizer",
                           "qnn-context-binary-generator", "adb push", "-l reason,lora_alpha,1.0",
                           "--preserve_io datatype input_ids ",  // keys and values cross in 8 bits
                           "-c genie_config_base.json"}) {
    EXPECT_NE(commands.find(step), std::string::npos) << step;
  }
  const Json manifest = *ReadJsonFile(out + "/" + std::string(kExportManifest));
  EXPECT_EQ(manifest["kv_bits"], 8);
  EXPECT_EQ(manifest["scheme"], "w4a16");
  EXPECT_EQ(manifest["chip"]["hexagon"], 75);
  for (const char* file : {"weights_2_of_3.bin", "prompt_ar8_cl64_3_of_3.encodings", "tokenizer.json"}) {
    Digest digest;
    digest.Update(testing::ReadFile(out + "/" + file));
    EXPECT_EQ(manifest["sha256"][file], digest.Finish()) << file;
  }
  GenieOptions named = options;
  named.adapter_name = "x; rm -r y";
  EXPECT_EQ(ExportGenie(*checkpoint, out + "-named", graphs, encodings, named).error().code,
            ErrorCode::kInvalidArgument);
  // A bundle that cannot be finished leaves nothing behind.
  EncodingOptions none = encodings;
  none.tokens.clear();
  EXPECT_FALSE(ExportGenie(*checkpoint, out + "-half", graphs, none, options).ok());
  EXPECT_FALSE(std::filesystem::exists(out + "-half"));
}

}  // namespace
}  // namespace pith
