// pith export and pith verify-export as scripts see them: what is written, JSON, typed errors.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "deploy/golden_model.h"
#include "deploy/onnx_file.h"
#include "model/heads.h"
#include "support/data.h"
#include "support/shell.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using ::pith::testing::ExpectError;
using ::pith::testing::GoldenPath;
using ::pith::testing::ModelWithTokenizer;
using ::pith::testing::Outcome;
using ::pith::testing::ReadFile;
using ::pith::testing::Shell;
using ::pith::testing::TempDir;

Json RunJson(const std::string& line) {
  const Outcome outcome = Shell(line + " --json");
  EXPECT_EQ(outcome.status, 0) << line << "\n" << outcome.out << outcome.error;
  EXPECT_TRUE(outcome.json.is_object()) << outcome.out;
  return outcome.json.is_object() ? outcome.json : Json::object();
}

std::string Adapter(const std::string& name) { return GoldenPath("models/qwen2_untied/adapters/" + name); }

// An adapter directory with both heads.
std::string AdapterWithHeads(const std::string& name) {
  const std::string dir = TempDir() + "/" + name;
  fs::copy(Adapter(name), dir, fs::copy_options::recursive);
  const auto hidden = static_cast<size_t>(testing::Open(GoldenPath("models/qwen2_untied"))->config().hidden);
  SwitcherHead switcher;
  VerifierHead verifier;
  switcher.hidden = verifier.hidden = static_cast<int64_t>(hidden);
  switcher.inner = 1;
  switcher.pooling.chunk = 8;
  for (size_t i = 0; i < hidden; ++i) {
    switcher.w1.push_back(0.05F * static_cast<float>(i % 7) - 0.1F);
    verifier.w.push_back(0.02F * static_cast<float>(i % 9) - 0.07F);
  }
  switcher.b1 = {0.3F};
  switcher.w2 = {0.7F};
  verifier.prompt = "Is this right?";
  EXPECT_TRUE(WriteSwitcher(dir + "/" + kSwitcherFile, switcher).ok());
  EXPECT_TRUE(WriteVerifier(dir + "/" + kVerifierFile, verifier).ok());
  return dir;
}

// --- gguf ---

TEST(ExportGgufCli, WritesModelAndAdapter) {
  const std::string model = ModelWithTokenizer("qwen2_untied"), out = TempDir();
  const Json floats = RunJson("$PITH export gguf " + model + " " + out + "/f.gguf");
  EXPECT_EQ(floats["exact"], true);
  EXPECT_EQ(floats["bytes"], fs::file_size(out + "/f.gguf"));
  EXPECT_EQ(floats["tensors"].size(), 2U * 7 + 2);
  EXPECT_LE(floats["check"]["relative_difference"].get<double>(), floats["check"]["allowed"].get<double>());
  const Json blocks = RunJson("$PITH export gguf --type q8_0 --no-check --name small " + model + " " + out + "/q.gguf");
  EXPECT_EQ(blocks["exact"], false);
  EXPECT_FALSE(blocks.contains("check"));
  for (const Json& tensor : blocks["tensors"]) {
    EXPECT_EQ(tensor["type"], "Q8_0");
    EXPECT_GT(tensor["sqnr_db"].get<double>(), 30);
  }
  EXPECT_EQ(Shell("$PITH inspect --json " + out + "/q.gguf").json["config"]["architecture"], "qwen2");
  const Json adapter = RunJson("$PITH export gguf " + model + " " + out + "/a.gguf --adapter " + Adapter("patterns"));
  EXPECT_GT(adapter["folded_scalings"].get<int>(), 0);
  EXPECT_EQ(adapter["bytes"], fs::file_size(out + "/a.gguf"));
}

TEST(ExportGgufCli, Refuses) {
  const std::string model = ModelWithTokenizer("qwen2_tied"), out = TempDir() + "/x.gguf";
  const std::string run = "$PITH export gguf ";
  ExpectError(run + model, ErrorCode::kInvalidArgument, "out");
  ExpectError(run + model + " " + out + " --type q3_k", ErrorCode::kInvalidArgument, "q3_k");
  ExpectError(run + "/no/such/model " + out, ErrorCode::kNotFound, "/no/such/model");
  ExpectError(run + GoldenPath("models/llama") + " " + out, ErrorCode::kNotFound, "tokenizer");
  ExpectError(run + model + " /nowhere/at/all.gguf", ErrorCode::kIo, "/nowhere/at");
  ExpectError(run + model + " " + out + " --adapter /no/such/adapter", ErrorCode::kNotFound, "/no/such/adapter");
  // An adapter of another model, and types that an adapter cannot have.
  ExpectError(run + model + " " + out + " --adapter " + GoldenPath("models/qwen3/adapters/all"), ErrorCode::kMismatch,
              "proj");
  const std::string untied = GoldenPath("models/qwen2_untied");
  ExpectError(run + untied + " " + out + " --type q4_0 --adapter " + Adapter("all"), ErrorCode::kInvalidArgument,
              "f32, f16 or bf16");
  EXPECT_FALSE(fs::exists(out));
}

