#include "reason/features.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "model/safetensors.h"
#include "support/data.h"
#include "support/scripted_engine.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using testing::Ids;
using testing::ReadFile;
using testing::ScriptedModel;
using testing::TempDir;

std::string WriteText(const std::string& text) {
  const std::string path = TempDir() + "/rows.jsonl";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// The state of a position: the length of what it has read, the last token, the first response token, the adapter.
struct Scripted : ScriptedModel {
  Scripted() {
    engine.state = [this](std::span<const KvOrigin> so_far) {
      ++states_read;
      size_t begin = so_far.size();
      while (begin > 0 && so_far[begin - 1].token != kPromptEnd) --begin;
      return std::vector<float>{static_cast<float>(so_far.size()), static_cast<float>(so_far.back().token),
                                begin < so_far.size() ? static_cast<float>(so_far[begin].token) : 0.0F,
                                so_far.back().adapter != 0 ? 1.0F : 0.0F};
    };
    responses = {"a \\boxed{1/2}", "b \\boxed{3}", "c \\boxed{0.5}"};
    options.render = [this](const std::string& problem) -> Result<std::vector<int32_t>> { return Prompt(problem); };
    options.answer.parallel = 4;
    options.answer.sampling.temperature = 1;
    options.answer.sampling.seed = 5;
    options.provenance = "scripted";
    options.shard_rows = 3;
    model.verification = Ids(*tokenizer, "\nright?");
  }
  Result<FeatureReport> Write(const std::vector<FeatureRow>& rows, const std::string& dir) {
    return WriteFeatures(model, rows, options, dir);
  }
  FeatureOptions options;
  int states_read = 0;
};

std::vector<FeatureRow> Rows(int count) {
  std::vector<FeatureRow> rows;
  for (int i = 0; i < count; ++i) {
    FeatureRow row;
    row.id = "q" + std::to_string(i);
    row.problem = "problem " + std::string(static_cast<size_t>(i), 'x');
    row.label = i % 3 == 0;
    row.answer = i % 2 == 0 ? "0.5" : "3";
    rows.push_back(row);
  }
  return rows;
}

std::shared_ptr<const SafetensorsFile> OpenShard(const std::string& dir, int shard) {
  const std::string name = dir + "/features-0000" + std::to_string(shard) + ".safetensors";
  auto file = SafetensorsFile::Open(name);
  EXPECT_TRUE(file.ok()) << file.error().message;
  return *file;
}

std::vector<float> Floats(const SafetensorsFile& file, const char* name) { return *ToFloats(*file.Find(name)); }

std::string AllBytes(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  std::string bytes;
  for (const auto& name : names) bytes += fs::path(name).filename().string() + ReadFile(name);
  return bytes;
}

TEST(FeaturesTest, SwitcherStatesAreThePooledPrompts) {
  Scripted scripted;
  scripted.options.kind = FeatureKind::kSwitcher;
  const std::string dir = TempDir() + "/new/folder";
  const auto report = scripted.Write(Rows(7), dir);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->states, 7);
  EXPECT_EQ(report->positives, 3);
  EXPECT_EQ(report->shards, 3);
  EXPECT_EQ(report->shards_found, 0);
  const auto second = OpenShard(dir, 1);
  EXPECT_EQ(Floats(*second, "labels"), (std::vector<float>{1, 0, 0}));
  EXPECT_EQ(second->Find("states")->shape, (std::vector<int64_t>{3, 4}));
  // Question 3: a prompt of 8 + 3 + 1 tokens, fewer than a chunk; the mean of 1..12 is 6.5.
  EXPECT_EQ(Floats(*second, "states")[0], 6.5F);
  EXPECT_EQ(OpenShard(dir, 2)->Find("states")->shape, (std::vector<int64_t>{1, 4}));
}

TEST(FeaturesTest, VerifierStatesOfGeneratedResponses) {
  Scripted scripted;
  scripted.options.kind = FeatureKind::kVerifier;
  const std::string dir = TempDir();
  const auto report = scripted.Write(Rows(4), dir);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->states, 16);
  const auto first = OpenShard(dir, 0);
  const auto states = Floats(*first, "states");
  const auto labels = Floats(*first, "labels");
  ASSERT_EQ(labels.size(), 12U);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(states[i * 4 + 1], '?');  // the last token of the verification prompt
    const bool says_half = states[i * 4 + 2] != 'b';
    const bool half_is_right = (i / 4) % 2 == 0;
    EXPECT_EQ(labels[i], says_half == half_is_right ? 1.0F : 0.0F) << i;
  }
}

