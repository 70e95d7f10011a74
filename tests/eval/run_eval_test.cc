// Whole evaluations on a scripted engine.
#include "eval/run_eval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/json.h"
#include "eval/report.h"
#include "eval/summary.h"
#include "support/data.h"
#include "support/scripted_engine.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using testing::ReadFile;
using testing::ScriptedModel;
using testing::TempDir;

// A scripted model that answers every question in one of its ways, and problems for it.
struct TinyEval {
  TinyEval() {
    scripted.responses = {"Thus \\boxed{4}.", "Well, \\boxed{5}", "it is \\boxed{4.0}",
                          "There is no way to tell from what was given here."};
    settings.suite = "tiny";
    settings.problems = static_cast<int64_t>(problems.size());
    settings.sampling = {.temperature = 1, .seed = 3};
    settings.caps = {200};
    settings.parallel = 2;
  }

  EvalBackend backend() {
    return {scripted.model, [this](const std::vector<ChatMessage>& messages, int64_t budget) -> Result<Prompts> {
              ++renders;
              std::string text;
              for (const auto& message : messages) text += message.role + ":" + message.content;
              Prompts prompts;
              prompts.direct = scripted.Prompt(text);
              prompts.reason = budget_in_prompt ? scripted.Prompt(text + std::to_string(budget)) : prompts.direct;
              return prompts;
            }};
  }

  // A run in this folder; the summary without what depends on time.
  Result<std::string> Run(const std::string& path, const RunEvalOptions& options = {}) {
    PITH_ASSIGN(const auto folder, EvalFolder::Open(path, SettingsJson(settings), problems));
    const EvalBackend here = backend();
    PITH_RETURN_IF_ERROR(RunEval(here, settings, options, *folder));
    return Summary(*folder);
  }

  static Result<std::string> Summary(const EvalFolder& folder) {
    PITH_ASSIGN(const std::string text, SummaryJson(RecordOf(folder, {})));
    PITH_ASSIGN(Json json, ParseJson(text, "summary"));
    json.erase("timing");
    return json.dump(1);
  }

  ScriptedModel scripted;
  std::vector<Problem> problems = {{"a", "2+2?", "4"}, {"b", "2+3?", "5"}, {"c", "1+1?", "2"}};
  EvalSettings settings;
  bool budget_in_prompt = false;
  int renders = 0;
};

std::vector<Generation> Read(const std::string& path) {
  auto read = ParseGenerations(ReadFile(path + "/generations.jsonl"), "generations.jsonl");
  EXPECT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->complete_bytes, fs::file_size(path + "/generations.jsonl"));
  return std::move(read->generations);
}

// Lines without the time they took, in one order.
std::multiset<std::string> Timeless(const std::string& path) {
  std::multiset<std::string> lines;
  for (Generation& generation : Read(path)) {
    generation.seconds = 0;
    lines.insert(WriteGeneration(generation));
  }
  return lines;
}

TEST(RunEvalTest, EveryQuestionIsRunAndGraded) {
  TinyEval tiny;
  tiny.settings.repeats = 8;
  const std::string path = TempDir();
  const auto summary = tiny.Run(path);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  const auto generations = Read(path);
  EXPECT_EQ(generations.size(), 3U * 8 * 2);
  std::set<std::string> texts;
  for (const Generation& generation : generations) {
    texts.insert(generation.text);
    const std::string gold = generation.key.id == "a" ? "4" : generation.key.id == "b" ? "5" : "2";
    const bool four = generation.text.find("{4") != std::string::npos;
    const bool five = generation.text.find("{5") != std::string::npos;
    const Verdict expected = !four && !five                                   ? Verdict::kNoAnswer
                             : (four && gold == "4") || (five && gold == "5") ? Verdict::kEqual
                                                                              : Verdict::kDifferent;
    EXPECT_EQ(generation.verdict, expected) << WriteGeneration(generation);
    EXPECT_EQ(generation.tokens, static_cast<int64_t>(testing::Ids(*tiny.scripted.tokenizer, generation.text).size()));
    EXPECT_EQ(generation.reasoning_tokens, 0);
    EXPECT_GT(generation.prompt_tokens, 0);
  }
  EXPECT_EQ(texts.size(), 4U);
  const Json json = *ParseJson(*summary, "summary");
  EXPECT_TRUE(json["complete"].get<bool>());
  EXPECT_EQ(json["questions"]["total"], 24);
}