// --- hf and peft ---

TEST(ExportHfCli, WritesAndMerges) {
  const std::string model = ModelWithTokenizer("qwen2_untied"), out = TempDir();
  const Json plain = RunJson("$PITH export hf --type f32 " + model + " " + out + "/plain");
  EXPECT_TRUE(plain["adapter_loss"].is_null());
  EXPECT_EQ(plain["check"]["relative_difference"], 0.0);
  const std::string merge = "$PITH export hf " + model + " --merge-adapter " + Adapter("all") + " " + out;
  const Json exact = RunJson(merge + "/f32 --type f32");
  EXPECT_LT(exact["adapter_loss"].get<double>(), 1e-5);
  const Json rounded = RunJson(merge + "/bf16");
  EXPECT_GT(rounded["adapter_loss"].get<double>(), exact["adapter_loss"].get<double>());
  EXPECT_EQ(Shell("$PITH inspect --json " + out + "/bf16").json["config"]["architecture"], "qwen2");
  ExpectError(merge + "/bf16", ErrorCode::kInvalidArgument, "bf16");  // it is there
  ExpectError("$PITH export hf --type int8 " + model + " " + out + "/y", ErrorCode::kInvalidArgument, "int8");
  ExpectError("$PITH export hf " + model + " " + out + "/y --merge-adapter " + model, ErrorCode::kNotFound, "adapter");
  EXPECT_FALSE(fs::exists(out + "/y"));
}

TEST(ExportPeftCli, WritesAndRefuses) {
  const std::string model = GoldenPath("models/qwen2_untied"), out = TempDir();
  const Json same =
      RunJson("$PITH export peft --base-name org/base " + model + " " + Adapter("all") + " " + out + "/same");
  EXPECT_EQ(same["exact"], true);
  EXPECT_EQ(same["relative_error"], 0.0);
  EXPECT_EQ((*ReadJsonFile(out + "/same/adapter_config.json"))["base_model_name_or_path"], "org/base");
  const Json int8 = RunJson("$PITH export peft --type int8 " + model + " " + Adapter("all") + " " + out + "/int8");
  EXPECT_EQ(int8["exact"], false);
  EXPECT_GT(int8["relative_error"].get<double>(), 0);
  EXPECT_LT(int8["bytes"].get<int>(), same["bytes"].get<int>());
  // Integers become floats again, the same numbers.
  EXPECT_EQ(RunJson("$PITH export peft " + model + " " + out + "/int8 " + out + "/floats")["exact"], true);
  const std::string run = "$PITH export peft " + model + " ";
  ExpectError(run + Adapter("all") + " " + out + "/same", ErrorCode::kInvalidArgument, "same");
  ExpectError(run + "/no/such/adapter " + out + "/z", ErrorCode::kNotFound, "/no/such/adapter");
  ExpectError(run + Adapter("all"), ErrorCode::kInvalidArgument, "out");
  ExpectError(run + Adapter("all") + " " + out + "/z --type q8_0", ErrorCode::kInvalidArgument, "q8_0");
  fs::create_directories(out + "/bad");
  std::ofstream(out + "/bad/adapter_config.json") << "{\"peft_type\":\"LORA\",";
  ExpectError(run + out + "/bad " + out + "/z", ErrorCode::kMalformed, "adapter_config.json");
  EXPECT_FALSE(fs::exists(out + "/z"));
}

// --- onnx and genie ---

