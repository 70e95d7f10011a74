// The C interface and pith-run on the whole job: route, reasoning, N streams, verifier, vote. The tokens must be those
// of the golden file on every machine, so that the aarch64 build under emulation is compared with x86-64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "deploy/golden_model.h"
#include "model/heads.h"
#include "pith/pith.h"
#include "support/data.h"
#include "support/shell.h"

namespace pith {
namespace {

using ::pith::testing::GoldenPath;
using ::pith::testing::Outcome;
using ::pith::testing::Shell;
using ::pith::testing::TempDir;

constexpr int32_t kStreams = 16;
constexpr const char* kQuestion = "the thing in the int 12";

// The golden model with a tokenizer that has every character of what is forced and asked.
std::string JobModel() {
  Json tokenizer = testing::SmallTokenizer();
  Json& vocab = tokenizer["model"]["vocab"];
  int id = 5 + static_cast<int>(vocab.size());
  for (const char c : std::string("<>/\\{}TabcdefghiklnorstvwxyuIA?.12")) {
    if (!vocab.contains(std::string(1, c))) vocab[std::string(1, c)] = id++;
  }
  vocab["\u010a"] = id;  // the line break
  tokenizer["added_tokens"].push_back({{"id", 4}, {"content", "</think>"}, {"special", false}});
  return testing::ModelWithTokenizer("qwen2_untied", tokenizer);
}

std::string JobAdapter() {
  const std::string dir = TempDir() + "/adapter";
  std::filesystem::copy(GoldenPath("models/qwen2_untied/adapters/all"), dir, std::filesystem::copy_options::recursive);
  const auto hidden = static_cast<size_t>(testing::Open(GoldenPath("models/qwen2_untied"))->config().hidden);
  SwitcherHead switcher;
  VerifierHead verifier;
  switcher.hidden = verifier.hidden = static_cast<int64_t>(hidden);
  switcher.inner = 1;
  switcher.pooling.chunk = 4;
  for (size_t i = 0; i < hidden; ++i) {
    switcher.w1.push_back(0.05F * static_cast<float>(i % 7) - 0.1F);
    verifier.w.push_back(0.2F * static_cast<float>(i % 9) - 0.7F);
  }
  switcher.b1 = {1.5F};
  switcher.w2 = {2.0F};
  verifier.prompt = "Is it right? Answer yes or no.";
  EXPECT_TRUE(WriteSwitcher(dir + "/" + kSwitcherFile, switcher).ok());
  EXPECT_TRUE(WriteVerifier(dir + "/" + kVerifierFile, verifier).ok());
  return dir;
}

class CapiJob : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("PITH_CACHE", (TempDir() + "/cache").c_str(), 1); }
  const std::string model_ = JobModel();
  const std::string adapter_ = JobAdapter();
};

Json Streams(const PithAnswer* answer) {
  Json streams = Json::array();
  for (int32_t i = 0; i < PithAnswerStreams(answer); ++i) {
    PithStream stream = {};
    stream.struct_size = sizeof(stream);
    EXPECT_EQ(PithAnswerStream(answer, i, &stream), PITH_OK);
    streams.push_back({{"tokens", std::vector<int32_t>(stream.tokens, stream.tokens + stream.token_count)},
                       {"text", stream.text},
                       {"reasoning", stream.reasoning},
                       {"finish_reason", stream.finish},
                       {"answer_forced", stream.answer_forced != 0},
                       {"candidate", stream.candidate}});
    EXPECT_EQ(std::isnan(stream.verifier_score), stream.final_answer == nullptr);
  }
  return streams;
}

