// pith quantize as scripts see it: training end to end on a text, a run that is killed and called again, what the
// report says, and errors of options.
#include <gtest/gtest.h>

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

class QuantizeCli : public ::testing::Test {
 protected:
  // A model of bytes that has learned some sums.
  void SetUp() override {
    dir_ = testing::TempDir();
    std::ofstream(dir_ + "/tokenizer.json") << train::ByteTokenizerJson();
    std::ofstream(dir_ + "/config.json") << train::ByteModelConfigJson();
    std::ofstream rows(dir_ + "/texts.jsonl");
    std::ofstream text(dir_ + "/text.txt");
    for (int i = 0; i < 150; ++i) {
      const std::string sum = std::to_string(i) + "+" + std::to_string(i) + "=" + std::to_string(2 * i);
      rows << Json({{"text", sum}}).dump() << "\n";
      text << sum << "\n";
    }
    rows.close();
    text.close();
    const Outcome trained =
        Pith("train sft --from-config " + dir_ + "/config.json --tokenizer " + dir_ + "/tokenizer.json --dataset " +
             dir_ + "/texts.jsonl --output-dir " + dir_ + "/base --max-steps 60 --learning-rate 1e-2 --max-length 128");
    ASSERT_EQ(trained.status, 0) << trained.out << trained.error;
  }

  std::string Quantize(const std::string& out, const std::string& more) const {
    return "quantize " + dir_ + "/base " + dir_ + "/" + out + " --text " + dir_ + "/text.txt -t 1 --window 32 " + more;
  }

  std::string dir_;
};

TEST_F(QuantizeCli, TrainsReportsAndRuns) {
  const Outcome run = Pith(Quantize("out", "--recipe fptquant --steps 20 --tune-steps 20 --iterations 20"));
  ASSERT_EQ(run.status, 0) << run.out << run.error;
  for (const char* stage : {"training", "tuning"}) {
    ASSERT_TRUE(run.json.contains(stage));
    EXPECT_EQ(run.json[stage]["steps"], 20);
    EXPECT_EQ(run.json[stage]["tokens"], 20 * 4 * 32);
    EXPECT_GT(run.json[stage]["teacher_perplexity"].get<double>(), 1.0);
  }
  EXPECT_LT(run.json["tuning"]["divergence_after"].get<double>(),
            run.json["tuning"]["divergence_before"].get<double>());
  EXPECT_LT(run.json["training"]["orthogonality_error"].get<double>(), 1e-5);
  const Json record = Json::parse(testing::ReadFile(dir_ + "/out/pith-quantize.json"));
  EXPECT_EQ(record["method"], "fptquant");
  EXPECT_EQ(record["training"]["steps"], 20);
  EXPECT_EQ(record["training"]["trained"]["rotation"], true);
  EXPECT_EQ(record["tuning"]["held_out_after"]["divergence"], run.json["tuning"]["divergence_after"]);
  EXPECT_GT(record["sqnr_db"]["model.layers.1.mlp.down_proj"].get<double>(), 5.0);
  EXPECT_EQ(record["layers"].size(), 2U);
  // Inputs of two layers and of the head, before and after; and the page that shows them.
  ASSERT_EQ(record["outliers"].size(), 9U) << record["outliers"];
  for (const Json& input : record["outliers"]) {
    EXPECT_GE(input["before"].get<double>(), 1.0);
    EXPECT_GE(input["after"].get<double>(), 1.0);
  }
  EXPECT_NE(record["outliers"][0]["before"], record["outliers"][0]["after"]);
  EXPECT_EQ(run.json["report"], dir_ + "/out/report.html");
  EXPECT_NE(testing::ReadFile(dir_ + "/out/report.html").find("\"outliers\""), std::string::npos);
  EXPECT_EQ(Pith("ppl -m " + dir_ + "/out --file " + dir_ + "/text.txt --ctx 32").status, 0);
}

TEST_F(QuantizeCli, AKilledRunGoesOn) {
  const std::string options = "--recipe hadamard+gptq --tune-steps 100 --save-steps 2";
  const Outcome whole = Pith(Quantize("whole", options));
  ASSERT_EQ(whole.status, 0) << whole.out << whole.error;
  EXPECT_EQ(whole.json["resumed"], false);
  // Killed as soon as there is a checkpoint.
  const std::string cut = dir_ + "/cut";
  const Outcome killed =
      testing::Shell("$PITH " + Quantize("cut", options) + " --json > " + dir_ + "/log & pid=$!; while ! ls " + cut +
                     ".work/tuning 2>/dev/null | grep -q '^checkpoint' && [ ! -d " + cut +
                     " ]; do sleep 0.01; done; kill -9 $pid; wait");
  ASSERT_EQ(killed.status, 0) << killed.error;
  ASSERT_FALSE(std::filesystem::exists(cut)) << "it was not killed in time";
  ExpectError(Pith(Quantize("cut", options + " --seed 5")), ErrorCode::kMismatch, "other options");
  const Outcome resumed = Pith(Quantize("cut", options));
  ASSERT_EQ(resumed.status, 0) << resumed.out << resumed.error;
  EXPECT_EQ(resumed.json["resumed"], true);
  EXPECT_EQ(testing::ReadFile(cut + "/model.safetensors"), testing::ReadFile(dir_ + "/whole/model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(cut + ".work"));
}

TEST_F(QuantizeCli, Errors) {
  ExpectError(Pith("quantize " + dir_ + "/base " + dir_ + "/a --steps 3"), ErrorCode::kInvalidArgument, "--text");
  ExpectError(Pith(Quantize("a", "--recipe magic")), ErrorCode::kInvalidArgument, "magic");
  ExpectError(Pith(Quantize("a", "--steps 1 --train rotation,banana")), ErrorCode::kInvalidArgument, "banana");
  ExpectError(Pith(Quantize("a", "--tune-steps 1 --tune weights")), ErrorCode::kInvalidArgument, "integers");
  ExpectError(Pith(Quantize("a", "--tune-steps -1")), ErrorCode::kInvalidArgument, "tune-steps");
  ExpectError(Pith(Quantize("a", "--recipe best --tune-steps 2 --held-out 1000")), ErrorCode::kInvalidArgument,
              "held out");
  ExpectError(Pith(Quantize("b", "--recipe best --tune-steps 2 --format w4g32m,head=w4")), ErrorCode::kUnsupported,
              "symmetric");
  ExpectError(Pith("quantize " + dir_ + "/base " + dir_ + "/base"), ErrorCode::kInvalidArgument, "there already");
}

}  // namespace
}  // namespace pith
