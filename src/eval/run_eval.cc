#include "eval/run_eval.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "reason/batch_runner.h"

namespace pith {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTimingEverySeconds = 10;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Tokens below a cap at which it cannot yet have mattered: what would be forced, and the reserve after it.
int64_t ForcedRoom(const ReasonModel& model) {
  if (model.forced == nullptr) return 1;
  const size_t forced = std::max(model.forced->close.size(), model.forced->answer.size());
  return static_cast<int64_t>(forced + model.forced->open.size()) + model.texts.answer_reserve + 2;
}

class Runner {
 public:
  Runner(const EvalBackend& backend, const EvalSettings& settings, const RunEvalOptions& options, EvalFolder& folder)
      : backend_(backend), settings_(settings), options_(options), folder_(folder) {}

  Status Run() {
    for (size_t i = 0; i < folder_.generations().size(); ++i) Note(i);
    progress_.total = EvalQuestions(settings_, static_cast<int64_t>(folder_.problems().size()));
    for (const ReasonMode mode : settings_.modes) {
      for (auto cap = settings_.caps.rbegin(); cap != settings_.caps.rend(); ++cap) {
        PITH_RETURN_IF_ERROR(RunPhase(mode, *cap, cap == settings_.caps.rbegin() ? 0 : *std::prev(cap)));
      }
    }
    return {};
  }

 private:
  struct Waiting {
    EvalKey key;
    const Problem* problem = nullptr;
    std::vector<int64_t> smaller;  // caps that are made on the way
  };

  // Where in the folder's list the streams of a question begin.
  void Note(size_t index) {
    const Generation& generation = folder_.generations()[index];
    if (generation.stream != 0) return;
    if (first_.try_emplace(generation.key, index).second) ++progress_.done;
  }

  std::span<const Generation> Streams(const EvalKey& key) const {
    const auto found = first_.find(key);
    if (found == first_.end()) return {};
    const Generation& first = folder_.generations()[found->second];
    return {&first, static_cast<size_t>(first.streams)};
  }

  Status Save(std::vector<Generation> streams) {
    const size_t index = folder_.generations().size();
    PITH_RETURN_IF_ERROR(folder_.Append(std::move(streams)));
    Note(index);
    if (folder_.generations()[index].key.cap != progress_.cap) return {};  // made on the way; its phase counts it
    for (size_t i = index; i < folder_.generations().size(); ++i) Count(folder_.generations()[i]);
    ++timing_.questions;
    return {};
  }

  void Count(const Generation& generation) {
    ++progress_.graded;
    progress_.correct += generation.correct() ? 1 : 0;
  }

  Result<Prompts> Render(const Problem& problem, int64_t cap) const {
    // A cap that only cuts was not trained for, so it is not told either.
    return backend_.render(settings_.prompt.Messages(problem.problem), settings_.force_answer ? cap : 0);
  }

  // With reasoning on, whether the switcher's score is taken all the same.
  bool IsScored() const { return backend_.model.switcher && !settings_.adapter_on_prompt; }

  // Whether two prompts are one as far as the mode reads them.
  bool SamePrompts(ReasonMode mode, const Prompts& a, const Prompts& b) const {
    const bool reads_direct = mode != ReasonMode::kOn || IsScored();
    return (!reads_direct || a.direct == b.direct) && (mode == ReasonMode::kOff || a.reason == b.reason);
  }

  // The streams of a question with the next larger cap, when they are what this cap would give too; else nothing.
  Result<std::vector<Generation>> Reusable(const Waiting& waiting, int64_t larger) const {
    std::vector<Generation> streams;
    if (larger == 0) return streams;
    EvalKey key = waiting.key;
    key.cap = larger;
    const auto found = Streams(key);
    const int64_t limit = waiting.key.cap - ForcedRoom(backend_.model);
    const bool ended = std::all_of(found.begin(), found.end(), [&](const Generation& generation) {
      return generation.finish == FinishReason::kStop && !generation.forced && !generation.error &&
             generation.tokens <= limit;
    });
    if (found.empty() || !ended) return streams;
    PITH_ASSIGN(const Prompts prompts, Render(*waiting.problem, waiting.key.cap));
    PITH_ASSIGN(const Prompts larger_prompts, Render(*waiting.problem, larger));
    if (!SamePrompts(waiting.key.mode, prompts, larger_prompts)) return streams;
    for (Generation generation : found) {
      generation.key = waiting.key;
      if (generation.reused_from == 0) generation.reused_from = larger;
      streams.push_back(std::move(generation));
    }
    return streams;
  }

