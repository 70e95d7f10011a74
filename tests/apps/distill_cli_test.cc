// pith distill, pith features, pith train switcher and verifier as scripts see them, on a model that is written down:
// each token follows from the one before it. It says "\boxed{7}" or "\boxed{8}".
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "support/data.h"
#include "support/shell.h"
#include "support/tiny_checkpoint.h"
#include "train/byte_tokenizer.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using ::pith::testing::ExpectError;
using ::pith::testing::Outcome;
using ::pith::testing::ReadFile;
using ::pith::testing::Shell;
using ::pith::testing::TempDir;

std::string Floats(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// One layer that adds nothing: the state is the token, and the head says what follows it.
void WriteChainModel(const std::string& dir) {
  constexpr int64_t kVocab = 259;
  constexpr int64_t kHidden = 288;
  std::ofstream(dir + "/tokenizer.json") << train::ByteTokenizerJson();
  const Json config = {{"model_type", "qwen2"},  {"hidden_size", kHidden},       {"intermediate_size", 32},
                       {"num_hidden_layers", 1}, {"num_attention_heads", 2},     {"num_key_value_heads", 1},
                       {"vocab_size", kVocab},   {"rms_norm_eps", 1e-6},         {"max_position_embeddings", 1024},
                       {"rope_theta", 10000.0},  {"tie_word_embeddings", false}, {"eos_token_id", train::kImEnd},
                       {"head_dim", 16}};
  std::ofstream(dir + "/config.json") << config;
  std::map<std::string, testing::TinyTensor> tensors;
  std::vector<float> embedding(kVocab * kHidden, 0.0F);
  std::vector<float> head(kVocab * kHidden, 0.0F);
  for (int64_t i = 0; i < kVocab; ++i) embedding[static_cast<size_t>(i * kHidden + i)] = 1;
  const auto follows = [&](int32_t token, int32_t next) { head[static_cast<size_t>(next * kHidden + token)] = 2; };
  const std::string chain = "\n\\boxed{";
  for (size_t i = 0; i + 1 < chain.size(); ++i) follows(chain[i], chain[i + 1]);
  for (const char digit : {'7', '8'}) {
    follows('{', digit);
    follows(digit, '}');
  }
  follows('}', train::kImEnd);
  const std::vector<float> ones(kHidden, 1.0F);
  tensors["model.embed_tokens.weight"] = {DType::kF32, {kVocab, kHidden}, Floats(embedding)};
  tensors["lm_head.weight"] = {DType::kF32, {kVocab, kHidden}, Floats(head)};
  for (const char* norm : {"model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"}) {
    tensors[std::string(norm) + ".weight"] = {DType::kF32, {kHidden}, Floats(ones)};
  }
  const std::string layer = "model.layers.0.";
  for (const auto& [name, out, in] :
       std::vector<std::tuple<std::string, int64_t, int64_t>>{{"self_attn.q_proj", 32, kHidden},
                                                              {"self_attn.k_proj", 16, kHidden},
                                                              {"self_attn.v_proj", 16, kHidden},
                                                              {"self_attn.o_proj", kHidden, 32},
                                                              {"mlp.gate_proj", 32, kHidden},
                                                              {"mlp.up_proj", 32, kHidden},
                                                              {"mlp.down_proj", kHidden, 32}}) {
    tensors[layer + name + ".weight"] = testing::Zeros({out, in});
    if (name.find("q_proj") != std::string::npos || name.find("k_proj") != std::string::npos ||
        name.find("v_proj") != std::string::npos) {
      tensors[layer + name + ".bias"] = testing::Zeros({out});
    }
  }
  testing::WriteSafetensors(dir + "/model.safetensors", tensors);
}

class DistillCliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteChainModel(model_dir_);
    std::ofstream problems(folder_ + "/sums.jsonl");
    std::ofstream chats(folder_ + "/chats.jsonl");
    for (int i = 0; i < 24; ++i) {
      const std::string n = std::to_string(i);
      problems << Json({{"id", "s" + n}, {"problem", "What is 7 + " + n + " - " + n + "?"}, {"answer", "7"}}).dump()
               << "\n";
      chats << Json({{"key", i}, {"prompt", "hello my friend" + std::string(static_cast<size_t>(i), 'o')}}).dump()
            << "\n";
    }
  }
  const std::string folder_ = TempDir();
  const std::string model_dir_ = TempDir();
  const std::string model_ = "-m " + model_dir_ + " -w stored --template chatml -t 1 ";
};

