#include "eval/summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/json.h"
#include "eval/resampling.h"
#include "eval/settings.h"
#include "eval/statistics.h"
#include "reason/vote.h"

namespace pith {

namespace {

constexpr int64_t kMostBins = 32;
constexpr size_t kMostSweepScores = 200;
constexpr int64_t kPassAtK[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};

using Streams = std::vector<const Generation*>;  // of one question, in order

// The generations of one mode and cap.
struct Phase {
  ReasonMode mode;
  int64_t cap;
  std::map<size_t, std::map<int64_t, Streams>> problems;  // by index and repeat
};

// What one problem contributes: means over its questions (repeats).
struct ProblemValues {
  double accuracy = 0;  // of a single stream
  double majority = 0;
  double weighted = 0;
  double tokens = 0;            // of a single stream
  int64_t streams = 0;          // in all, without questions that could not be run
  int64_t right = 0;            // of them
  int64_t scored = 0;           // of them by the verifier
  std::optional<double> score;  // of the switcher
};

int64_t Scored(const Streams& streams) {
  return std::count_if(streams.begin(), streams.end(),
                       [](const Generation* stream) { return stream->verifier_score.has_value(); });
}

// The weights of a question's streams as the policy votes: all 1 where none was scored. Beside scored ones an answer
// without a score has none: it is one that the grader of the run did not find.
std::vector<StoredBallot> Ballots(const Streams& streams) {
  const double unscored = Scored(streams) > 0 ? 0.0 : 1.0;
  std::vector<std::optional<std::string>> answers;
  for (const Generation* stream : streams) {
    answers.push_back(stream->answer ? std::optional(stream->answer->text) : std::nullopt);
  }
  const std::vector<int> candidates = CandidatesOf(answers);
  std::vector<StoredBallot> ballots;
  for (size_t i = 0; i < streams.size(); ++i) {
    ballots.push_back(
        {candidates[i], streams[i]->verifier_score.value_or(unscored), answers[i].value_or(""), streams[i]->correct()});
  }
  return ballots;
}

double VoteIsRight(const std::vector<StoredBallot>& ballots, bool weighted) {
  std::vector<int> all(ballots.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  const int winner = WinningBallot(ballots, all, weighted);
  return winner >= 0 && ballots[static_cast<size_t>(winner)].correct ? 1.0 : 0.0;
}

ProblemValues ValuesOf(const std::map<int64_t, Streams>& questions) {
  ProblemValues values;
  for (const auto& [repeat, streams] : questions) {
    double right = 0;
    double tokens = 0;
    for (const Generation* stream : streams) {
      right += stream->correct() ? 1 : 0;
      tokens += static_cast<double>(stream->tokens);
      if (stream->switcher_score) values.score = stream->switcher_score;
    }
    const auto count = static_cast<double>(streams.size());
    values.accuracy += right / count;
    values.tokens += tokens / count;
    if (streams[0]->error) continue;  // wrong, whatever is counted
    values.streams += static_cast<int64_t>(streams.size());
    values.right += static_cast<int64_t>(right);
    const auto ballots = Ballots(streams);
    values.majority += VoteIsRight(ballots, false);
    values.weighted += VoteIsRight(ballots, true);
    values.scored += Scored(streams);
  }
  const auto repeats = static_cast<double>(questions.size());
  for (double* value : {&values.accuracy, &values.tokens, &values.majority, &values.weighted}) *value /= repeats;
  return values;
}

std::vector<Phase> PhasesOf(const EvalRecord& record, const std::vector<ReasonMode>& modes,
                            const std::vector<int64_t>& caps) {
  std::unordered_map<std::string_view, size_t> index;
  for (size_t i = 0; i < record.problems.size(); ++i) index[record.problems[i].id] = i;
  std::vector<Phase> phases;
  for (const ReasonMode mode : modes) {
    for (const int64_t cap : caps) phases.push_back({mode, cap, {}});
  }
  for (const Generation& generation : record.generations) {
    const auto problem = index.find(generation.key.id);
    const auto phase = std::find_if(phases.begin(), phases.end(), [&](const Phase& candidate) {
      return candidate.mode == generation.key.mode && candidate.cap == generation.key.cap;
    });
    if (problem == index.end() || phase == phases.end()) continue;
    phase->problems[problem->second][generation.key.repeat].push_back(&generation);
  }
  std::erase_if(phases, [](const Phase& phase) { return phase.problems.empty(); });
  for (Phase& phase : phases) {
    for (auto& [problem, questions] : phase.problems) {
      for (auto& [repeat, streams] : questions) {
        std::sort(streams.begin(), streams.end(),
                  [](const Generation* a, const Generation* b) { return a->stream < b->stream; });
      }
    }
  }
  return phases;
}

// A share with its interval: Wilson's where every problem is one trial, else by drawing problems.
OrderedJson Share(const std::vector<double>& by_problem, bool one_trial_each) {
  double sum = 0;
  for (const double value : by_problem) sum += value;
  const Interval interval = one_trial_each ? WilsonInterval(std::llround(sum), static_cast<int64_t>(by_problem.size()))
                                           : BootstrapInterval(by_problem, kResamplingSeed);
  return {{"value", Mean(by_problem)},
          {"low", interval.low},
          {"high", interval.high},
          {"interval", one_trial_each ? "wilson95" : "bootstrap95"}};
}

template <class Field>
std::vector<double> Column(const std::vector<ProblemValues>& values, Field field) {
  std::vector<double> column;
  for (const ProblemValues& value : values) column.push_back(value.*field);
  return column;
}

// The fewest streams of a problem, of those that could be run; 0 = of none.
int64_t FewestStreams(const std::vector<ProblemValues>& values) {
  int64_t fewest = 0;
  for (const auto& value : values) {
    if (value.streams > 0 && (fewest == 0 || value.streams < fewest)) fewest = value.streams;
  }
  return fewest;
}

OrderedJson PassAtKs(const std::vector<ProblemValues>& values) {
  const int64_t fewest = std::max<int64_t>(FewestStreams(values), 1);
  OrderedJson list = OrderedJson::array();
  for (const int64_t k : kPassAtK) {
    if (k > fewest) break;
    double sum = 0;
    for (const auto& value : values) sum += value.streams == 0 ? 0.0 : PassAtK(value.streams, value.right, k);
    list.push_back({{"k", k}, {"value", sum / static_cast<double>(values.size())}});
  }
  return list;
}

// 1, 2 or 5 times a power of ten, so that `most` falls into at most kMostBins bins.
int64_t BinWidth(int64_t most) {
  for (int64_t power = 1;; power *= 10) {
    for (const int64_t step : {1, 2, 5}) {
      if (most / (power * step) < kMostBins) return power * step;
    }
  }
}

// Sums over the streams of a phase.
class StreamStatistics {
 public:
  void Add(const Generation& stream) {
    ++streams_;
    tokens_.push_back(static_cast<double>(stream.tokens));
    reasoning_ += static_cast<double>(stream.reasoning_tokens);
    prompt_ += static_cast<double>(stream.prompt_tokens);
    truncated_ += stream.truncated ? 1 : 0;
    truncated_correct_ += stream.truncated && stream.correct() ? 1 : 0;
    forced_ += stream.forced ? 1 : 0;
    no_answer_ += stream.verdict == Verdict::kNoAnswer ? 1 : 0;
    too_hard_ += stream.verdict == Verdict::kTooHard ? 1 : 0;
    ++finish_[FinishReasonName(stream.finish)];
    lengths_.emplace_back(stream.tokens, stream.correct());
  }

  OrderedJson Tokens() {
    double total = 0;
    for (const double value : tokens_) total += value;
    const double count = std::max<double>(1, static_cast<double>(streams_));
    const double median = Quantile(tokens_, 0.5);
    const double p90 = Quantile(tokens_, 0.9);
    return {{"mean", total / count},
            {"median", median},
            {"p90", p90},
            {"max", tokens_.empty() ? 0 : static_cast<int64_t>(tokens_.back())},
            {"total", static_cast<int64_t>(total)},
            {"reasoning_mean", reasoning_ / count},
            {"answer_mean", (total - reasoning_) / count},
            {"prompt_mean", prompt_ / count}};
  }

  void Shares(OrderedJson* json) const {
    const auto share = [&](int64_t count) {
      return streams_ == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(streams_);
    };
    (*json)["truncated_share"] = share(truncated_);
    (*json)["truncated_correct_share"] = share(truncated_correct_);
    (*json)["forced_share"] = share(forced_);
    (*json)["no_answer_share"] = share(no_answer_);
    (*json)["too_hard_share"] = share(too_hard_);
    (*json)["finish"] = finish_;
  }

  OrderedJson Histogram(int64_t width) const {
    int64_t bins = 0;
    for (const auto& [length, correct] : lengths_) bins = std::max(bins, length / width + 1);
    std::vector<int64_t> right(static_cast<size_t>(bins));
    std::vector<int64_t> wrong(static_cast<size_t>(bins));
    for (const auto& [length, correct] : lengths_) ++(correct ? right : wrong)[static_cast<size_t>(length / width)];
    return {{"bin", width}, {"right", right}, {"wrong", wrong}};
  }

  int64_t streams() const { return streams_; }

 private:
  int64_t streams_ = 0;
  std::vector<double> tokens_;
  double reasoning_ = 0;
  double prompt_ = 0;
  int64_t truncated_ = 0, truncated_correct_ = 0, forced_ = 0, no_answer_ = 0, too_hard_ = 0;
  std::map<std::string, int64_t> finish_;
  std::vector<std::pair<int64_t, bool>> lengths_;
};

std::vector<ProblemValues> AllValues(const Phase& phase) {
  std::vector<ProblemValues> values;
  for (const auto& [problem, questions] : phase.problems) values.push_back(ValuesOf(questions));
  return values;
}

bool HasWeights(const std::vector<ProblemValues>& values) {
  return std::any_of(values.begin(), values.end(), [](const ProblemValues& value) { return value.scored > 0; });
}

OrderedJson PhaseJson(const Phase& phase, const std::vector<ProblemValues>& values, int64_t bin_width) {
  StreamStatistics statistics;
  int64_t questions = 0;
  int64_t routed = 0;
  int64_t errors = 0;
  int64_t unscored = 0;  // with an answer
  bool one_question_each = true;
  for (const auto& [problem, repeats] : phase.problems) {
    one_question_each = one_question_each && repeats.size() == 1;
    for (const auto& [repeat, streams] : repeats) {
      ++questions;
      errors += streams[0]->error ? 1 : 0;
      routed += streams[0]->route == Route::kReason ? 1 : 0;
      for (const Generation* stream : streams) {
        statistics.Add(*stream);
        unscored += stream->answer && !stream->verifier_score ? 1 : 0;
      }
    }
  }
  const bool one_stream_each =
      std::all_of(values.begin(), values.end(), [](const ProblemValues& value) { return value.streams <= 1; });
  const bool weighted = HasWeights(values);
  OrderedJson json{{"mode", ReasonModeName(phase.mode)},
                   {"cap", phase.cap},
                   {"problems", phase.problems.size()},
                   {"questions", questions},
                   {"streams", statistics.streams()},
                   {"accuracy", Share(Column(values, &ProblemValues::accuracy), one_stream_each)},
                   {"majority", Share(Column(values, &ProblemValues::majority), one_question_each)}};
  json["weighted"] =
      weighted ? Share(Column(values, &ProblemValues::weighted), one_question_each) : OrderedJson(nullptr);
  json["unscored_streams"] = weighted ? unscored : 0;
  json["pass_at_k"] = PassAtKs(values);
  json["tokens"] = statistics.Tokens();
  json["tokens"]["per_question_mean"] =
      static_cast<double>(json["tokens"]["total"].get<int64_t>()) / static_cast<double>(questions);
  statistics.Shares(&json);
  json["routed_share"] = static_cast<double>(routed) / static_cast<double>(questions);
  json["errors"] = errors;
  json["length_histogram"] = statistics.Histogram(bin_width);
  return json;
}

OrderedJson CurveJson(const Phase& phase, bool weighted) {
  std::vector<std::vector<StoredBallot>> problems;
  for (const auto& [problem, questions] : phase.problems) {
    Streams pooled;
    for (const auto& [repeat, streams] : questions) {
      if (!streams[0]->error) pooled.insert(pooled.end(), streams.begin(), streams.end());
    }
    if (!pooled.empty()) problems.push_back(Ballots(pooled));
  }
  // The others are wrong in every draw.
  const double share = static_cast<double>(problems.size()) / static_cast<double>(phase.problems.size());
  OrderedJson points = OrderedJson::array();
  for (const VoteCurvePoint& point : VoteCurve(problems, kVoteCurveMost, kVoteCurveDraws, kResamplingSeed)) {
    OrderedJson json{{"n", point.n},
                     {"majority", {{"mean", share * point.majority_mean}, {"sd", share * point.majority_sd}}}};
    json["weighted"] = nullptr;
    if (weighted) json["weighted"] = {{"mean", share * point.weighted_mean}, {"sd", share * point.weighted_sd}};
    points.push_back(std::move(json));
  }
  return {{"mode", ReasonModeName(phase.mode)}, {"cap", phase.cap}, {"points", points}};
}

// A problem that was done both ways.
struct BothWays {
  double score;
  ProblemValues direct;
  ProblemValues reason;
};

std::vector<BothWays> DoneBothWays(const Phase& direct, const Phase& reason) {
  std::vector<BothWays> both;
  for (const auto& [problem, questions] : reason.problems) {
    const auto other = direct.problems.find(problem);
    if (other == direct.problems.end()) continue;
    const ProblemValues reasoned = ValuesOf(questions);
    if (!reasoned.score) continue;
    both.push_back({*reasoned.score, ValuesOf(other->second), reasoned});
  }
  return both;
}

OrderedJson SweepPoint(const std::vector<BothWays>& both, double threshold, bool weighted) {
  double routed = 0;
  double accuracy = 0;
  double vote = 0;
  double tokens = 0;
  for (const BothWays& problem : both) {
    const bool reason = problem.score >= threshold;
    routed += reason ? 1 : 0;
    accuracy += reason ? problem.reason.accuracy : problem.direct.accuracy;
    tokens += reason ? problem.reason.tokens : problem.direct.tokens;
    // The policy runs one stream on the direct route.
    vote += !reason ? problem.direct.accuracy : weighted ? problem.reason.weighted : problem.reason.majority;
  }
  const auto count = static_cast<double>(both.size());
  return {{"threshold", threshold},
          {"routed_share", routed / count},
          {"accuracy", accuracy / count},
          {"vote_accuracy", vote / count},
          {"mean_tokens", tokens / count}};
}

// Thresholds at which the route of a problem changes, thinned when there are many, and those asked for.
std::vector<double> SweepThresholds(const std::vector<BothWays>& both, const std::vector<double>& asked) {
  std::set<double> scores;
  for (const BothWays& problem : both) scores.insert(problem.score);
  std::set<double> thresholds(asked.begin(), asked.end());
  thresholds.insert({0.0, 1.0});
  const size_t step = (scores.size() + kMostSweepScores - 1) / kMostSweepScores;
  size_t i = 0;
  for (const double score : scores) {
    if (i++ % step == 0) thresholds.insert(score);
  }
  return {thresholds.begin(), thresholds.end()};
}

OrderedJson SweepsJson(const std::vector<Phase>& phases, const std::vector<double>& asked) {
  OrderedJson sweeps = OrderedJson::array();
  for (const Phase& direct : phases) {
    if (direct.mode != ReasonMode::kOff) continue;
    for (const Phase& reason : phases) {
      if (reason.mode != ReasonMode::kOn || reason.cap != direct.cap) continue;
      const auto both = DoneBothWays(direct, reason);
      if (both.empty()) continue;
      const bool weighted =
          std::any_of(both.begin(), both.end(), [](const BothWays& problem) { return problem.reason.scored > 0; });
      OrderedJson points = OrderedJson::array();
      for (const double threshold : SweepThresholds(both, asked)) {
        points.push_back(SweepPoint(both, threshold, weighted));
      }
      sweeps.push_back({{"cap", direct.cap},
                        {"problems", both.size()},
                        {"vote", weighted ? "weighted" : "majority"},
                        {"points", points}});
    }
  }
  return sweeps;
}

// What runs of the program spent, and how: all that depends on how often they were interrupted.
struct Cost {
  int64_t questions = 0;
  int64_t tokens = 0;
  int64_t steps = 0;
  int64_t max_streams = 0;  // the most of them
  int64_t reused_streams = 0;
  double seconds = 0;

  void Add(const PhaseTiming& timing) {
    questions += timing.questions;
    tokens += timing.tokens;
    steps += timing.steps;
    max_streams = std::max(max_streams, timing.max_streams);
    seconds += timing.seconds;
  }

  OrderedJson ToJson() const {
    const auto ratio = [](double a, double b) { return b > 0 ? a / b : 0.0; };
    const auto count = static_cast<double>(questions);
    return {{"questions", questions},
            {"tokens", tokens},
            {"seconds", seconds},
            {"tokens_per_second", ratio(static_cast<double>(tokens), seconds)},
            {"tokens_per_question", ratio(static_cast<double>(tokens), count)},
            {"seconds_per_question", ratio(seconds, count)},
            {"steps", steps},
            {"max_streams", max_streams},
            {"reused_streams", reused_streams}};
  }
};

OrderedJson TimingJson(const EvalRecord& record) {
  std::map<std::pair<ReasonMode, int64_t>, Cost> phases;
  Cost all;
  std::set<int64_t> sessions;
  for (const PhaseTiming& timing : record.timings) {
    sessions.insert(timing.session);
    for (Cost* cost : {&all, &phases[{timing.mode, timing.cap}]}) cost->Add(timing);
  }
  for (const Generation& generation : record.generations) {
    if (generation.reused_from == 0) continue;
    for (Cost* cost : {&all, &phases[{generation.key.mode, generation.key.cap}]}) ++cost->reused_streams;
  }
  OrderedJson json = all.ToJson();
  json["sessions"] = sessions.size();
  json["phases"] = OrderedJson::array();
  for (const auto& [key, cost] : phases) {
    OrderedJson phase{{"mode", ReasonModeName(key.first)}, {"cap", key.second}};
    phase.update(cost.ToJson());
    json["phases"].push_back(std::move(phase));
  }
  return json;
}

// The parts of the settings that say what a complete run holds.
struct Plan {
  std::vector<ReasonMode> modes;
  std::vector<int64_t> caps;
  int64_t repeats = 1;
};

Result<Plan> PlanOf(const Json& settings) {
  const Error malformed{ErrorCode::kMalformed, "the settings of the run lack reason, budgets or repeats"};
  if (!settings.is_object()) return malformed;
  for (const char* name : {"reason", "budgets", "repeats"}) {
    if (!settings.contains(name)) return malformed;
  }
  Plan plan;
  if (!settings["reason"].is_array() || !settings["budgets"].is_array()) return malformed;
  for (const Json& mode : settings["reason"]) {
    if (!mode.is_string()) return malformed;
    PITH_ASSIGN(const ReasonMode parsed, ParseReasonMode(mode.get<std::string>()));
    plan.modes.push_back(parsed);
  }
  for (const Json& cap : settings["budgets"]) {
    if (!cap.is_number_integer()) return malformed;
    plan.caps.push_back(cap.get<int64_t>());
  }
  if (!settings["repeats"].is_number_integer()) return malformed;
  plan.repeats = settings["repeats"].get<int64_t>();
  return plan;
}

}  // namespace

EvalRecord RecordOf(const EvalFolder& folder, std::vector<double> thresholds) {
  return {folder.settings_json(), folder.problems(), folder.generations(), folder.timings(), std::move(thresholds)};
}

Result<std::string> SummaryJson(const EvalRecord& record) {
  PITH_ASSIGN(const Json settings, ParseJson(record.settings_json, "run.json"));
  PITH_ASSIGN(const Plan plan, PlanOf(settings));
  const std::vector<Phase> phases = PhasesOf(record, plan.modes, plan.caps);
  int64_t longest = 1;
  for (const Generation& generation : record.generations) longest = std::max(longest, generation.tokens);
  const int64_t bin_width = BinWidth(longest);

  int64_t done = 0;
  OrderedJson results = OrderedJson::array();
  OrderedJson curves = OrderedJson::array();
  for (const Phase& phase : phases) {
    const auto values = AllValues(phase);
    results.push_back(PhaseJson(phase, values, bin_width));
    done += results.back()["questions"].get<int64_t>();
    if (FewestStreams(values) > 1) curves.push_back(CurveJson(phase, HasWeights(values)));
  }
  const int64_t total =
      static_cast<int64_t>(record.problems.size() * plan.modes.size() * plan.caps.size()) * plan.repeats;
  OrderedJson json{
      {"settings", OrderedJson(settings)},
      {"questions", {{"done", done}, {"total", total}}},
      {"complete", done == total},
      {"results", results},
      {"vote_curves",
       {{"draws", kVoteCurveDraws}, {"seed", kResamplingSeed}, {"tie_rule", kTieRule}, {"curves", curves}}},
      {"threshold_sweeps", SweepsJson(phases, record.thresholds)},
      {"timing", TimingJson(record)}};
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace pith