  Status RunPhase(ReasonMode mode, int64_t cap, int64_t larger) {
    progress_.mode = mode;
    progress_.cap = cap;
    progress_.correct = progress_.graded = 0;
    timing_ = {.session = folder_.session(), .mode = mode, .cap = cap, .max_streams = options_.max_streams};
    std::deque<Waiting> waiting;
    for (int64_t repeat = 0; repeat < settings_.repeats; ++repeat) {
      for (const Problem& problem : folder_.problems()) {
        const Waiting next{{problem.id, repeat, cap, mode}, &problem, {}};
        const auto streams = Streams(next.key);
        for (const Generation& generation : streams) Count(generation);
        if (!streams.empty()) continue;
        PITH_ASSIGN(std::vector<Generation> reused, Reusable(next, larger));
        if (reused.empty()) {
          waiting.push_back(next);
        } else {
          PITH_RETURN_IF_ERROR(Save(std::move(reused)));
        }
      }
    }
    if (waiting.empty() && timing_.questions == 0) return {};
    const Status status = RunQuestions(std::move(waiting));
    PITH_RETURN_IF_ERROR(folder_.AppendTiming(timing_));
    return status;
  }

  Status RunQuestions(std::deque<Waiting> waiting) {
    BatchRunner runner(backend_.model, {.max_streams = options_.max_streams});
    const auto start = Clock::now();
    double last_timing = 0;
    std::unordered_map<uint64_t, Waiting> running;
    const int64_t tokens_before = progress_.tokens;
    const double seconds_before = progress_.seconds;
    const auto measure = [&] {
      timing_.tokens = runner.generated_tokens();
      timing_.steps = runner.steps();
      timing_.seconds = SecondsSince(start);
      progress_.tokens = tokens_before + timing_.tokens;
      progress_.seconds = seconds_before + timing_.seconds;
    };
    for (uint64_t next_id = 0;;) {
      if (options_.cancel != nullptr && *options_.cancel) {
        measure();
        return Error{ErrorCode::kCancelled, "interrupted; the same command goes on from here"};
      }
      while (!waiting.empty() && runner.HasRoom(settings_.parallel)) {
        Waiting question = std::move(waiting.front());
        waiting.pop_front();
        PITH_ASSIGN(question.smaller, SmallerOnTheWay(question));
        PITH_ASSIGN(const bool added, Add(runner, next_id, question));
        if (added) running.emplace(next_id++, question);
      }
      if (runner.idle()) break;
      for (auto& [id, answer] : runner.Step()) {
        const Waiting question = running.at(id);
        running.erase(id);
        PITH_RETURN_IF_ERROR(Finish(question, answer));
      }
      measure();
      if (timing_.seconds - last_timing >= kTimingEverySeconds) {
        last_timing = timing_.seconds;
        PITH_RETURN_IF_ERROR(folder_.AppendTiming(timing_));
      }
      if (options_.on_progress) options_.on_progress(progress_);
    }
    measure();
    return {};
  }

  // The smaller caps that are still missing and have the same prompt: the same streams, until they are to answer.
  Result<std::vector<int64_t>> SmallerOnTheWay(const Waiting& waiting) const {
    std::vector<int64_t> smaller;
    PITH_ASSIGN(const Prompts prompts, Render(*waiting.problem, waiting.key.cap));
    for (auto cap = settings_.caps.rbegin(); cap != settings_.caps.rend(); ++cap) {
      EvalKey key = waiting.key;
      key.cap = *cap;
      if (*cap >= waiting.key.cap || first_.contains(key)) continue;
      PITH_ASSIGN(const Prompts other, Render(*waiting.problem, *cap));
      if (SamePrompts(waiting.key.mode, other, prompts)) smaller.push_back(*cap);
    }
    return smaller;
  }

  // False when the question was recorded with its error instead.
  Result<bool> Add(BatchRunner& runner, uint64_t id, const Waiting& waiting) {
    PITH_ASSIGN(Prompts prompts, Render(*waiting.problem, waiting.key.cap));
    Question question;
    question.prompt = std::move(prompts.direct);
    if (waiting.key.mode != ReasonMode::kOff) question.reason_prompt = std::move(prompts.reason);
    AnswerOptions& options = question.options;
    options.mode = waiting.key.mode;
    options.threshold = settings_.threshold;
    options.adapter_on_prompt = settings_.adapter_on_prompt;
    if (options.mode == ReasonMode::kOn && IsScored()) {
      // Always reasoned about, and the switcher's score is known for the sweep of thresholds.
      options.mode = ReasonMode::kAuto;
      options.threshold = 0;
    }
    options.budget = waiting.key.cap;
    options.smaller_budgets = waiting.smaller;
    options.force_answer = settings_.force_answer;
    options.parallel = settings_.parallel;
    options.verify = backend_.model.verifier ? AnswerOptions::Verify::kAlways : AnswerOptions::Verify::kNever;
    options.sampling = settings_.sampling;
    options.sampling.seed = QuestionSeed(settings_.sampling.seed, waiting.key.id, waiting.key.repeat);
    const Status added = runner.Add(id, std::move(question));
    if (added.ok()) return true;
    PITH_RETURN_IF_ERROR(RecordError(waiting, added.error()));
    return false;
  }