TEST(RunEvalTest, ResultsDoNotDependOnWhatRunsTogether) {
  TinyEval tiny;
  tiny.settings.repeats = 3;
  tiny.settings.caps = {12, 200};
  const std::string reference = TempDir();
  const auto summary = tiny.Run(reference);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  for (const int64_t max_streams : {1, 2, 3, 5, 100}) {
    const std::string path = TempDir();
    const auto other = tiny.Run(path, {.max_streams = max_streams});
    ASSERT_TRUE(other.ok()) << other.error().message;
    EXPECT_EQ(*other, *summary) << max_streams;
    EXPECT_EQ(Timeless(path), Timeless(reference)) << max_streams;
  }
  tiny.settings.sampling.seed = 4;
  const std::string path = TempDir();
  ASSERT_TRUE(tiny.Run(path).ok());
  EXPECT_NE(Timeless(path), Timeless(reference));
}

// A kill at any byte of the file of generations: the resumed run ends where an uninterrupted one does.
TEST(RunEvalTest, ResumesAfterAKillAtEveryByte) {
  TinyEval tiny;
  tiny.problems.resize(2);
  tiny.settings.problems = 2;
  const std::string whole = TempDir();
  const auto summary = tiny.Run(whole);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  const std::string text = ReadFile(whole + "/generations.jsonl");
  const auto expected = Timeless(whole);
  const std::string path = TempDir();
  for (const char* name : {"run.json", "problems.jsonl"}) fs::copy_file(whole + "/" + name, path + "/" + name);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    std::ofstream(path + "/generations.jsonl", std::ios::binary | std::ios::trunc) << text.substr(0, cut);
    std::ofstream(path + "/timing.jsonl", std::ios::trunc) << "{\"session\":0,\"mo";
    const auto resumed = tiny.Run(path);
    ASSERT_TRUE(resumed.ok()) << cut << ": " << resumed.error().message;
    ASSERT_EQ(*resumed, *summary) << cut;
    ASSERT_EQ(Timeless(path), expected) << cut;
  }
}

// The same at every line of a run with several caps, modes and repeats, where responses are taken over from larger
// caps.
TEST(RunEvalTest, ResumesAfterAKillAtEveryLine) {
  TinyEval tiny;
  tiny.settings.repeats = 2;
  tiny.settings.caps = {10, 80, 200};
  tiny.settings.modes = {ReasonMode::kOff, ReasonMode::kOn};
  tiny.scripted.responses = {"Thus \\boxed{4}.", "<think>\nlong, long thoughts about it\n</think>\n\nIt is \\boxed{5}",
                             "<think>\nhm"};
  const std::string whole = TempDir();
  const auto summary = tiny.Run(whole);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  const std::string text = ReadFile(whole + "/generations.jsonl");
  EXPECT_EQ(Read(whole).size(), 3U * 2 * 3 * 2 * 2);
  for (size_t end = 0; end != std::string::npos; end = text.find('\n', end + 1)) {
    for (const size_t cut : {end, end + 1, end + 40}) {
      const std::string path = TempDir();
      for (const char* name : {"run.json", "problems.jsonl"}) fs::copy_file(whole + "/" + name, path + "/" + name);
      std::ofstream(path + "/generations.jsonl", std::ios::binary) << text.substr(0, cut);
      const auto resumed = tiny.Run(path);
      ASSERT_TRUE(resumed.ok()) << cut << ": " << resumed.error().message;
      ASSERT_EQ(*resumed, *summary) << cut;
    }
  }
}