TEST(FeaturesTest, VerifierStatesOfGivenResponses) {
  Scripted scripted;
  scripted.options.kind = FeatureKind::kVerifier;
  scripted.options.answer.mode = ReasonMode::kOn;
  auto rows = Rows(1);
  rows[0].responses = {
      {"<think>\n3?</think>\\boxed{1/2}", std::nullopt}, {"\\boxed{4}", std::nullopt}, {"junk", true}, {"", false}};
  const std::string dir = TempDir();
  const auto report = scripted.Write(rows, dir);
  ASSERT_TRUE(report.ok()) << report.error().message;
  const auto shard = OpenShard(dir, 0);
  EXPECT_EQ(Floats(*shard, "labels"), (std::vector<float>{1, 0, 1, 0}));
  const auto states = Floats(*shard, "states");
  const auto verification = scripted.model.verification.size();
  EXPECT_EQ(states[8], static_cast<float>(9 + 4 + verification));
  EXPECT_EQ(states[12], static_cast<float>(9 + verification));
}

TEST(FeaturesTest, SwitcherLabelsByGrading) {
  Scripted scripted;
  scripted.options.kind = FeatureKind::kSwitcher;
  scripted.options.answer.parallel = 12;
  auto rows = Rows(6);
  for (auto& row : rows) row.label.reset();
  rows[0].answer = "4";    // never said
  rows[1].answer = "0.5";  // by two of three responses
  rows[2].answer = "3";    // by one of three
  rows[3].label = true;    // known: nothing is generated
  rows[3].answer = "0.5";
  const std::string dir = TempDir();
  const auto report = scripted.Write(rows, dir);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->states, 6);
  EXPECT_EQ(Floats(*OpenShard(dir, 0), "labels"), (std::vector<float>{1, 0, 1}));
  EXPECT_EQ(Floats(*OpenShard(dir, 1), "labels")[0], 1.0F);
  // The states are those of the prompts, as without responses.
  Scripted plain;
  plain.options.kind = FeatureKind::kSwitcher;
  const std::string other = TempDir();
  ASSERT_TRUE(plain.Write(Rows(6), other).ok());
  EXPECT_EQ(Floats(*OpenShard(dir, 0), "states"), Floats(*OpenShard(other, 0), "states"));
  // How they were generated is part of what the shard depends on.
  scripted.options.answer.sampling.seed = 6;
  EXPECT_EQ(scripted.Write(rows, dir).error().code, ErrorCode::kMismatch);
}

TEST(FeaturesTest, PromptsAndVerificationAreNoted) {
  Scripted scripted;
  scripted.options.kind = FeatureKind::kVerifier;
  scripted.options.prompts = "boxed";
  scripted.options.verification_prompt = "right?";
  const std::string dir = TempDir();
  ASSERT_TRUE(scripted.Write(Rows(1), dir).ok());
  const std::string metadata = OpenShard(dir, 0)->metadata().at(kFeaturesMetadata);
  EXPECT_NE(metadata.find("\"verification_prompt\":\"right?\""), std::string::npos) << metadata;
  EXPECT_NE(metadata.find("\"prompts\":\"boxed\""), std::string::npos) << metadata;
  scripted.options.prompts = "plain";
  EXPECT_EQ(scripted.Write(Rows(1), dir).error().code, ErrorCode::kMismatch);
}