  Status RecordError(const Waiting& waiting, const Error& error) {
    if (error.code != ErrorCode::kContextOverflow) return error.Wrap("problem '" + waiting.key.id + "'");
    Generation generation;
    generation.key = waiting.key;
    generation.finish = FinishReason::kContext;
    generation.error = error;
    std::vector<Generation> streams;
    streams.push_back(std::move(generation));
    return Save(std::move(streams));
  }

  Status Finish(const Waiting& waiting, Result<AnswerResult>& result) {
    if (!result.ok()) return RecordError(waiting, result.error());
    PITH_RETURN_IF_ERROR(Record(waiting, waiting.key.cap, *result, result->score));
    for (size_t i = 0; i < waiting.smaller.size(); ++i) {
      PITH_RETURN_IF_ERROR(Record(waiting, waiting.smaller[i], result->smaller[i], result->score));
    }
    return {};
  }

  Status Record(const Waiting& waiting, int64_t cap, AnswerResult& result, std::optional<double> score) {
    std::vector<Generation> streams;
    for (size_t i = 0; i < result.streams.size(); ++i) {
      StreamResult& stream = result.streams[i];
      Generation generation;
      generation.key = waiting.key;
      generation.key.cap = cap;
      generation.reused_from = cap == waiting.key.cap ? 0 : waiting.key.cap;
      generation.stream = static_cast<int64_t>(i);
      generation.streams = static_cast<int64_t>(result.streams.size());
      generation.route = result.route;
      generation.tokens = static_cast<int64_t>(stream.tokens.size());
      generation.reasoning_tokens = stream.reasoning_tokens;
      generation.prompt_tokens = result.prompt_tokens;
      generation.finish = stream.finish;
      generation.forced = stream.answer_forced;
      generation.truncated = stream.truncated;
      generation.answer = settings_.prompt.Extract(stream.text, stream.truncated);
      generation.verdict = GradeAnswer(waiting.problem->answer, generation.answer);
      generation.verifier_score = stream.verifier_score;
      generation.switcher_score = score;
      generation.seconds = stream.seconds;
      generation.text = std::move(stream.text);
      generation.reasoning = std::move(stream.reasoning);
      streams.push_back(std::move(generation));
    }
    return Save(std::move(streams));
  }

  const EvalBackend& backend_;
  const EvalSettings& settings_;
  const RunEvalOptions& options_;
  EvalFolder& folder_;
  EvalProgress progress_;
  PhaseTiming timing_;
  std::map<EvalKey, size_t> first_;
};

}  // namespace

Status RunEval(const EvalBackend& backend, const EvalSettings& settings, const RunEvalOptions& options,
               EvalFolder& folder) {
  PITH_RETURN_IF_ERROR(ValidateSettings(settings));
  if (options.max_streams < 1) return Error{ErrorCode::kInvalidArgument, "streams at the same time: at least 1"};
  return Runner(backend, settings, options, folder).Run();
}

int64_t EvalQuestions(const EvalSettings& settings, int64_t problems) {
  return problems * settings.repeats * static_cast<int64_t>(settings.caps.size() * settings.modes.size());
}

Verdict GradeAnswer(std::string_view gold, const std::optional<ExtractedAnswer>& answer) {
  if (!answer) return Verdict::kNoAnswer;
  const auto key = GoldAnswer(gold);
  return key ? CompareAnswers(key->text, answer->text) : Verdict::kNoAnswer;
}

int64_t Regrade(const PromptFormat& format, const std::vector<Problem>& problems,
                std::vector<Generation>& generations) {
  std::unordered_map<std::string_view, std::string_view> gold;
  for (const Problem& problem : problems) gold[problem.id] = problem.answer;
  int64_t changed = 0;
  for (Generation& generation : generations) {
    const auto answer = format.Extract(generation.text, generation.truncated);
    const Verdict verdict = GradeAnswer(gold[generation.key.id], answer);
    const bool same_text =
        answer.has_value() == generation.answer.has_value() && (!answer || answer->text == generation.answer->text);
    if (same_text && verdict == generation.verdict) continue;
    generation.answer = answer;
    generation.verdict = verdict;
    ++changed;
  }
  return changed;
}

}  // namespace pith