TEST(RunEvalTest, CancelledRunsGoOn) {
  TinyEval tiny;
  tiny.settings.repeats = 2;
  const std::string whole = TempDir();
  const auto summary = tiny.Run(whole);
  ASSERT_TRUE(summary.ok());
  const std::string path = TempDir();
  std::atomic<bool> cancel{false};
  int runs = 0;
  while (true) {
    cancel = false;
    int steps = 0;
    ++runs;
    const auto run = tiny.Run(
        path,
        {.max_streams = 4, .on_progress = [&](const EvalProgress&) { cancel = ++steps >= 20; }, .cancel = &cancel});
    if (run.ok()) {
      EXPECT_EQ(*run, *summary);
      break;
    }
    ASSERT_EQ(run.error().code, ErrorCode::kCancelled) << run.error().message;
    ASSERT_LT(runs, 100);
  }
  EXPECT_GT(runs, 2);
  EXPECT_EQ(Timeless(path), Timeless(whole));
  // Each run of the program that did something is in the times.
  const auto folder = EvalFolder::OpenExisting(path);
  std::set<int64_t> sessions;
  for (const auto& timing : (*folder)->timings()) sessions.insert(timing.session);
  EXPECT_EQ(sessions.size(), static_cast<size_t>(runs));
}

// What is taken over from a larger cap is what a run with the smaller cap alone gives.
TEST(RunEvalTest, ReusedGenerationsAreWhatTheSmallerCapGives) {
  TinyEval tiny;
  tiny.settings.caps = {16, 120, 300};
  tiny.settings.repeats = 4;
  tiny.scripted.responses.emplace_back("A long way to say that the answer to this is " + std::string(60, '.') +
                                       " \\boxed{5}");
  const std::string all = TempDir();
  ASSERT_TRUE(tiny.Run(all).ok());
  int reused = 0;
  std::map<int64_t, std::multiset<std::string>> by_cap;
  for (Generation& generation : Read(all)) {
    reused += generation.reused_from > 0 ? 1 : 0;
    generation.reused_from = 0;
    generation.seconds = 0;
    by_cap[generation.key.cap].insert(WriteGeneration(generation));
  }
  EXPECT_EQ(reused, 3 * 4 * 2 * 2);  // those of 16 and 120, by streams that fork where they have to answer
  for (const int64_t cap : {16, 120, 300}) {
    tiny.settings.caps = {cap};
    const std::string alone = TempDir();
    ASSERT_TRUE(tiny.Run(alone).ok());
    EXPECT_EQ(Timeless(alone), by_cap[cap]) << cap;
  }
  // With the budget in the prompt the prompts differ, and nothing may be taken over in reasoning mode.
  tiny.settings.caps = {120, 300};
  tiny.settings.modes = {ReasonMode::kOn};
  tiny.budget_in_prompt = true;
  tiny.scripted.responses = {"<think>\nhm\n</think>\n\n\\boxed{4}"};
  const std::string path = TempDir();
  ASSERT_TRUE(tiny.Run(path).ok());
  for (const Generation& generation : Read(path)) EXPECT_EQ(generation.reused_from, 0);
}

// The direct route reads no budget, so an adapter that states it in the reasoning prompt changes nothing there.
TEST(RunEvalTest, TheDirectRouteIsRunOnceWhateverTheReasoningPromptSays) {
  TinyEval tiny;
  tiny.settings.caps = {16, 120, 300};
  const std::string plain = TempDir();
  ASSERT_TRUE(tiny.Run(plain).ok());
  tiny.budget_in_prompt = true;
  const std::string told = TempDir();
  ASSERT_TRUE(tiny.Run(told).ok());
  EXPECT_EQ(Timeless(told), Timeless(plain));
  for (const Generation& generation : Read(told)) {
    EXPECT_EQ(generation.reused_from, generation.key.cap == 300 ? 0 : 300) << generation.key.cap;
  }
  // Each mode by itself: what reasons is run with each budget.
  tiny.settings.modes = {ReasonMode::kOff, ReasonMode::kOn};
  const std::string both = TempDir();
  ASSERT_TRUE(tiny.Run(both).ok());
  for (const Generation& generation : Read(both)) {
    const bool direct = generation.key.mode == ReasonMode::kOff;
    EXPECT_EQ(generation.reused_from, !direct || generation.key.cap == 300 ? 0 : 300) << generation.key.cap;
  }
}

