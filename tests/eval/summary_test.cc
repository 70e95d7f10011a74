// Summaries of generations that are written down here, against numbers worked out by hand.
#include "eval/summary.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "eval/settings.h"

namespace pith {
namespace {

struct Row {
  const char* id;
  int64_t repeat;
  int64_t stream;
  const char* answer;  // null = none
  bool right;
  int64_t tokens;
  double verifier;  // < 0 = none
};

EvalSettings Settings(int64_t repeats, int64_t parallel) {
  EvalSettings settings;
  settings.suite = "hand";
  settings.problems = 2;
  settings.caps = {100};
  settings.repeats = repeats;
  settings.parallel = parallel;
  return settings;
}

EvalRecord Record(const EvalSettings& settings, const std::vector<Row>& rows, int64_t streams) {
  EvalRecord record;
  record.settings_json = SettingsJson(settings);
  record.problems = {{"p", "?", "1"}, {"q", "?", "2"}};
  for (const Row& row : rows) {
    Generation generation;
    generation.key = {row.id, row.repeat, 100, settings.modes.front()};
    generation.stream = row.stream;
    generation.streams = streams;
    if (row.answer != nullptr) {
      generation.answer = ExtractedAnswer{row.answer, AnswerSource::kBox};
      generation.verdict = row.right ? Verdict::kEqual : Verdict::kDifferent;
    }
    generation.tokens = row.tokens;
    if (row.verifier >= 0) generation.verifier_score = row.verifier;
    record.generations.push_back(generation);
  }
  return record;
}

Json Summarize(const EvalRecord& record) {
  const auto text = SummaryJson(record);
  EXPECT_TRUE(text.ok()) << text.error().message;
  return *ParseJson(*text, "summary");
}

double Value(const Json& share) { return share["value"].get<double>(); }

TEST(SummaryTest, OneStreamEach) {
  EvalRecord record = Record(Settings(1, 1), {{"p", 0, 0, "1", true, 10, -1}, {"q", 0, 0, "7", false, 31, -1}}, 1);
  record.generations[1].truncated = true;
  record.generations[1].forced = true;
  record.generations[1].finish = FinishReason::kLength;
  record.generations[1].reasoning_tokens = 20;
  record.generations[1].prompt_tokens = 6;
  const Json summary = Summarize(record);
  EXPECT_TRUE(summary["complete"].get<bool>());
  ASSERT_EQ(summary["results"].size(), 1U);
  const Json& result = summary["results"][0];
  EXPECT_EQ(result["mode"], "off");
  EXPECT_EQ(result["cap"], 100);
  EXPECT_EQ(result["problems"], 2);
  EXPECT_EQ(Value(result["accuracy"]), 0.5);
  // Wilson for 1 of 2: (0.5 + z^2/4 -+ z sqrt(1/8 + z^2/16)) / (1 + z^2/2).
  EXPECT_EQ(result["accuracy"]["interval"], "wilson95");
  EXPECT_NEAR(result["accuracy"]["low"].get<double>(), 0.094531, 1e-6);
  EXPECT_NEAR(result["accuracy"]["high"].get<double>(), 0.905469, 1e-6);
  EXPECT_TRUE(result["weighted"].is_null());
  EXPECT_EQ(result["pass_at_k"], Json::parse(R"([{"k":1,"value":0.5}])"));
  EXPECT_EQ(result["tokens"]["mean"], 20.5);
  EXPECT_EQ(result["tokens"]["median"], 20.5);
  EXPECT_EQ(result["tokens"]["max"], 31);
  EXPECT_EQ(result["tokens"]["total"], 41);
  EXPECT_EQ(result["tokens"]["reasoning_mean"], 10.0);
  EXPECT_EQ(result["tokens"]["answer_mean"], 10.5);
  EXPECT_EQ(result["tokens"]["prompt_mean"], 3.0);
  EXPECT_EQ(result["truncated_share"], 0.5);
  EXPECT_EQ(result["truncated_correct_share"], 0.0);
  EXPECT_EQ(result["forced_share"], 0.5);
  EXPECT_EQ(result["no_answer_share"], 0.0);
  EXPECT_EQ(result["finish"], Json::parse(R"({"stop":1,"length":1})"));
  // Bins of one token: at 10 a right answer, at 31 a wrong one.
  const Json& histogram = result["length_histogram"];
  EXPECT_EQ(histogram["bin"], 1);
  EXPECT_EQ(histogram["right"][10], 1);
  EXPECT_EQ(histogram["wrong"][31], 1);
  EXPECT_EQ(histogram["right"].size(), 32U);
  EXPECT_TRUE(summary["vote_curves"]["curves"].empty());
  EXPECT_TRUE(summary["threshold_sweeps"].empty());
}

// p: answers 1, 1, 3 (right, right, wrong) and 3, 3, none; q: 5, 2, 2.0 and 2, 5, 5 with the weights below. As in a
// run: a stream without an answer is not scored.
std::vector<Row> TwoRepeats() {
  return {{"p", 0, 0, "1", true, 10, 0.2},  {"p", 0, 1, "1", true, 20, 0.2},  {"p", 0, 2, "3", false, 30, 0.9},
          {"p", 1, 0, "3", false, 10, 0.9}, {"p", 1, 1, "3", false, 10, 0.9}, {"p", 1, 2, nullptr, false, 100, -1},
          {"q", 0, 0, "5", false, 40, 0.3}, {"q", 0, 1, "2", true, 40, 0.5},  {"q", 0, 2, "2.0", true, 40, 0.5},
          {"q", 1, 0, "2", true, 60, 0.9},  {"q", 1, 1, "5", false, 60, 0.3}, {"q", 1, 2, "5", false, 60, 0.3}};
}

TEST(SummaryTest, VotesByHand) {
  const Json summary = Summarize(Record(Settings(2, 3), TwoRepeats(), 3));
  const Json& result = summary["results"][0];
  EXPECT_EQ(result["questions"], 4);
  EXPECT_EQ(result["streams"], 12);
  // One stream: p (2/3 + 0) / 2 = 1/3; q (2/3 + 1/3) / 2 = 1/2.
  EXPECT_NEAR(Value(result["accuracy"]), (1.0 / 3 + 0.5) / 2, 1e-12);
  EXPECT_EQ(result["accuracy"]["interval"], "bootstrap95");
  // Majority: p wins "1" once (right) and "3" once; q wins "2" (2 and 2.0 are one) once and "5" once.
  EXPECT_EQ(Value(result["majority"]), 0.5);
  // Weighted: p 0.4 against 0.9: wrong, then wrong; q 1.0 against 0.3: right, then 0.9 against 0.6: right.
  EXPECT_EQ(Value(result["weighted"]), 0.5);
  // pass@k of p: 2 right of 6; of q: 3 of 6. k = 2: 1 - C(4,2)/C(6,2) = 0.6; 1 - C(3,2)/C(6,2) = 0.8.
  // k = 4: 1 - C(4,4)/C(6,4) = 14/15; 1.
  ASSERT_EQ(result["pass_at_k"].size(), 3U);
  EXPECT_NEAR(result["pass_at_k"][0]["value"].get<double>(), 5.0 / 12, 1e-12);
  EXPECT_NEAR(result["pass_at_k"][1]["value"].get<double>(), 0.7, 1e-12);
  EXPECT_EQ(result["pass_at_k"][2]["k"], 4);
  EXPECT_NEAR(result["pass_at_k"][2]["value"].get<double>(), (14.0 / 15 + 1) / 2, 1e-12);
  EXPECT_NEAR(result["no_answer_share"].get<double>(), 1.0 / 12, 1e-12);
  EXPECT_EQ(result["tokens"]["median"], 40.0);
  EXPECT_EQ(result["tokens"]["per_question_mean"], 120.0);
  // The curve pools the six streams of both repeats; with all of them p says "3" (3 of 5), q a tie of 2 and 5 (3 : 3,
  // the same largest weight, the same length): the first in byte order is "2".
  const Json& curve = summary["vote_curves"]["curves"][0];
  ASSERT_EQ(curve["points"].size(), 6U);
  EXPECT_EQ(curve["points"][5]["n"], 6);
  EXPECT_EQ(curve["points"][5]["majority"]["mean"], 0.5);
  EXPECT_EQ(curve["points"][5]["majority"]["sd"], 0.0);
  EXPECT_EQ(curve["points"][5]["weighted"]["mean"], 0.5);
}

TEST(SummaryTest, WithoutScoresThereIsNoWeightedVote) {
  auto rows = TwoRepeats();
  for (Row& row : rows) row.verifier = -1;
  const Json summary = Summarize(Record(Settings(2, 3), rows, 3));
  EXPECT_TRUE(summary["results"][0]["weighted"].is_null());
  EXPECT_EQ(summary["results"][0]["unscored_streams"], 0);
  EXPECT_TRUE(summary["vote_curves"]["curves"][0]["points"][0]["weighted"].is_null());
}

// An answer beside scored ones that has no score itself (a later grader found it) has no say; where no stream of a
// question is scored (the verification does not fit behind its prompt) the vote is plain. As `ask` would vote.
TEST(SummaryTest, AnswersWithoutAScore) {
  auto rows = TwoRepeats();
  rows[2].verifier = -1;  // p's "3" in repeat 0, against 0.4 for "1"
  const Json summary = Summarize(Record(Settings(2, 3), rows, 3));
  // p: right, wrong; q: right, right.
  EXPECT_EQ(Value(summary["results"][0]["weighted"]), 0.75);
  EXPECT_EQ(summary["results"][0]["unscored_streams"], 1);
  for (size_t i : {0, 1}) rows[i].verifier = -1;
  const Json plain = Summarize(Record(Settings(2, 3), rows, 3));
  // p, repeat 0, by two ballots to one.
  EXPECT_EQ(Value(plain["results"][0]["weighted"]), 0.75);
  EXPECT_EQ(plain["results"][0]["unscored_streams"], 3);
}

// A question that could not be run is one recorded stream: wrong everywhere, and nothing else is lost by it.
TEST(SummaryTest, AQuestionThatDoesNotFitIsWrong) {
  EvalSettings settings = Settings(2, 3);
  settings.problems = 3;
  EvalRecord record = Record(settings, TwoRepeats(), 3);
  const Json without = Summarize(record);
  record.problems.push_back({"r", "?", "3"});
  for (const int64_t repeat : {0, 1}) {
    Generation generation;
    generation.key = {"r", repeat, 100, ReasonMode::kOff};
    generation.finish = FinishReason::kContext;
    generation.error = Error{ErrorCode::kContextOverflow, "too long"};
    record.generations.push_back(generation);
  }
  const Json summary = Summarize(record);
  const Json& result = summary["results"][0];
  const Json& before = without["results"][0];
  EXPECT_EQ(result["errors"], 2);
  EXPECT_EQ(result["questions"], 6);
  EXPECT_TRUE(summary["complete"].get<bool>());
  for (const char* field : {"accuracy", "majority", "weighted"}) {
    ASSERT_FALSE(result[field].is_null()) << field;
    EXPECT_NEAR(Value(result[field]), Value(before[field]) * 2 / 3, 1e-12) << field;
  }
  ASSERT_EQ(result["pass_at_k"].size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(Value(result["pass_at_k"][i]), Value(before["pass_at_k"][i]) * 2 / 3, 1e-12) << i;
  }
  ASSERT_EQ(summary["vote_curves"]["curves"].size(), 1U);
  const Json& points = summary["vote_curves"]["curves"][0]["points"];
  const Json& points_before = without["vote_curves"]["curves"][0]["points"];
  ASSERT_EQ(points.size(), 6U);
  for (size_t i = 0; i < 6; ++i) {
    for (const char* vote : {"majority", "weighted"}) {
      for (const char* field : {"mean", "sd"}) {
        EXPECT_NEAR(points[i][vote][field].get<double>(), points_before[i][vote][field].get<double>() * 2 / 3, 1e-12);
      }
    }
  }
}

TEST(SummaryTest, NothingFits) {
  EvalRecord record =
      Record(Settings(1, 4), {{"p", 0, 0, nullptr, false, 0, -1}, {"q", 0, 0, nullptr, false, 0, -1}}, 1);
  for (Generation& generation : record.generations) generation.error = Error{ErrorCode::kContextOverflow, "too long"};
  const Json summary = Summarize(record);
  const Json& result = summary["results"][0];
  EXPECT_EQ(result["errors"], 2);
  EXPECT_EQ(Value(result["accuracy"]), 0.0);
  EXPECT_EQ(result["pass_at_k"], Json::parse(R"([{"k":1,"value":0.0}])"));
  EXPECT_TRUE(summary["vote_curves"]["curves"].empty());
}

TEST(SummaryTest, OrderOfGenerationsDoesNotMatter) {
  EvalRecord record = Record(Settings(2, 3), TwoRepeats(), 3);
  const std::string expected = *SummaryJson(record);
  for (int i = 0; i < 20; ++i) {
    std::rotate(record.generations.begin(), record.generations.begin() + 5, record.generations.end());
    std::swap(record.generations[static_cast<size_t>(i % 12)], record.generations[3]);
    EXPECT_EQ(*SummaryJson(record), expected);
  }
}

TEST(SummaryTest, IncompleteAndForeignGenerations) {
  EvalRecord record = Record(Settings(2, 3), TwoRepeats(), 3);
  record.generations.resize(6);
  Json summary = Summarize(record);
  EXPECT_FALSE(summary["complete"].get<bool>());
  EXPECT_EQ(summary["questions"]["done"], 2);
  EXPECT_EQ(summary["questions"]["total"], 4);
  EXPECT_EQ(summary["results"][0]["problems"], 1);
  record.generations.clear();
  summary = Summarize(record);
  EXPECT_TRUE(summary["results"].empty());
  record.settings_json = "{}";
  EXPECT_EQ(SummaryJson(record).error().code, ErrorCode::kMalformed);
  record.settings_json = R"({"reason":["maybe"],"budgets":[1],"repeats":1})";
  EXPECT_FALSE(SummaryJson(record).ok());
}

TEST(SummaryTest, TooHardIsApartFromWrong) {
  EvalRecord record = Record(Settings(1, 1), {{"p", 0, 0, "1", true, 10, -1}, {"q", 0, 0, "7", false, 31, -1}}, 1);
  record.generations[1].verdict = Verdict::kTooHard;
  const Json result = Summarize(record)["results"][0];
  EXPECT_EQ(result["too_hard_share"], 0.5);
  EXPECT_EQ(Value(result["accuracy"]), 0.5);
}

TEST(SummaryTest, TimesOfSessionsAddUp) {
  EvalRecord record = Record(Settings(1, 1), {{"p", 0, 0, "1", true, 10, -1}}, 1);
  record.timings = {{0, ReasonMode::kOff, 100, 50, 3, 2.0}, {1, ReasonMode::kOff, 100, 150, 7, 3.0}};
  const Json timing = Summarize(record)["timing"];
  EXPECT_EQ(timing["tokens"], 200);
  EXPECT_EQ(timing["seconds"], 5.0);
  EXPECT_EQ(timing["tokens_per_second"], 40.0);
  EXPECT_EQ(timing["sessions"], 2);
  EXPECT_EQ(timing["phases"][0]["questions"], 10);
}

// What a question costs, of every mode and cap, to be compared with another run; streams that were made on the way to a
// larger cap are named where they have no time of their own.
TEST(SummaryTest, CostOfAPhase) {
  EvalSettings settings = Settings(1, 1);
  settings.caps = {50, 100};
  EvalRecord record = Record(settings, {{"p", 0, 0, "1", true, 10, -1}}, 1);
  record.generations.push_back(record.generations[0]);
  record.generations[1].key.cap = 50;
  record.generations[1].reused_from = 100;
  record.timings = {{0, ReasonMode::kOff, 100, 60, 3, 2.0, 30, 8}, {1, ReasonMode::kOff, 100, 140, 5, 6.0, 50, 32}};
  const Json summary = Summarize(record);
  const Json& phases = summary["timing"]["phases"];
  ASSERT_EQ(phases.size(), 2U);
  EXPECT_EQ(phases[0], Json::parse(R"({"mode":"off","cap":50,"questions":0,"tokens":0,"seconds":0.0,
      "tokens_per_second":0.0,"tokens_per_question":0.0,"seconds_per_question":0.0,"steps":0,"max_streams":0,
      "reused_streams":1})"));
  EXPECT_EQ(phases[1], Json::parse(R"({"mode":"off","cap":100,"questions":8,"tokens":200,"seconds":8.0,
      "tokens_per_second":25.0,"tokens_per_question":25.0,"seconds_per_question":1.0,"steps":80,"max_streams":32,
      "reused_streams":0})"));
  EXPECT_EQ(summary["timing"]["reused_streams"], 1);
  EXPECT_FALSE(summary["results"][0].contains("reused_streams"));
}

// Direct: p right, q wrong, 10 tokens each; reasoning: both right with 100 and 300 tokens; scores 0.2 and 0.8.
TEST(SummaryTest, SweepByHand) {
  EvalSettings settings = Settings(1, 1);
  settings.modes = {ReasonMode::kOff, ReasonMode::kOn};
  EvalRecord record = Record(settings, {{"p", 0, 0, "1", true, 10, -1}, {"q", 0, 0, "7", false, 10, -1}}, 1);
  for (const auto& [id, tokens, score] : {std::tuple{"p", 100, 0.2}, std::tuple{"q", 300, 0.8}}) {
    Generation generation;
    generation.key = {id, 0, 100, ReasonMode::kOn};
    generation.route = Route::kReason;
    generation.verdict = Verdict::kEqual;
    generation.answer = ExtractedAnswer{"1", AnswerSource::kBox};
    generation.tokens = tokens;
    generation.switcher_score = score;
    record.generations.push_back(generation);
  }
  record.thresholds = {0.5};
  const Json sweep = Summarize(record)["threshold_sweeps"][0];
  EXPECT_EQ(sweep["cap"], 100);
  EXPECT_EQ(sweep["problems"], 2);
  const struct {
    double threshold, routed, accuracy, tokens;
  } expected[] = {{0, 1, 1, 200}, {0.2, 1, 1, 200}, {0.5, 0.5, 1, 155}, {0.8, 0.5, 1, 155}, {1, 0, 0.5, 10}};
  ASSERT_EQ(sweep["points"].size(), 5U);
  for (size_t i = 0; i < 5; ++i) {
    const Json& point = sweep["points"][i];
    EXPECT_EQ(point["threshold"], expected[i].threshold);
    EXPECT_EQ(point["routed_share"], expected[i].routed);
    EXPECT_EQ(point["accuracy"], expected[i].accuracy);
    EXPECT_EQ(point["mean_tokens"], expected[i].tokens);
  }
}

}  // namespace
}  // namespace pith