TEST(ExportOnnxCli, WritesGraphsAndEncodings) {
  if (!OnnxIsBuiltIn()) GTEST_SKIP() << "SKIPPED LOUDLY: built without libonnx";
  const std::string model = ModelWithTokenizer("qwen2_untied"), out = TempDir() + "/onnx";
  const Json json =
      RunJson("$PITH export onnx --tokens 8,1 --context 64 --parts 3 --adapter " + AdapterWithHeads("all") +
              " --encodings 2.0.0 --calibration-tokens 16 " + model + " " + out);
  ASSERT_EQ(json["parts"].size(), 3U);
  EXPECT_EQ(json["parts"][2]["graphs"], (Json{"prompt_ar8_cl64_3_of_3.onnx", "token_ar1_cl64_3_of_3.onnx"}));
  EXPECT_EQ(json["encodings"]["files"].size(), 6U);
  const Json manifest = *ReadJsonFile(out + "/pith-export.json");
  EXPECT_TRUE(manifest.contains("switcher") && manifest.contains("verifier") && manifest.contains("lora"));
  EXPECT_EQ(manifest["encodings"]["version"], "2.0.0");
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string kind = entry.path().extension();
    if (kind == ".onnx" || kind == ".bin") bytes += entry.file_size();
  }
  EXPECT_EQ(json["bytes"], bytes);
  ExpectError("$PITH export onnx --context 64 --tokens 1 " + model + " " + out, ErrorCode::kInvalidArgument, "onnx");
}

TEST(ExportOnnxCli, Refuses) {
  const std::string model = GoldenPath("models/qwen2_untied"), out = TempDir() + "/onnx";
  const auto refuse = [&](const std::string& options, ErrorCode code, const std::string& part) {
    ExpectError("$PITH export onnx " + options + " " + model + " " + out, code, part);
  };
  refuse("--tokens 0 --context 64", ErrorCode::kInvalidArgument, "0 new tokens");
  refuse("--tokens 4,4 --context 64", ErrorCode::kInvalidArgument, "twice");
  refuse("--tokens 4,x --context 64", ErrorCode::kInvalidArgument, "tokens");
  refuse("--tokens 64 --context 64", ErrorCode::kInvalidArgument, "64");
  refuse("--context 100000", ErrorCode::kInvalidArgument, "100000");
  refuse("--qdq --target qnn --context 200", ErrorCode::kInvalidArgument, "generic");
  refuse("--encodings 3.0", ErrorCode::kInvalidArgument, "3.0");
  // Without a tokenizer no text can be measured on: graphs that lack what was asked for are not left behind.
  if (OnnxIsBuiltIn()) refuse("--encodings 1.0.0 --tokens 8,1 --context 64", ErrorCode::kNotFound, "tokenizer");
  EXPECT_FALSE(fs::exists(out));
  refuse("--target tflite", ErrorCode::kInvalidArgument, "tflite");
  refuse("--context 200 --switcher /no/such/head", ErrorCode::kNotFound, "/no/such/head");
  refuse("--context 200 --adapter /no/such/adapter", ErrorCode::kNotFound, "/no/such/adapter");
  if (OnnxIsBuiltIn()) {
    refuse("--context 200 --parts 9", ErrorCode::kInvalidArgument, "9 parts");
  } else {
    refuse("--context 200", ErrorCode::kUnavailable, "libonnx");
  }
  EXPECT_FALSE(fs::exists(out));
}

TEST(ExportGenieCli, WritesABundleAndRefuses) {
  const std::string model = ModelWithTokenizer("qwen2_untied"), out = TempDir() + "/bundle";
  const std::string run = "$PITH export genie --tokens 8,1 --context 64 --calibration-tokens 16 --parts 2 ";
  ExpectError(run + "--chip 9gen9 " + model + " " + out, ErrorCode::kInvalidArgument, "9gen9");
  ExpectError(run + "--memory -1 " + model + " " + out, ErrorCode::kInvalidArgument, "memory");
  ExpectError(run + GoldenPath("models/qwen2_untied") + " " + out, ErrorCode::kNotFound, "tokenizer");
  ExpectError(run + model + " " + out, ErrorCode::kUnsupported, "chat template");
  EXPECT_FALSE(fs::exists(out));
  if (!OnnxIsBuiltIn()) GTEST_SKIP() << "SKIPPED LOUDLY: built without libonnx";
  const std::string chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
      "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  testing::WriteText(model + "/tokenizer_config.json",
                     Json{{"eos_token", "<|im_end|>"}, {"chat_template", chatml}}.dump());
  const Json json = RunJson(run + "--chip 8elite --memory 16 --adapter-name think --adapter " + Adapter("all") + " " +
                            model + " " + out);
  EXPECT_EQ(json["fits"], true) << json["findings"];
  EXPECT_EQ(json["part_bytes"].size(), 2U);
  for (const char* file : {"genie_config.json", "htp_backend_ext_config.json", "commands.sh", "preflight.txt",
                           "tokenizer.json", "updatable_tensors.txt", "pith-export.json"}) {
    EXPECT_TRUE(fs::exists(out + "/" + file)) << file;
  }
  EXPECT_EQ(Shell("bash -n " + out + "/commands.sh").status, 0);
  EXPECT_NE(ReadFile(out + "/genie_config.json").find("\"think\""), std::string::npos);
}