// A reasoning prompt that is too long for the context is no matter of the direct route.
TEST(RunEvalTest, TheDirectRouteFitsWithoutTheReasoningPrompt) {
  TinyEval tiny;
  EvalBackend backend = tiny.backend();
  const auto render = backend.render;
  backend.render = [&](const std::vector<ChatMessage>& messages, int64_t budget) -> Result<Prompts> {
    PITH_ASSIGN(Prompts prompts, render(messages, budget));
    prompts.reason.resize(10000, 'x');
    return prompts;
  };
  const auto folder = EvalFolder::Open(TempDir(), SettingsJson(tiny.settings), tiny.problems);
  ASSERT_TRUE(folder.ok());
  ASSERT_TRUE(RunEval(backend, tiny.settings, {}, **folder).ok());
  for (const Generation& generation : (*folder)->generations()) EXPECT_FALSE(generation.error);
}

// A verifier, and streams without an answer, which are not scored: the vote of the others is weighted as in `ask`.
TEST(RunEvalTest, StreamsWithoutAnAnswerDoNotUndoTheWeightedVote) {
  TinyEval tiny;
  tiny.scripted.model.verifier.emplace();
  tiny.scripted.model.verifier->hidden = 4;
  tiny.scripted.model.verifier->w = {1, 0, 0, 0};
  tiny.scripted.model.verification = testing::Ids(*tiny.scripted.tokenizer, "\nright?");
  tiny.settings.parallel = 8;
  const std::string path = TempDir();
  const auto summary = tiny.Run(path);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  int without = 0;
  for (const Generation& generation : Read(path)) {
    without += generation.answer ? 0 : 1;
    EXPECT_EQ(generation.verifier_score.has_value(), generation.answer.has_value());
  }
  EXPECT_GT(without, 0);
  const Json json = *ParseJson(*summary, "s");
  EXPECT_TRUE(json["results"][0]["weighted"].is_object()) << json["results"][0]["weighted"];
  EXPECT_TRUE(json["vote_curves"]["curves"][0]["points"][7]["weighted"].is_object());
}

TEST(RunEvalTest, BudgetForcesAndTruncates) {
  TinyEval tiny;
  tiny.settings.caps = {60};
  tiny.scripted.responses = {"On and on it goes" + std::string(300, '.')};
  tiny.scripted.after_forced = "4}.";
  const std::string path = TempDir();
  ASSERT_TRUE(tiny.Run(path).ok());
  for (const Generation& generation : Read(path)) {
    EXPECT_TRUE(generation.forced);
    EXPECT_LE(generation.tokens, 60);
    EXPECT_EQ(generation.answer->text, "4");
    EXPECT_EQ(generation.verdict, generation.key.id == "a" ? Verdict::kEqual : Verdict::kDifferent);
  }
  tiny.settings.force_answer = false;
  const std::string cut = TempDir();
  ASSERT_TRUE(tiny.Run(cut).ok());
  for (const Generation& generation : Read(cut)) {
    EXPECT_FALSE(generation.forced);
    EXPECT_TRUE(generation.truncated);
    EXPECT_EQ(generation.tokens, 60);
    EXPECT_EQ(generation.finish, FinishReason::kLength);
    EXPECT_EQ(generation.verdict, Verdict::kNoAnswer);
  }
}

