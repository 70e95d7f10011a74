// pith train as scripts see it: from a config and a tokenizer to a model, an adapter on it, resume, errors; in the edge
// build, what is missing.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "support/data.h"
#include "support/shell.h"
#include "train/byte_tokenizer.h"

namespace pith {
namespace {

using ::pith::testing::ExpectError;
using ::pith::testing::Outcome;

// Runs the program with these arguments and --json.
Outcome Pith(const std::string& arguments) { return testing::Shell("$PITH " + arguments + " --json"); }

#ifdef PITH_TRAIN

class TrainCli : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir();
    std::ofstream(dir_ + "/tokenizer.json") << train::ByteTokenizerJson();
    std::ofstream(dir_ + "/config.json") << train::ByteModelConfigJson();
    std::ofstream texts(dir_ + "/texts.jsonl");
    std::ofstream chats(dir_ + "/chats.jsonl");
    for (int i = 0; i < 30; ++i) {
      const std::string sum = std::to_string(i) + "+" + std::to_string(i) + "=" + std::to_string(2 * i);
      texts << Json({{"text", sum}}).dump() << "\n";
      chats << Json({{"prompt", "double " + std::to_string(i)}, {"response", sum}}).dump() << "\n";
    }
  }

  std::string Base(int max_length = 64) const {
    return "train sft --from-config " + dir_ + "/config.json --tokenizer " + dir_ + "/tokenizer.json --dataset " +
           dir_ + "/texts.jsonl --output-dir " + dir_ + "/base --max-steps 30 --learning-rate 1e-2 --max-length " +
           std::to_string(max_length);
  }

  std::string dir_;
};

TEST_F(TrainCli, ModelThenAdapterThenResume) {
  const Outcome base = Pith(Base());
  ASSERT_EQ(base.status, 0) << base.json;
  EXPECT_EQ(base.json["steps"], 30);
  EXPECT_EQ(base.json["dataset"]["samples"], 30);
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/base/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/base/tokenizer.json"));
  EXPECT_EQ(Pith("inspect " + dir_ + "/base").status, 0);

  // An adapter on its packed weights, cut and resumed, equals one that ran through.
  ::setenv("PITH_CACHE", (dir_ + "/cache").c_str(), 1);
  const auto adapter = [&](const std::string& out, const std::string& rate) {
    return "train sft -m " + dir_ + "/base --template chatml --dataset " + dir_ + "/chats.jsonl --output-dir " + dir_ +
           "/" + out +
           " --max-steps 6 --lora-r 4 --lora-dropout 0.1 --max-length 128 --save-total-limit 0 --save-steps 3 "
           "--learning-rate " +
           rate;
  };
  const Outcome whole = Pith(adapter("whole", "1e-3"));
  ASSERT_EQ(whole.status, 0) << whole.json;
  EXPECT_EQ(whole.json["base"], "packed");
  std::filesystem::create_directories(dir_ + "/cut");
  std::filesystem::copy(dir_ + "/whole/checkpoint-3", dir_ + "/cut/checkpoint-3");
  ASSERT_EQ(Pith(adapter("cut", "1e-3") + " --resume").status, 0);
  EXPECT_EQ(testing::ReadFile(dir_ + "/cut/adapter_model.safetensors"),
            testing::ReadFile(dir_ + "/whole/adapter_model.safetensors"));
  ExpectError(Pith(adapter("cut", "1e-5") + " --resume"), ErrorCode::kMismatch, "learning_rate");
  // An adapter on packed weights sees keys and values as the runtime's cache has them, unless told otherwise.
  ExpectError(Pith(adapter("cut", "1e-3") + " --resume --kv-type f32"), ErrorCode::kMismatch, "round_cache");
  ASSERT_EQ(Pith(adapter("floats", "1e-3") + " --kv-type f32").status, 0);
  EXPECT_NE(testing::ReadFile(dir_ + "/floats/adapter_model.safetensors"),
            testing::ReadFile(dir_ + "/whole/adapter_model.safetensors"));
  ExpectError(Pith(adapter("other", "1e-3") + " --kv-type bf16"), ErrorCode::kInvalidArgument, "--kv-type");
}