// --- verify-export ---

class VerifyExportCli : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!OnnxIsBuiltIn()) GTEST_SKIP() << "SKIPPED LOUDLY: built without libonnx";
    RunJson("$PITH export onnx --tokens 8,4,1 --context 64 --parts 2 --adapter " + adapter_ + " " + model_ + " " +
            folder_);
    RunJson("$PITH export onnx --tokens 8,4,1 --context 64 --parts 2 " + model_ + " " + base_);
  }
  std::string Verify() const { return "$PITH verify-export " + folder_ + " -m " + model_ + " --adapter " + adapter_; }
  // A stand-in for Python: a script of sh with the arguments SCRIPT GRAPHS TASK RESULT.
  static std::string Python(const std::string& commands) {
    const std::string path = TempDir() + "/python";
    std::ofstream(path) << "#!/bin/sh\n" << commands << "\n";
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }
  const std::string model_ = GoldenPath("models/qwen2_untied");
  const std::string adapter_ = AdapterWithHeads("all");
  const std::string folder_ = TempDir() + "/onnx", base_ = TempDir() + "/base";
};

TEST_F(VerifyExportCli, Refuses) {
  const std::string verify = "$PITH verify-export ";
  ExpectError(verify + folder_, ErrorCode::kInvalidArgument, "model");
  ExpectError(verify + "/no/such/folder -m " + model_, ErrorCode::kNotFound, "/no/such/folder");
  ExpectError(verify + model_ + " -m " + model_, ErrorCode::kNotFound, "pith-export.json");
  ExpectError(verify + folder_ + " -m " + GoldenPath("models/qwen2_tied"), ErrorCode::kMismatch, "another model");
  ExpectError(verify + folder_ + " -m " + model_ + " --adapter " + Adapter("subset"), ErrorCode::kMismatch, "subset");
  ExpectError(verify + base_ + " -m " + model_ + " --adapter " + adapter_, ErrorCode::kMismatch, "adapter");
  ExpectError(Verify() + " --new-tokens 0", ErrorCode::kInvalidArgument, "new-tokens");
  // What runs the graphs is missing, or does not run.
  ExpectError(Verify() + " --python /no/such/python", ErrorCode::kUnavailable, "pip install onnxruntime");
  ExpectError(
      Verify() + " --python " + Python("echo \"ModuleNotFoundError: No module named 'onnxruntime'\" >&2; exit 1"),
      ErrorCode::kUnavailable, "pip install onnxruntime");
  ExpectError(Verify() + " --python " + Python("echo 'Fail: no kernel for Gemm' >&2; exit 1"), ErrorCode::kMismatch,
              "no kernel for Gemm");
  ExpectError(Verify() + " --python " + Python("echo '{}' > \"$4\""), ErrorCode::kInternal, "verify_onnx.py");
  std::ofstream(folder_ + "/pith-export.json") << "{\"pith_export\": 99}";
  ExpectError(Verify(), ErrorCode::kMalformed, "version");
}

