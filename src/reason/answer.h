// One question through the execution policy: route, think within a budget, N streams, verify, vote.
//
//   auto loaded = LoadedReasonModel::Load(*text_model, {.adapter = dir});
//   Question question;
//   auto prompts = RenderPrompts(*text_model, loaded->model().texts, messages, budget);
//   question.prompt = prompts->direct; question.reason_prompt = prompts->reason;
//   question.options = {.mode = ReasonMode::kAuto, .budget = 1024, .parallel = 8};
//   auto answer = AnswerQuestion(loaded->model(), std::move(question));
//
// Many questions at once, with their streams in one batch: batch_runner.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/sampler.h"
#include "reason/budget.h"
#include "reason/reason_model.h"
#include "reason/vote.h"

namespace pith {

enum class ReasonMode { kAuto, kOn, kOff };
enum class Route { kDirect, kReason };
const char* RouteName(Route route);  // "direct", "reason"

struct StreamProgress {
  int64_t tokens = 0;
  bool thinking = false;
  bool done = false;
};

struct AnswerOptions {
  // kAuto: the switcher decides (needs one; see DefaultMode).
  ReasonMode mode = ReasonMode::kOff;
  std::optional<double> threshold;  // of the switcher, 0..1; nothing = the head's own
  // Most generated tokens of one stream, forced ones too.
  int64_t budget = 1024;
  // The same question with smaller budgets, in descending order: what each of them would answer, at the cost of the
  // part that differs. A stream that would have to answer earlier is forked there. See AnswerResult::smaller.
  std::vector<int64_t> smaller_budgets;
  // For comparison only (kOn): the adapter is on for the prompt too, as for adapters that are trained without the mask.
  // The prompt's keys and values are then the adapter's, and of no use to the base.
  bool adapter_on_prompt = false;
  // Make a stream answer when its budget ends, instead of cutting it.
  bool force_answer = true;
  // Streams, 1..256. When kAuto chooses the direct route there is one. More than one needs a temperature above 0.
  int64_t parallel = 1;
  // Score finished streams with the verifier (when there is one and there are several streams, or always).
  enum class Verify { kNever, kVote, kAlways } verify = Verify::kVote;
  // Stop the remaining streams once they cannot change the vote.
  bool early_stop = false;
  SamplingParams sampling;  // stream i draws from (seed, first_stream + i, position)
  uint64_t first_stream = 0;
  std::vector<std::string> stop;  // stop strings, on the visible answer
  bool ignore_eos = false;
  // Keep the verification states in the result, for training heads; also the pooled state of the prompt.
  bool keep_states = false;
  // Keep what the policy gradient needs: which tokens were drawn, with which probability (StreamResult::drawn).
  bool keep_log_probs = false;

  // Text of stream `stream` as it comes.
  std::function<void(int64_t stream, std::string_view text, bool thought)> on_text;
  std::function<void(int64_t done, int64_t total)> on_prefill;
  // After every step in which streams moved.
  std::function<void(std::span<const StreamProgress> streams)> on_progress;
  // Known once the switcher has spoken (or at once); the score when there is one.
  std::function<void(Route route, std::optional<double> score)> on_route;
  const std::atomic<bool>* cancel = nullptr;
};

// kAuto with a switcher, else kOff.
ReasonMode DefaultMode(const ReasonModel& model);

struct Question {
  std::vector<int32_t> prompt;         // as the chat template rendered it
  std::vector<int32_t> reason_prompt;  // the same with the budget template; empty = the same
  AnswerOptions options;
  // A conversation's sequence: what it already holds of the prompt is not computed again (but for routing, which needs
  // all states). Afterwards it holds the prompt and the chosen response. Borrowed; null = none.
  Sequence* sequence = nullptr;
};

struct StreamResult {
  std::string text;             // the visible answer
  std::string reasoning;        // the thoughts
  std::vector<int32_t> tokens;  // all generated tokens, forced ones too, without the end token
  int64_t reasoning_tokens = 0;
  FinishReason finish = FinishReason::kStop;
  bool answer_forced = false;  // the answer prefix was forced
  bool truncated = false;      // the visible answer did not come to its own end
  std::optional<ExtractedAnswer> answer;
  std::optional<double> verifier_score;
  double weight = 1;   // in the vote: the score, or 1
  int candidate = -1;  // of the vote; -1 = no answer, or not counted (cancelled or decided without it)
  double seconds = 0;  // from the first token to the last
  std::vector<float> verification_state;  // with keep_states
  // With keep_log_probs: for each of `tokens`, and for end_token if there is one, the natural log of its probability
  // under the temperature before any filter (at temperature 0 under 1); NaN where it was forced, not drawn.
  std::vector<float> drawn;
  int32_t end_token = -1;  // that ended it; no part of `tokens`; -1 = another reason

  int64_t answer_tokens() const { return static_cast<int64_t>(tokens.size()) - reasoning_tokens; }
};

struct AnswerTimings {
  double prefill_seconds = 0;      // from the start to the end of the prompt
  double first_token_seconds = 0;  // from the start to the first token
  double decode_seconds = 0;       // from the end of the prompt to the last token, verification included
  double total_seconds = 0;
};

struct AnswerResult {
  Route route = Route::kDirect;
  std::optional<double> score;  // of the switcher, when it was asked
  double threshold = 0;         // that it was compared with
  // Of the chosen stream: the heaviest of the winning candidate (then shortest, then first in byte order); without a
  // winner the heaviest of all.
  int64_t chosen = 0;
  std::optional<std::string> answer;  // the winner of the vote
  std::vector<StreamResult> streams;
  VoteResult vote;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;         // of the prompt, found in the sequence
  int64_t prefill_tokens = 0;        // computed for the prompt
  int64_t prefill_tokens_saved = 0;  // that the other streams did not compute again
  int64_t verification_tokens = 0;   // computed for verification
  int64_t tokens_saved_at_most = 0;  // by early stop: what the stopped streams could still have used
  AnswerTimings timings;
  std::vector<float> pooled_state;  // with keep_states
  // With smaller_budgets, in their order: exactly what the question gives with that budget (but for timings, and what
  // is counted for all of them together here). Empty within.
  std::vector<AnswerResult> smaller;

  const StreamResult& best() const { return streams[static_cast<size_t>(chosen)]; }
  int64_t generated_tokens() const;
};

// kInvalidArgument names the option: kAuto without a switcher, ranges, several streams at temperature 0, an empty
// prompt, smaller budgets together with early_stop, keep_log_probs or a conversation, adapter_on_prompt with another mode than
// kOn, with kept states or a conversation. kContextOverflow when the prompt
// does not fit. Being cancelled is not an error: what was generated is returned.
Result<AnswerResult> AnswerQuestion(const ReasonModel& model, Question question);
// What AnswerQuestion would refuse, without running anything.
Status ValidateQuestion(const ReasonModel& model, const Question& question);

}  // namespace pith