TEST_F(DistillCliTest, SamplesKilledAndGoneOnAndOtherStyles) {
  const std::string command = "$PITH distill " + model_ + "--data " + folder_ + "/sums.jsonl --samples 4 --budget 40 " +
                              "--top-p 1 --temp 1 --seed 3 ";
  const Outcome whole = Shell(command + "--json --style both --out " + folder_ + "/whole.jsonl 2>&1");
  ASSERT_EQ(whole.status, 0) << whole.out;
  EXPECT_EQ(whole.json["problems"], 24);
  EXPECT_EQ(whole.json["samples"], 96);
  EXPECT_EQ(whole.json["complete"], true);
  const auto right = whole.json["right"].get<int>();
  EXPECT_GT(right, 20);
  EXPECT_LT(right, 76);
  const auto rows = whole.json["rows"].get<int>();
  EXPECT_EQ(rows, whole.json["solved"]);  // all right samples say the same
  EXPECT_EQ(whole.json["styles"]["plain"]["rows"].get<int>() + whole.json["styles"]["recheck"]["rows"].get<int>(),
            rows);
  EXPECT_GT(whole.json["openings"]["wrong_attempt"].get<int>(), 0);
  EXPECT_EQ(ParseJson(ReadFile(folder_ + "/whole.jsonl.run/distill.json"), "distill.json")->at("rows"), rows);
  const std::string expected = ReadFile(folder_ + "/whole.jsonl");
  const auto first = ParseJson(expected.substr(0, expected.find('\n')), "row");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ((*first)["messages"][0]["role"], "user");
  EXPECT_TRUE(
      (*first)["messages"][1]["content"].get<std::string>().ends_with("\n</think>\n\nThe final answer is \\boxed{7}"));

  // Killed as soon as there is a sample; the same rows in the end, whatever decodes together.
  const std::string killed = folder_ + "/killed.jsonl";
  Shell(command + "--style both --out " + killed + " > /dev/null 2>&1 & pid=$!; while ! [ -s " + killed +
        ".run/generations.jsonl ]; do sleep 0.01; kill -0 $pid || break; done; kill -9 $pid; wait $pid");
  EXPECT_FALSE(fs::exists(killed));
  ExpectError(command + "--top-k 5 --style both --out " + killed, ErrorCode::kMismatch, "top_k");
  ASSERT_EQ(Shell(command + "--max-streams 5 --style both --out " + killed + " > /dev/null").status, 0);
  EXPECT_EQ(ReadFile(killed), expected);

  // Another style of the same samples samples nothing.
  const std::string samples = ReadFile(killed + ".run/generations.jsonl");
  const Outcome plain = Shell(
      command + "--json --style plain --row-prompt plain --row-budgets 16,64 --budget-template ' In {budget}.' --out " +
      killed + " 2>&1");
  ASSERT_EQ(plain.status, 0) << plain.out;
  EXPECT_EQ(plain.json["styles"]["recheck"]["rows"], 0);
  EXPECT_EQ(ReadFile(killed + ".run/generations.jsonl"), samples);
  const std::string text = ReadFile(killed);
  EXPECT_EQ(
      (*ParseJson(text.substr(0, text.find('\n')), "row"))["messages"][0]["content"].get<std::string>().substr(0, 13),
      "What is 7 + 0");
  EXPECT_NE(text.find("? In 64.\""), std::string::npos) << text.substr(0, 300);
}

TEST_F(DistillCliTest, Errors) {
  const std::string sums = folder_ + "/sums.jsonl ";
  const std::string out = " --out " + folder_ + "/x.jsonl";
  ExpectError("$PITH distill " + model_ + out, ErrorCode::kInvalidArgument, "--data");
  ExpectError("$PITH distill " + model_ + "--data gsm8k --data-folder " + folder_ + out, ErrorCode::kInvalidArgument,
              "test set");
  ExpectError("$PITH distill " + model_ + "--data nowhere --data-folder " + folder_ + out, ErrorCode::kNotFound,
              "nowhere");
  ExpectError("$PITH distill -m /no/such/model --data " + sums + out, ErrorCode::kNotFound, "/no/such/model");
  ExpectError("$PITH distill " + model_ + "--style long --data " + sums + out, ErrorCode::kInvalidArgument, "--style");
  ExpectError("$PITH distill " + model_ + "--temp 0 --data " + sums + out, ErrorCode::kInvalidArgument, "temperature");
  ExpectError("$PITH distill " + model_ + "--row-budgets 64 --data " + sums + out, ErrorCode::kInvalidArgument,
              "--budget-template");
  ExpectError("$PITH distill " + model_ + "--row-budgets 64 --budget-template 'no number' --data " + sums + out,
              ErrorCode::kMalformed, "{budget}");
  EXPECT_FALSE(fs::exists(folder_ + "/x.jsonl"));
  // A training set by its name.
  fs::create_directories(folder_ + "/train");
  fs::copy_file(folder_ + "/sums.jsonl", folder_ + "/train/train_gsm8k.jsonl");
  const Outcome named = Shell("PITH_DATA=" + folder_ + " $PITH distill " + model_ +
                              "--data gsm8k --limit 1 --budget 40 --json" + out + " 2> /dev/null");
  EXPECT_EQ(named.status, 0) << named.out;
  EXPECT_EQ(named.json["problems"], 1);
}