// A right answer that is followed by an unfinished repetition keeps its mark, and is recorded as truncated.
TEST(RunEvalTest, TruncatedAfterABoxIsRecordedApart) {
  TinyEval tiny;
  tiny.settings.caps = {40};
  tiny.settings.force_answer = false;
  tiny.scripted.responses = {"\\boxed{4} and 17 " + std::string(200, '.')};
  const std::string path = TempDir();
  const auto summary = tiny.Run(path);
  ASSERT_TRUE(summary.ok());
  const Json result = (*ParseJson(*summary, "s"))["results"][0];
  EXPECT_EQ(result["truncated_share"], 1.0);
  EXPECT_NEAR(result["truncated_correct_share"].get<double>(), 1.0 / 3, 1e-12);
  EXPECT_NEAR(result["accuracy"]["value"].get<double>(), 1.0 / 3, 1e-12);
}

TEST(RunEvalTest, AProblemThatDoesNotFitIsRecorded) {
  TinyEval tiny;
  tiny.problems[1].problem = std::string(5000, 'x');
  const std::string path = TempDir();
  const auto summary = tiny.Run(path);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  const Json result = (*ParseJson(*summary, "s"))["results"][0];
  EXPECT_EQ(result["errors"], 1);
  EXPECT_EQ(result["problems"], 3);
  int errors = 0;
  for (const Generation& generation : Read(path)) {
    if (!generation.error) continue;
    ++errors;
    EXPECT_EQ(generation.key.id, "b");
    EXPECT_EQ(generation.error->code, ErrorCode::kContextOverflow);
  }
  EXPECT_EQ(errors, 1);
  // It takes nothing from the others.
  EXPECT_EQ((*ParseJson(*summary, "s"))["vote_curves"]["curves"][0]["points"].size(), 2U);
  EXPECT_EQ(result["pass_at_k"].size(), 2U);
}

TEST(RunEvalTest, OtherErrorsEndTheRunAndNameTheProblem) {
  TinyEval tiny;
  tiny.scripted.engine.fails = [](const StepItem&) { return true; };
  const auto run = tiny.Run(TempDir());
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().code, ErrorCode::kNumeric);
  EXPECT_NE(run.error().message.find("problem '"), std::string::npos) << run.error().message;

  TinyEval other;
  other.settings.modes = {ReasonMode::kAuto};  // there is no switcher
  EXPECT_EQ(other.Run(TempDir()).error().code, ErrorCode::kInvalidArgument);
}

SwitcherHead Switcher(double threshold) {
  SwitcherHead head;
  head.hidden = 4;
  head.inner = 1;
  head.threshold = threshold;
  head.w1 = {1, 0, 0, 0};
  head.b1 = {0};
  head.w2 = {1};
  head.b2 = -3;
  return head;
}

TEST(RunEvalTest, BothWaysGiveTheSweep) {
  TinyEval tiny;
  tiny.scripted.model.switcher = Switcher(0.5);
  // The score grows with the length of the prompt: c is the longest.
  tiny.problems[2].problem += " really, is it so?";
  tiny.scripted.engine.state = [](std::span<const KvOrigin> so_far) {
    return std::vector<float>{static_cast<float>(so_far.size()) / 40.0F, 0, 0, 0};
  };
  tiny.scripted.responses = {"\\boxed{4}", "<think>\nlong thoughts\n</think>\n\n\\boxed{5}"};
  tiny.settings.modes = {ReasonMode::kOff, ReasonMode::kOn};
  const std::string path = TempDir();
  const auto summary = tiny.Run(path);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  std::map<std::string, double> scores;
  for (const Generation& generation : Read(path)) {
    EXPECT_EQ(generation.switcher_score.has_value(), generation.key.mode == ReasonMode::kOn);
    EXPECT_EQ(generation.route, generation.key.mode == ReasonMode::kOn ? Route::kReason : Route::kDirect);
    if (generation.switcher_score) scores[generation.key.id] = *generation.switcher_score;
  }
  ASSERT_EQ(scores.size(), 3U);
  EXPECT_EQ(scores["a"], scores["b"]);
  EXPECT_GT(scores["c"], scores["a"]);
  const Json sweep = (*ParseJson(*summary, "s"))["threshold_sweeps"][0];
  const Json& points = sweep["points"];
  ASSERT_EQ(points.size(), 4U);  // 0, the two scores, 1
  EXPECT_EQ(points[0]["routed_share"], 1.0);
  EXPECT_EQ(points[1]["threshold"], scores["a"]);
  EXPECT_EQ(points[1]["routed_share"], 1.0);
  EXPECT_EQ(points[2]["threshold"], scores["c"]);
  EXPECT_NEAR(points[2]["routed_share"].get<double>(), 1.0 / 3, 1e-12);
  EXPECT_EQ(points[3]["routed_share"], 0.0);
  const double direct = 8;  // tokens of "\boxed{4}" by the scripted vocabulary are fewer than those of the thoughts
  EXPECT_LT(points[3]["mean_tokens"].get<double>(), points[0]["mean_tokens"].get<double>());
  EXPECT_LT(points[3]["mean_tokens"].get<double>(), direct);
}