TEST_F(TrainCli, Grpo) {
  ASSERT_EQ(Pith(Base()).status, 0);
  ::setenv("PITH_CACHE", (dir_ + "/cache").c_str(), 1);
  std::ofstream problems(dir_ + "/problems.jsonl");
  for (int i = 0; i < 5; ++i) {
    problems << Json({{"id", "p" + std::to_string(i)}, {"problem", std::to_string(i)}, {"answer", "3"}}).dump() << "\n";
  }
  problems.close();
  const auto grpo = [&](const std::string& out, const std::string& more) {
    return "train grpo -m " + dir_ + "/base --template chatml --prompt plain --dataset " + dir_ +
           "/problems.jsonl --output-dir " + dir_ + "/" + out +
           " --num-generations 2 --per-device-train-batch-size 4 --gradient-accumulation-steps 1 --budgets 8,16 "
           "--max-steps 2 --keep-zero-std-groups " +
           more;
  };
  const Outcome first = Pith(grpo("first", "--lora-r 4"));
  ASSERT_EQ(first.status, 0) << first.json;
  EXPECT_EQ(first.json["steps"], 2);
  EXPECT_EQ(first.json["problems"], 5);
  EXPECT_EQ(first.json["base"], "packed");
  // The runtime finds the adapter with its texts.
  const Json texts = Json::parse(testing::ReadFile(dir_ + "/first/pith_reasoning.json"));
  EXPECT_NE(texts["budget_template"].get<std::string>().find("{budget}"), std::string::npos);
  EXPECT_EQ(texts["default_budget"], 16);
  EXPECT_EQ(Pith("ask -m " + dir_ + "/base --template chatml --adapter " + dir_ + "/first --budget 8 3").status, 0);
  // Another run from there: rank and texts are the adapter's.
  const Outcome second = Pith(grpo("second", "--adapter " + dir_ + "/first"));
  ASSERT_EQ(second.status, 0) << second.json;
  EXPECT_EQ(second.json["trained_parameters"], first.json["trained_parameters"]);
  EXPECT_EQ(testing::ReadFile(dir_ + "/second/pith_reasoning.json"),
            testing::ReadFile(dir_ + "/first/pith_reasoning.json"));
  ASSERT_EQ(Pith(grpo("second", "--resume --adapter " + dir_ + "/first")).status, 0);
  // Another start is another run.
  ExpectError(Pith(grpo("second", "--resume --lora-r 4 --seed 7")), ErrorCode::kMismatch, "start_adapter");
  ExpectError(Pith(grpo("third", "--lora-r 8 --adapter " + dir_ + "/first")), ErrorCode::kInvalidArgument, "--lora-r");
  ExpectError(Pith(grpo("third", "--budget-template no-place")), ErrorCode::kMalformed, "budget_template");
  ExpectError(Pith(grpo("third", "--num-generations 3")), ErrorCode::kInvalidArgument, "num-generations");
  ExpectError(Pith(grpo("third", "--max-completion-length 600")), ErrorCode::kInvalidArgument, "no prompt leaves room");
}

TEST_F(TrainCli, Errors) {
  ExpectError(Pith("train sft --dataset x --output-dir y"), ErrorCode::kInvalidArgument, "needs a model");
  ExpectError(Pith("train sft -m " + dir_ + "/nowhere --dataset x --output-dir y"), ErrorCode::kNotFound, "nowhere");
  ExpectError(Pith(Base() + " --device gpu"), ErrorCode::kInvalidArgument, "'gpu'");
  ExpectError(Pith(Base(2)), ErrorCode::kInvalidArgument, "nothing to learn");
  ExpectError(Pith(Base() + " --no-such-option"), ErrorCode::kInvalidArgument, "no-such-option");
  EXPECT_EQ(Pith("train").status, ExitCode(ErrorCode::kInvalidArgument));
}

#else

// The commands that need libtorch are handed over as they are, from wherever pith was called; all others are not.
TEST(TrainCli, HandsOverToTheTrainingProgram) {
  const std::string dir = testing::TempDir();
  std::filesystem::create_symlink(PITH_BINARY, dir + "/pith");
  std::ofstream(dir + "/pith-train") << "#!/bin/sh\necho \"got $*\"\nexit 9\n";
  std::filesystem::permissions(dir + "/pith-train", std::filesystem::perms::owner_all);
  for (const std::string line : {"train sft --dataset x", "train --json grpo", "quantize --help", "quantize a b"}) {
    for (const std::string& call : {dir + "/pith ", "cd " + dir + " && ./pith ", "PATH=" + dir + ":$PATH $PITH "}) {
      const Outcome outcome = testing::Shell(call + line);
      EXPECT_EQ(outcome.status, 9) << call << line << outcome.error;
      EXPECT_EQ(outcome.out, "got " + line + "\n");
    }
  }
  for (const std::string line : {"train switcher", "train", "--version", "tokenize quantize"}) {
    EXPECT_NE(testing::Shell(dir + "/pith " + line + " < /dev/null").status, 9) << line;
  }
}

TEST(TrainCli, TheEdgeBuildSaysWhatIsMissing) {
  ExpectError(Pith("train sft --dataset x"), ErrorCode::kUnsupported, "scripts/build.sh full");
  ExpectError(Pith("train grpo --dataset x"), ErrorCode::kUnsupported, "'train grpo' is in the program pith-train");
  ExpectError(Pith("quantize a b"), ErrorCode::kUnsupported, "scripts/build.sh full");
  ExpectError(Pith("train"), ErrorCode::kInvalidArgument, "subcommand");
}

#endif

}  // namespace
}  // namespace pith