TEST_F(DistillCliTest, FeaturesToHeadsToAnswers) {
  const std::string reason = folder_ + "/reason";
  const Outcome features =
      Shell("$PITH features " + model_ + "--kind switcher --direct " + folder_ + "/chats.jsonl --reasoned " + folder_ +
            "/sums.jsonl --out " + folder_ + "/switcher --json 2>&1");
  ASSERT_EQ(features.status, 0) << features.out;
  EXPECT_EQ(features.json["states"], 48);
  EXPECT_EQ(features.json["positives"], 24);
  const std::string train =
      "$PITH train switcher --features " + folder_ + "/switcher --learning-rate 0.02 --batch-size 8 --out ";
  const Outcome trained = Shell(train + reason + " --json 2>&1");
  ASSERT_EQ(trained.status, 0) << trained.out;
  EXPECT_EQ(trained.json["out"], reason + "/switcher.safetensors");
  EXPECT_EQ(trained.json["test"]["auc"], 1.0);
  EXPECT_EQ(trained.json["hidden_size"], 288);
  EXPECT_EQ(trained.json["thresholds"].size(), 19U);
  // Twice the same; another name; and people get a table.
  const Outcome table = Shell(train + folder_ + "/other.safetensors.part 2>&1");
  ASSERT_EQ(table.status, 0) << table.out;
  EXPECT_NE(table.out.find("routed"), std::string::npos);
  EXPECT_EQ(ReadFile(folder_ + "/other.safetensors.part"), ReadFile(reason + "/switcher.safetensors"));
  for (const auto& [question, route] :
       {std::pair{"What is 7 + 40 - 40?", "reason"}, {"hello my friendooo", "direct"}}) {
    const Outcome answer = Shell("$PITH ask " + model_ + "--switcher " + reason +
                                 "/switcher.safetensors --budget 40 --json '" + question + "' 2>&1");
    ASSERT_EQ(answer.status, 0) << answer.out;
    EXPECT_EQ(answer.json["route"], route) << answer.out;
  }
  ExpectError("$PITH train verifier --features " + folder_ + "/switcher --out " + reason, ErrorCode::kMismatch,
              "switcher");

  // Labels by grading: the model is right about half of the time.
  const Outcome graded = Shell("$PITH features " + model_ + "--kind switcher --input " + folder_ +
                               "/sums.jsonl --label-by-grading --parallel 3 --temp 1 --top-p 1 -n 40 --out " + folder_ +
                               "/graded --json 2>&1");
  ASSERT_EQ(graded.status, 0) << graded.out;
  EXPECT_EQ(graded.json["states"], 24);
  EXPECT_GT(graded.json["positives"].get<int>(), 3);
  EXPECT_LT(graded.json["positives"].get<int>(), 21);

  const Outcome answers =
      Shell("$PITH features " + model_ + "--kind verifier --input " + folder_ +
            "/sums.jsonl --parallel 4 --temp 1 --top-p 1 -n 40 --verification-prompt 'Right?' --out " + folder_ +
            "/verifier --json 2>&1");
  ASSERT_EQ(answers.status, 0) << answers.out;
  EXPECT_EQ(answers.json["states"], 96);
  const Outcome verifier =
      Shell("$PITH train verifier --features " + folder_ + "/verifier --out " + reason + " --json 2>&1");
  ASSERT_EQ(verifier.status, 0) << verifier.out;
  EXPECT_TRUE(verifier.json["selection"].is_object());
  const Outcome vote = Shell("$PITH ask " + model_ + "--verifier " + reason +
                             "/verifier.safetensors --parallel 4 --temp 1 -n 40 --json 'What is 7 + 1 - 1?' 2>&1");
  ASSERT_EQ(vote.status, 0) << vote.out;
  EXPECT_TRUE(vote.json["streams"][0]["verifier_score"].is_number());
}

TEST_F(DistillCliTest, HeadErrors) {
  ExpectError("$PITH train switcher --out x", ErrorCode::kInvalidArgument, "--features");
  ExpectError("$PITH train switcher --features " + folder_ + " --out x", ErrorCode::kNotFound, "pith features");
  ExpectError("$PITH train", ErrorCode::kInvalidArgument, "subcommand");
  ExpectError("$PITH features " + model_ + "--kind switcher --out " + folder_ + "/f", ErrorCode::kInvalidArgument,
              "--input");
  ExpectError(
      "$PITH features " + model_ + "--kind verifier --direct " + folder_ + "/chats.jsonl --out " + folder_ + "/f",
      ErrorCode::kInvalidArgument, "switcher");
  ExpectError("$PITH features " + model_ + "--kind switcher --input " + folder_ + "/sums.jsonl --out " + folder_ + "/f",
              ErrorCode::kMalformed, "label");
  // One class only.
  ASSERT_EQ(Shell("$PITH features " + model_ + "--kind switcher --direct " + folder_ + "/chats.jsonl --out " + folder_ +
                  "/one > /dev/null 2>&1")
                .status,
            0);
  ExpectError("$PITH train switcher --features " + folder_ + "/one --out " + folder_ + "/r",
              ErrorCode::kInvalidArgument, "no rows with label 1");
}

}  // namespace
}  // namespace pith