// The verdict, on results that a stand-in tells.
TEST_F(VerifyExportCli, Judges) {
  const Json good = {{"onnxruntime", "stand-in"},
                     {"seconds", 1.0},
                     {"layers", {1e-6, 1e-6}},
                     {"prefill", {{"steps", 1}, {"same_choice", 1}, {"relative", 1e-6}, {"max_difference", 1e-6}}}};
  const auto verdict = [&](const Json& result) {
    return Verify() + " --python " + Python("echo '" + result.dump() + "' > \"$4\"");
  };
  EXPECT_EQ(RunJson(verdict(good))["ok"], true);
  EXPECT_TRUE(RunJson(verdict(good))["unchecked"].empty());
  // Without the adapter its parts are not compared, which is said.
  const Json alone = RunJson("$PITH verify-export " + folder_ + " -m " + model_ + " --python " +
                             Python("echo '" + good.dump() + "' > \"$4\""));
  EXPECT_EQ(alone["unchecked"].size(), 3U) << alone;
  Json bad = good;
  bad["layers"][1] = 0.5;
  ExpectError(verdict(bad), ErrorCode::kMismatch, "layer 1");
  bad = good;
  bad["prefill"]["same_choice"] = 0;
  ExpectError(verdict(bad), ErrorCode::kMismatch, "another token");
  bad = good;
  bad["adapter"] = {{"steps", 4}, {"same_choice", 4}, {"relative", 0.1}, {"prompt_kv_reused", true}};
  ExpectError(verdict(bad), ErrorCode::kMismatch, "adapter: logits differ");
  bad["adapter"] = {{"steps", 4}, {"same_choice", 4}, {"relative", 0.0}, {"prompt_kv_reused", false}};
  ExpectError(verdict(bad), ErrorCode::kMismatch, "keys and values changed");
  bad = good;
  bad["switcher_score"] = 2.0;
  ExpectError(verdict(bad), ErrorCode::kMismatch, "switcher");
}

// In ONNX Runtime itself, where a Python with it is at hand: PITH_ONNX_PYTHON, or the place that docs/deploy.md names.
TEST_F(VerifyExportCli, OnnxRuntimeAgrees) {
  const char* named = std::getenv("PITH_ONNX_PYTHON");
  const char* home = std::getenv("HOME");
  const std::string python =
      named != nullptr ? named : std::string(home != nullptr ? home : "") + "/.local/share/pith/onnx/bin/python";
  if (Shell(python + " -c 'import numpy, onnxruntime'").status != 0) {
    GTEST_SKIP() << "SKIPPED LOUDLY: no Python with onnxruntime (set PITH_ONNX_PYTHON)";
  }
  const Json json =
      RunJson(Verify() + " --prompt-tokens 20 --new-tokens 12 --base-export " + base_ + " --python " + python);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["base"]["same_choice"], json["base"]["steps"]);
  EXPECT_EQ(json["adapter"]["same_choice"], json["adapter"]["steps"]);
  EXPECT_EQ(json["alpha_0_is_base"], true);
  EXPECT_EQ(json["streams"]["streams"], 8);
  EXPECT_EQ(json["switcher"].size(), 2U);
  EXPECT_EQ(json["verifier"].size(), 2U);
}

TEST(CalibrateCli, StaticRangesAreMeasuredStoredAndRunWith) {
  const std::string model = ModelWithTokenizer("qwen2_untied"), out = TempDir();
  const std::string packed = out + "/packed", text = out + "/text.txt";
  ASSERT_EQ(Shell("$PITH pack " + model + " " + packed + " --recipe w8,head=w8,method=minmax").status, 0);
  std::ofstream(text) << "The cat sat on the mat and looked at the dog. Then it went home, as cats do when it rains.";
  const std::string ppl = "$PITH ppl -m " + packed + " --file " + text + " --ctx 64 --json";
  ExpectError(Shell(ppl + " --activations static"), ErrorCode::kNotFound, "pith calibrate");
  const Json calibrated = RunJson("$PITH calibrate " + packed + " --tokens 64 --text " + text);
  EXPECT_EQ(calibrated["method"], "minmax");
  EXPECT_GT(calibrated["ranges"].get<int>(), 20);
  EXPECT_EQ(calibrated["path"], packed + "/activation_ranges.json");
  const double dynamic = RunJson("$PITH ppl -m " + packed + " --file " + text + " --ctx 64")["ppl"].get<double>();
  const double fixed =
      RunJson("$PITH ppl -m " + packed + " --file " + text + " --ctx 64 --activations static")["ppl"].get<double>();
  EXPECT_NE(fixed, dynamic);
  EXPECT_NEAR(fixed, dynamic, 0.1 * dynamic);
  // Ranges of another model are no ranges of this one.
  std::ofstream(packed + "/activation_ranges.json") << "{\"format\":1}";
  const Outcome broken = Shell(ppl + " --activations static");
  EXPECT_NE(broken.status, 0);
  EXPECT_NE((broken.out + broken.error).find("activation_ranges.json"), std::string::npos);
  ExpectError(Shell("$PITH calibrate /no/such/model --json"), ErrorCode::kNotFound, "/no/such/model");
}

}  // namespace
}  // namespace pith