TEST(FeaturesTest, AKilledRunGoesOn) {
  for (const FeatureKind kind : {FeatureKind::kSwitcher, FeatureKind::kVerifier}) {
    Scripted scripted;
    scripted.options.kind = kind;
    const std::string whole = TempDir();
    ASSERT_TRUE(scripted.Write(Rows(10), whole).ok());
    const std::string dir = TempDir();
    std::atomic<bool> cancel{false};
    scripted.options.cancel = &cancel;
    scripted.options.on_progress = [&](int64_t done, int64_t) { cancel = done >= 6; };
    const auto stopped = scripted.Write(Rows(10), dir);
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
    EXPECT_TRUE(fs::exists(dir + "/features-00001.safetensors"));
    EXPECT_FALSE(fs::exists(dir + "/features-00002.safetensors"));
    scripted.options.on_progress = nullptr;
    cancel = false;
    scripted.states_read = 0;
    const auto resumed = scripted.Write(Rows(10), dir);
    ASSERT_TRUE(resumed.ok());
    EXPECT_EQ(resumed->shards_found, 2);
    EXPECT_EQ(AllBytes(dir), AllBytes(whole));
    scripted.states_read = 0;
    const auto again = scripted.Write(Rows(10), dir);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->shards_found, 4);
    EXPECT_EQ(again->states, resumed->states);
    EXPECT_EQ(again->positives, resumed->positives);
    EXPECT_EQ(scripted.states_read, 0);  // nothing was computed
  }
}

TEST(FeaturesTest, AnotherRunsShardsAreRefused) {
  Scripted scripted;
  scripted.options.kind = FeatureKind::kSwitcher;
  const std::string dir = TempDir();
  ASSERT_TRUE(scripted.Write(Rows(3), dir).ok());
  const auto refused = [&](const std::vector<FeatureRow>& rows) {
    const auto report = scripted.Write(rows, dir);
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error().code, ErrorCode::kMismatch) << report.error().message;
  };
  auto rows = Rows(3);
  rows[1].label = !*rows[1].label;
  refused(rows);
  refused(Rows(2));
  scripted.options.provenance = "another";
  refused(Rows(3));
  scripted.options.provenance = "scripted";
  EXPECT_TRUE(scripted.Write(Rows(3), dir).ok());
  EXPECT_TRUE(scripted.Write(Rows(5), dir).ok());  // more questions after the same first ones
}

TEST(FeaturesTest, AFaultNamesTheQuestion) {
  for (const bool given : {false, true}) {
    Scripted scripted;
    scripted.options.kind = FeatureKind::kVerifier;
    auto rows = Rows(6);
    if (given) rows[4].responses = {{"\\boxed{4}", std::nullopt}};
    // The prompt of question 4 has 8 + 4 + 1 tokens.
    scripted.engine.fails = [](const StepItem& item) { return item.tokens.size() == 13; };
    scripted.options.max_streams = 4;
    rows.erase(rows.begin() + 1, rows.begin() + 4);
    const auto report = scripted.Write(rows, TempDir());
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error().code, ErrorCode::kNumeric);
    EXPECT_NE(report.error().message.find("question 'q4'"), std::string::npos) << report.error().message;
  }
}

// Prompts of 9 to 14 tokens in a context of 12: the last two are left out, said so, and not tried again.
TEST(FeaturesTest, AQuestionThatDoesNotFitIsLeftOut) {
  for (const bool found : {false, true}) {
    Scripted scripted;
    scripted.options.kind = FeatureKind::kSwitcher;
    scripted.engine.context_limit = 12;
    const std::string dir = TempDir();
    auto report = scripted.Write(Rows(6), dir);
    ASSERT_TRUE(report.ok()) << report.error().message;
    scripted.states_read = 0;
    if (found) report = scripted.Write(Rows(6), dir);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->shards_found, found ? 2 : 0);
    EXPECT_EQ(report->questions, 6);
    EXPECT_EQ(report->states, 4);
    EXPECT_EQ(report->too_long_questions, (std::vector<std::string>{"q4", "q5"}));
    EXPECT_EQ(report->too_long_responses, 0);
    EXPECT_EQ(Floats(*OpenShard(dir, 1), "labels"), (std::vector<float>{1}));
    if (found) {
      EXPECT_EQ(scripted.states_read, 0);
    }
  }
  // Shards in which all fits are as they were before anything could be left out.
  Scripted scripted;
  scripted.options.kind = FeatureKind::kSwitcher;
  const std::string dir = TempDir();
  ASSERT_TRUE(scripted.Write(Rows(3), dir).ok());
  EXPECT_EQ(OpenShard(dir, 0)->metadata().count(kFeaturesLeftOut), 0U);
}