TEST_F(CapiJob, RoutesReasonsVotesAndVerifies) {
  PithModelOptions options = {};
  options.struct_size = sizeof(options);
  options.weights = "w4g32";
  options.adapter = adapter_.c_str();
  options.threads = 1;
  PithModel* model = nullptr;
  ASSERT_EQ(PithLoad(model_.c_str(), &options, &model), PITH_OK) << PithLastError();
  PithAskOptions ask = {};
  ask.struct_size = sizeof(ask);
  ask.budget = 70;
  ask.parallel = kStreams;
  ask.temperature = 0.8;
  ask.seed = 5;
  ask.raw = 1;
  const PithMessage message = {"user", kQuestion};
  PithAnswer* answer = nullptr;
  ASSERT_EQ(PithAsk(model, &message, 1, &ask, &answer), PITH_OK) << PithLastError();
  const Json got = {{"score", PithAnswerSwitcherScore(answer)},
                    {"reasoned", PithAnswerReasoned(answer)},
                    {"chosen", PithAnswerChosen(answer)},
                    {"prompt_tokens", PithAnswerPromptTokens(answer)},
                    {"streams", Streams(answer)}};
  PithFreeModel(model);  // the answer outlives its model
  EXPECT_EQ(PithAnswerStreams(answer), kStreams);
  PithStream stream = {};
  EXPECT_EQ(PithAnswerStream(answer, 0, &stream), PITH_INVALID_ARGUMENT);  // a size that is no version's
  stream.struct_size = sizeof(stream);
  EXPECT_EQ(PithAnswerStream(answer, kStreams, &stream), PITH_INVALID_ARGUMENT);
  ASSERT_EQ(PithAnswerStream(answer, PithAnswerChosen(answer), &stream), PITH_OK);
  EXPECT_STREQ(stream.text, PithAnswerText(answer));
  EXPECT_STREQ(stream.reasoning, PithAnswerReasoning(answer));
  PithFreeAnswer(answer);

  const std::string golden = GoldenPath("capi/job.json");
  if (std::getenv("PITH_WRITE_GOLDEN") != nullptr) std::ofstream(golden) << got.dump() << "\n";
  Json want = *ReadJsonFile(golden);
  EXPECT_NEAR(got["score"].get<double>(), want["score"].get<double>(), 1e-5);
  want["score"] = got["score"];
  EXPECT_EQ(got, want);
  // The job is the whole one: thoughts, forced answers, a vote.
  EXPECT_EQ(want["reasoned"], 1);
  std::set<std::string> texts;
  int64_t forced = 0, voters = 0;
  for (const Json& one : want["streams"]) {
    forced += one["answer_forced"].get<bool>() ? 1 : 0;
    voters += one["candidate"].get<int>() >= 0 ? 1 : 0;
    EXPECT_LE(one["tokens"].size(), 70U);
    texts.insert(one["reasoning"].get<std::string>());
  }
  EXPECT_GT(forced, 8);
  EXPECT_GT(voters, 1);
  EXPECT_EQ(texts.size(), static_cast<size_t>(kStreams)) << "streams are the same";

  // The program in C says the same.
  const Outcome outcome = Shell("$PITH " + model_ + " '" + kQuestion + "' --weights w4g32 --adapter " + adapter_ +
                                " --budget 70 --parallel 16 --temp 0.8 --seed 5 --raw --threads 1 --json");
  ASSERT_EQ(outcome.status, 0) << outcome.error;
  ASSERT_TRUE(outcome.json.is_object()) << outcome.out;
  EXPECT_EQ(outcome.json["route"], "reason");
  EXPECT_EQ(outcome.json["chosen"], want["chosen"]);
  ASSERT_EQ(outcome.json["streams"].size(), static_cast<size_t>(kStreams));
  for (size_t i = 0; i < kStreams; ++i) EXPECT_EQ(outcome.json["streams"][i]["tokens"], want["streams"][i]["tokens"]);
}