TEST(RunEvalTest, AutoRunsOneDirectStream) {
  TinyEval tiny;
  tiny.scripted.model.switcher = Switcher(0.5);
  tiny.scripted.engine.state = [](std::span<const KvOrigin> so_far) {
    return std::vector<float>{static_cast<float>(so_far.size()) / 40.0F, 0, 0, 0};
  };
  tiny.settings.modes = {ReasonMode::kAuto};
  tiny.settings.threshold = 1;
  const std::string direct = TempDir();
  auto summary = tiny.Run(direct);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_EQ((*ParseJson(*summary, "s"))["results"][0]["routed_share"], 0.0);
  EXPECT_EQ(Read(direct).size(), 3U);
  tiny.settings.threshold = 0;
  const std::string reason = TempDir();
  summary = tiny.Run(reason);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_EQ((*ParseJson(*summary, "s"))["results"][0]["routed_share"], 1.0);
  EXPECT_EQ(Read(reason).size(), 6U);
  for (const Generation& generation : Read(reason)) EXPECT_TRUE(generation.switcher_score.has_value());
}

TEST(RunEvalTest, ProgressCounts) {
  TinyEval tiny;
  std::vector<EvalProgress> seen;
  ASSERT_TRUE(
      tiny.Run(TempDir(), {.on_progress = [&](const EvalProgress& progress) { seen.push_back(progress); }}).ok());
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back().done, 3);
  EXPECT_EQ(seen.back().total, 3);
  EXPECT_EQ(seen.back().graded, 6);
  EXPECT_GT(seen.back().tokens, 0);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end(),
                             [](const auto& a, const auto& b) { return a.done < b.done || a.tokens < b.tokens; }));
}

TEST(RunEvalTest, KeysThatAreSolutions) {
  const auto answer = [](const char* text) { return std::optional(ExtractedAnswer{text, AnswerSource::kBox}); };
  EXPECT_EQ(GradeAnswer("4", answer("4")), Verdict::kEqual);
  EXPECT_EQ(GradeAnswer("2 and 2 make 4, so\n\\boxed{4}", answer("4")), Verdict::kEqual);
  EXPECT_EQ(GradeAnswer("2 and 2 make 4, so\n\\boxed{4}", answer("2")), Verdict::kDifferent);
  EXPECT_EQ(GradeAnswer("4", std::nullopt), Verdict::kNoAnswer);
}

TEST(RunEvalTest, RegradingFollowsTheFormat) {
  TinyEval tiny;
  const std::string path = TempDir();
  ASSERT_TRUE(tiny.Run(path).ok());
  auto generations = Read(path);
  EXPECT_EQ(Regrade(tiny.settings.prompt, tiny.problems, generations), 0);
  const auto before = generations;
  for (Generation& generation : generations) {
    generation.verdict = Verdict::kTooHard;
    generation.answer.reset();
  }
  EXPECT_EQ(Regrade(tiny.settings.prompt, tiny.problems, generations), 6);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(WriteGeneration(before[i]), WriteGeneration(generations[i]));
}

}  // namespace
}  // namespace pith