TEST(FeaturesTest, AShardOfWhichNothingFits) {
  Scripted scripted;
  scripted.options.kind = FeatureKind::kSwitcher;
  scripted.engine.context_limit = 11;
  const std::string dir = TempDir();
  for (const int64_t found : {0, 2}) {
    const auto report = scripted.Write(Rows(6), dir);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->shards_found, found);
    EXPECT_EQ(report->states, 3);
    EXPECT_EQ(report->too_long_questions.size(), 3U);
  }
  EXPECT_EQ(OpenShard(dir, 1)->Find("states")->shape, (std::vector<int64_t>{0, 4}));
}

// Of given responses only those that do not fit, with the verification, are left out.
TEST(FeaturesTest, AGivenResponseThatDoesNotFitIsLeftOut) {
  Scripted scripted;
  scripted.options.kind = FeatureKind::kVerifier;
  scripted.engine.context_limit = 40;
  auto rows = Rows(4);
  const std::string some(15, 'x');
  const std::string many(100, 'x');
  rows[0].responses = {{some, true}, {many, true}, {some, false}};
  rows[1].responses = {{many, true}, {many, false}};
  rows[2].problem = many;
  rows[2].responses = {{some, true}};
  rows[3].responses = {{some, true}};
  const std::string dir = TempDir();
  for (const int64_t found : {0, 2}) {
    const auto report = scripted.Write(rows, dir);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->shards_found, found);
    EXPECT_EQ(report->states, 3);
    EXPECT_EQ(report->too_long_questions, (std::vector<std::string>{"q1", "q2"}));
    EXPECT_EQ(report->too_long_responses, 1);
  }
  EXPECT_EQ(Floats(*OpenShard(dir, 0), "labels"), (std::vector<float>{1, 0}));
}

// Where the verification does not fit behind a prompt, no response of it has a state.
TEST(FeaturesTest, GeneratedResponsesWithoutRoomForTheVerification) {
  Scripted scripted;
  scripted.options.kind = FeatureKind::kVerifier;
  const auto verification = static_cast<int64_t>(scripted.model.verification.size());
  scripted.engine.context_limit = 60;
  auto rows = Rows(3);
  rows[1].problem = std::string(static_cast<size_t>(60 - verification), 'x');
  const auto report = scripted.Write(rows, TempDir());
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->states, 8);
  EXPECT_EQ(report->too_long_questions, (std::vector<std::string>{"q1"}));
  EXPECT_EQ(report->too_long_responses, 0);
}

TEST(FeaturesTest, GivenResponsesStopWhenCancelled) {
  Scripted scripted;
  scripted.options.kind = FeatureKind::kVerifier;
  auto rows = Rows(3);
  for (auto& row : rows) row.responses.assign(50, {"\\boxed{4}", std::nullopt});
  std::atomic<bool> cancel{false};
  scripted.options.cancel = &cancel;
  const auto state = scripted.engine.state;
  scripted.engine.state = [&](std::span<const KvOrigin> so_far) {
    cancel = scripted.states_read >= 10;
    return state(so_far);
  };
  const std::string dir = TempDir();
  const auto report = scripted.Write(rows, dir);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(report.error().message.find("question"), std::string::npos) << report.error().message;
  EXPECT_LE(scripted.states_read, 12);
  EXPECT_FALSE(fs::exists(dir + "/features-00000.safetensors"));
}

TEST(FeatureRowsTest, Fields) {
  const std::string path = WriteText(
      "{\"id\":\"a\",\"problem\":\"p\",\"label\":1,\"other\":[]}\n\n{\"id\":7,\"prompt\":\"q\",\"label\":false}\r\n"
      "{\"problem\":\"r\",\"label\":true,\"answer\":\"4\",\"responses\":[\"x\",{\"text\":\"y\",\"label\":0}]}");
  const auto rows = ReadFeatureRows(path, {.kind = FeatureKind::kSwitcher});
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  ASSERT_EQ(rows->size(), 3U);
  EXPECT_EQ((*rows)[0].id, "a");
  EXPECT_EQ((*rows)[1].id, "7");
  EXPECT_EQ((*rows)[1].problem, "q");
  EXPECT_FALSE(*(*rows)[1].label);
  EXPECT_EQ((*rows)[2].id, "4");
  ASSERT_EQ((*rows)[2].responses.size(), 2U);
  EXPECT_FALSE((*rows)[2].responses[0].label);
  EXPECT_FALSE(*(*rows)[2].responses[1].label);
}