TEST_F(CapiJob, StreamsTextAndStops) {
  PithModelOptions options = {};
  options.struct_size = sizeof(options);
  options.weights = "f32";
  options.threads = 1;
  PithModel* model = nullptr;
  ASSERT_EQ(PithLoad(model_.c_str(), &options, &model), PITH_OK) << PithLastError();
  struct Seen {
    std::string text, thoughts;
    size_t most = 0;  // stop at so many bytes; 0 = never
  };
  PithAskOptions ask = {};
  ask.struct_size = sizeof(ask);
  ask.raw = 1;
  ask.max_tokens = 40;
  ask.temperature = 0.9;
  ask.seed = 3;
  ask.on_text = [](void* user, int32_t stream, const char* text, size_t length, int32_t thought) {
    EXPECT_EQ(stream, 0);
    auto* seen = static_cast<Seen*>(user);
    (thought != 0 ? seen->thoughts : seen->text).append(text, length);
    const size_t bytes = seen->text.size() + seen->thoughts.size();
    return static_cast<int32_t>(seen->most > 0 && bytes >= seen->most);
  };
  const PithMessage message = {nullptr, kQuestion};
  for (const size_t most : {size_t{0}, size_t{5}}) {
    Seen seen;
    seen.most = most;
    ask.user = &seen;
    PithAnswer* answer = nullptr;
    ASSERT_EQ(PithAsk(model, &message, 1, &ask, &answer), PITH_OK) << PithLastError();
    EXPECT_EQ(seen.text, PithAnswerText(answer));
    EXPECT_EQ(seen.thoughts, PithAnswerReasoning(answer));
    PithStream stream = {};
    stream.struct_size = sizeof(stream);
    ASSERT_EQ(PithAnswerStream(answer, 0, &stream), PITH_OK);
    EXPECT_STREQ(stream.finish, most == 0 ? "length" : "cancelled");
    EXPECT_TRUE(most == 0 ? stream.token_count == 40 : stream.token_count < 40);
    EXPECT_TRUE(std::isnan(PithAnswerSwitcherScore(answer)));
    PithFreeAnswer(answer);
  }
  // Requests that can never be right.
  PithAnswer* answer = nullptr;
  ask.on_text = nullptr;
  const auto refuse = [&](auto change, PithStatus status = PITH_INVALID_ARGUMENT) {
    PithAskOptions wrong = ask;
    change(&wrong);
    EXPECT_EQ(PithAsk(model, &message, 1, &wrong, &answer), status) << PithLastError();
    EXPECT_EQ(answer, nullptr);
  };
  refuse([](PithAskOptions* o) { o->parallel = 257; });
  refuse([](PithAskOptions* o) { o->parallel = -1; });
  refuse([](PithAskOptions* o) { o->temperature = -1; });
  refuse([](PithAskOptions* o) { o->top_p = std::nan(""); });
  refuse([](PithAskOptions* o) { o->reason = 9; });
  refuse([](PithAskOptions* o) { o->reason = PITH_REASON_AUTO; });  // there is no switcher
  refuse([](PithAskOptions* o) { o->struct_size = 3; });
  refuse([](PithAskOptions* o) { o->raw = 0; }, PITH_UNSUPPORTED);  // the template is of no family
  EXPECT_EQ(PithAsk(model, nullptr, 1, &ask, &answer), PITH_INVALID_ARGUMENT);
  EXPECT_EQ(PithAsk(model, &message, 0, &ask, &answer), PITH_INVALID_ARGUMENT);
  const std::string twice(3000, 'a');
  const PithMessage too_long = {"user", twice.c_str()};
  EXPECT_EQ(PithAsk(model, &too_long, 1, &ask, &answer), PITH_CONTEXT_OVERFLOW) << PithLastError();
  PithFreeModel(model);
}

TEST_F(CapiJob, ProgramRefuses) {
  EXPECT_EQ(Shell("$PITH").status, 2);
  EXPECT_EQ(Shell("$PITH " + model_).status, 2);
  EXPECT_EQ(Shell("$PITH a b c").status, 2);
  EXPECT_EQ(Shell("$PITH a b --no-such-option 1").status, 2);
  EXPECT_EQ(Shell("$PITH a b --budget").status, 2);
  for (const char* bad : {"--budget x", "--budget -1", "--budget 99999999999", "--temp nan", "--reason maybe",
                          "--seed 1x", "--threads 2.5"}) {
    EXPECT_EQ(Shell(std::string("$PITH a b ") + bad).status, 2) << bad;
  }
  const Outcome missing = Shell("$PITH /no/such/model b");
  EXPECT_EQ(missing.status, 3);
  EXPECT_NE(missing.error.find("/no/such/model"), std::string::npos);
  EXPECT_EQ(Shell("$PITH --version").status, 0);
  EXPECT_EQ(Shell("$PITH --help | grep -c -- --adapter").out, "1\n");
}

}  // namespace
}  // namespace pith