TEST(FeatureRowsTest, FilesOfOneLabelAndOtherForms) {
  const std::string path = WriteText(
      "{\"instruction\":\"Sort them.\",\"instances\":[{\"input\":\"b a\",\"output\":\"a b\"}]}\n"
      "{\"instruction\":\"Say hello.\",\"instances\":[{\"input\":\"\"}],\"id\":\"x\"}\n"
      "{\"turns\":[\"first\",\"second\"]}\n"
      "{\"prompt\":\"p\",\"label\":0}\n");
  const auto rows = ReadFeatureRows(path, {.kind = FeatureKind::kSwitcher, .label = true, .id_prefix = "f/"});
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  EXPECT_EQ((*rows)[0].problem, "Sort them.\n\nb a");
  EXPECT_EQ((*rows)[0].id, "f/1");
  EXPECT_EQ((*rows)[1].problem, "Say hello.");
  EXPECT_EQ((*rows)[1].id, "f/x");
  EXPECT_EQ((*rows)[2].problem, "first");
  for (const auto& row : *rows) EXPECT_EQ(row.label, true);
  const auto two = ReadFeatureRows(path, {.kind = FeatureKind::kSwitcher, .label = false, .limit = 2});
  ASSERT_TRUE(two.ok());
  ASSERT_EQ(two->size(), 2U);
  EXPECT_EQ((*two)[1].problem, "first");
  for (const char* bad : {R"({"turns":[]})", R"({"turns":"x"})", R"({"instruction":1})"}) {
    EXPECT_EQ(ReadFeatureRows(WriteText(bad), {.kind = FeatureKind::kSwitcher, .label = true}).error().code,
              ErrorCode::kMalformed)
        << bad;
  }
}

TEST(FeatureRowsTest, MalformedLinesAreNamed) {
  const std::tuple<const char*, FeatureKind, const char*> cases[] = {
      {"", FeatureKind::kSwitcher, "no questions"},
      {"{", FeatureKind::kSwitcher, "line 1"},
      {"\n[]", FeatureKind::kSwitcher, "line 2"},
      {R"({"id":1.5,"problem":"p","label":1})", FeatureKind::kSwitcher, "id"},
      {R"({"id":1,"label":1})", FeatureKind::kSwitcher, "problem"},
      {R"({"problem":7,"label":1})", FeatureKind::kSwitcher, "problem"},
      {R"({"problem":"p","label":2})", FeatureKind::kSwitcher, "label"},
      {R"({"problem":"p"})", FeatureKind::kSwitcher, "label"},
      {R"({"problem":"p","label":1})", FeatureKind::kVerifier, "answer"},
      {R"({"problem":"p","answer":4})", FeatureKind::kVerifier, "answer"},
      {R"({"problem":"p","responses":["x"]})", FeatureKind::kVerifier, "answer"},
      {R"({"problem":"p","responses":"x"})", FeatureKind::kVerifier, "responses"},
      {R"({"problem":"p","responses":[1]})", FeatureKind::kVerifier, "response"},
      {R"({"problem":"p","responses":[{"label":1}]})", FeatureKind::kVerifier, "text"},
      {"{\"id\":\"1\",\"problem\":\"p\",\"label\":1}\n{\"id\":1,\"problem\":\"q\",\"label\":1}", FeatureKind::kSwitcher,
       "twice"},
  };
  for (const auto& [text, kind, word] : cases) {
    const auto rows = ReadFeatureRows(WriteText(text), {.kind = kind});
    ASSERT_FALSE(rows.ok()) << text;
    EXPECT_EQ(rows.error().code, ErrorCode::kMalformed);
    EXPECT_NE(rows.error().message.find(word), std::string::npos) << rows.error().message;
  }
  const auto ungraded =
      ReadFeatureRows(WriteText(R"({"problem":"p"})"), {.kind = FeatureKind::kSwitcher, .grade_labels = true});
  ASSERT_FALSE(ungraded.ok());
  EXPECT_NE(ungraded.error().message.find("answer"), std::string::npos);
  EXPECT_EQ(ReadFeatureRows("/no/such/file", {.kind = FeatureKind::kSwitcher}).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace pith
