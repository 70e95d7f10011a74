#include "reason/question_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/sampler.h"

namespace pith {

// One response and the sequence that it is computed on.
struct QuestionRun::Stream {
  enum class State { kDecoding, kFlushing, kVerifying, kDone };
  Stream(Sequence held, std::unique_ptr<Response> begun)
      : sequence(std::move(held)), owned_response(std::move(begun)), response(*owned_response) {}

  int64_t index = 0;  // which random numbers it draws
  size_t level = 0;   // 0 = of the budget, i + 1 = of smaller_budgets[i]
  State state = State::kDecoding;
  std::optional<Sequence> sequence;
  std::unique_ptr<Response> owned_response;
  Response& response;
  // By level: what this stream would be with a smaller budget, as long as that is the same tokens.
  std::vector<std::unique_ptr<Response>> shadows;
  int64_t inherited = 0;      // tokens that the stream from which it was forked has generated
  std::vector<int32_t> feed;  // tokens that the sequence does not hold yet
  std::vector<int32_t> seen;  // prompt and response, for the repetition penalty; empty without one
  std::vector<float> drawn;   // with keep_log_probs
  int32_t end_token = -1;
  std::optional<ExtractedAnswer> extracted;
  Answer answer;
  bool verifies = false;
  std::vector<float> verification_state;
  std::optional<double> score;
  bool voted = false;  // is in vote_
  double first_token_seconds = 0;
  double last_token_seconds = 0;
  double weight() const { return score.value_or(1.0); }
  // A response that was broken off has no say.
  bool counts() const {
    return response.finish() != FinishReason::kCancelled && response.finish() != FinishReason::kDecided;
  }
};

Result<std::unique_ptr<QuestionRun>> QuestionRun::Create(const ReasonModel& model, Question question) {
  PITH_RETURN_IF_ERROR(ValidateQuestion(model, question));
  PITH_ASSIGN(Sampler sampler, Sampler::Create(question.options.sampling));
  auto run = std::unique_ptr<QuestionRun>(new QuestionRun(model, std::move(question), std::move(sampler)));
  run->Start();
  return run;
}

QuestionRun::QuestionRun(const ReasonModel& model, Question question, Sampler sampler)
    : model_(model), question_(std::move(question)), sampler_(std::move(sampler)) {}

QuestionRun::~QuestionRun() = default;

void QuestionRun::Start() {
  const AnswerOptions& options = question_.options;
  prompt_sequence_ = question_.sequence != nullptr ? *question_.sequence : model_.engine->NewSequence();
  if (question_.reason_prompt.empty()) question_.reason_prompt = question_.prompt;
  const bool route_by_score = options.mode == ReasonMode::kAuto;
  if (route_by_score || options.keep_states) {
    // The pooled state is of the whole prompt, so all of it is computed.
    prompt_sequence_->Truncate(0);
    pool_.emplace(model_.engine->hidden(), model_.switcher ? model_.switcher->pooling : StatePooling{});
  }
  if (!route_by_score) {
    route_ = options.mode == ReasonMode::kOn ? Route::kReason : Route::kDirect;
    routed_ = true;
  }
  // With kept states the direct prompt comes first in any case: heads are trained on it.
  BeginPrompt(route_ == Route::kReason && !pool_ ? question_.reason_prompt : question_.prompt);
  result_.cached_tokens = static_cast<int64_t>(prefilled_);
  if (routed_ && options.on_route) options.on_route(route_, std::nullopt);
}

void QuestionRun::BeginPrompt(const std::vector<int32_t>& tokens) {
  prompt_ = &tokens;
  const auto total = static_cast<int64_t>(tokens.size());
  // At least the last token is computed again: its logits are wanted.
  const int64_t keep = std::min(prompt_sequence_->CommonPrefix(tokens, 0, total), total - 1);
  prompt_sequence_->Truncate(keep);
  prefilled_ = static_cast<size_t>(keep);
}

void QuestionRun::Collect(int64_t* prefill_tokens, std::vector<Want>* wants) {
  prefilling_ = 0;
  if (phase_ == Phase::kPrompt) {
    const auto left = static_cast<int64_t>(prompt_->size() - prefilled_);
    prefilling_ = std::min(left, *prefill_tokens);
    if (prefilling_ == 0) return;
    *prefill_tokens -= prefilling_;
    const auto tokens = std::span(*prompt_).subspan(prefilled_, static_cast<size_t>(prefilling_));
    const Adapter* prompt_adapter = question_.options.adapter_on_prompt ? model_.adapter.get() : nullptr;
    wants->push_back({kPrompt,
                      {&*prompt_sequence_, tokens, prompt_adapter, prefilling_ == left ? Rows::kLast : Rows::kNone,
                       pool_ ? Rows::kAll : Rows::kNone}});
    return;
  }
  if (phase_ != Phase::kStreams) return;
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = *streams_[i];
    StepItem item{&*stream.sequence, stream.feed, adapter(), Rows::kNone, Rows::kNone};
    switch (stream.state) {
      case Stream::State::kDone: continue;
      case Stream::State::kDecoding: item.logits = Rows::kLast; break;
      case Stream::State::kFlushing: break;
      case Stream::State::kVerifying:
        item.tokens = model_.verification;
        item.adapter = model_.verification_adapter ? model_.adapter.get() : nullptr;
        item.states = Rows::kLast;
        break;
    }
    wants->push_back({static_cast<int64_t>(i), item});
  }
}

void QuestionRun::Take(int64_t part, std::span<const float> logits, std::span<const float> states) {
  if (phase_ == Phase::kDone) return;  // another item failed
  if (part == kPrompt) {
    prefilled_ += static_cast<size_t>(prefilling_);
    result_.prefill_tokens += prefilling_;
    if (pool_) pool_->Push(states);
    if (question_.options.on_prefill) {
      question_.options.on_prefill(static_cast<int64_t>(prefilled_), static_cast<int64_t>(prompt_->size()));
    }
    if (prefilled_ == prompt_->size()) EndPrompt(logits);
    return;
  }
  Stream& stream = *streams_[static_cast<size_t>(part)];
  switch (stream.state) {
    case Stream::State::kDone: return;
    case Stream::State::kDecoding:
      stream.feed.clear();
      Advance(stream, logits);
      return;
    case Stream::State::kFlushing:
      stream.feed.clear();
      if (stream.verifies) {
        stream.state = Stream::State::kVerifying;
      } else {
        EndStream(stream);
      }
      return;
    case Stream::State::kVerifying:
      result_.verification_tokens += static_cast<int64_t>(model_.verification.size());
      if (model_.verifier) stream.score = model_.verifier->Score(states);
      if (question_.options.keep_states) stream.verification_state.assign(states.begin(), states.end());
      EndStream(stream);
      return;
  }
}

void QuestionRun::EndPrompt(std::span<const float> logits) {
  if (pool_) {
    const std::vector<float> pooled = pool_->Pooled();
    pool_.reset();
    if (question_.options.keep_states) result_.pooled_state = pooled;
    if (!routed_) {
      result_.score = model_.switcher->Score(pooled);
      result_.threshold = question_.options.threshold.value_or(model_.switcher->threshold);
      route_ = *result_.score >= result_.threshold ? Route::kReason : Route::kDirect;
      routed_ = true;
      if (question_.options.on_route) question_.options.on_route(route_, result_.score);
    }
    if (route_ == Route::kReason && question_.reason_prompt != question_.prompt) {
      // Only the tail differs: the budget template and the header of the answer.
      BeginPrompt(question_.reason_prompt);
      return;
    }
  }
  BeginStreams(logits);
}

void QuestionRun::BeginStreams(std::span<const float> logits) {
  const AnswerOptions& options = question_.options;
  phase_ = Phase::kStreams;
  result_.route = route_;
  result_.prompt_tokens = prompt_sequence_->length();
  result_.timings.prefill_seconds = Seconds();
  const int64_t count = options.mode == ReasonMode::kAuto && route_ == Route::kDirect ? 1 : options.parallel;
  result_.streams.resize(static_cast<size_t>(count));
  result_.prefill_tokens_saved = (count - 1) * result_.prompt_tokens;
  const int64_t verification = Verifies() ? static_cast<int64_t>(model_.verification.size()) : 0;
  room_ = std::max<int64_t>(model_.engine->context() - result_.prompt_tokens - verification, 0);
  opened_ = PromptOpensThinking(*model_.tokenizer, *prompt_);
  for (int64_t i = 0; i < count; ++i) {
    auto stream = std::make_unique<Stream>(*prompt_sequence_, std::make_unique<Response>(OptionsOf(i, 0)));
    stream->index = i;
    stream->shadows.resize(options.smaller_budgets.size() + 1);
    for (size_t level = 1; level < stream->shadows.size(); ++level) {
      stream->shadows[level] = std::make_unique<Response>(OptionsOf(i, level));
    }
    if (options.sampling.repetition_penalty != 1.0) stream->seen = *prompt_;
    streams_.push_back(std::move(stream));
  }
  prompt_sequence_.reset();
  for (int64_t i = 0; i < count && !done(); ++i) {
    Stream& stream = *streams_[static_cast<size_t>(i)];
    Follow(stream, {}, true);
    Advance(stream, logits);
  }
  // Forks of the very beginning go on from the same logits.
  for (auto i = static_cast<size_t>(count); i < streams_.size() && !done(); ++i) {
    Stream& stream = *streams_[i];
    if (stream.state == Stream::State::kDecoding && stream.feed.empty()) Advance(stream, logits);
  }
}

ResponseOptions QuestionRun::OptionsOf(int64_t index, size_t level) const {
  const AnswerOptions& options = question_.options;
  const int64_t budget = level == 0 ? options.budget : options.smaller_budgets[level - 1];
  ResponseOptions response;
  response.tokenizer = model_.tokenizer;
  response.forced = model_.forced;
  response.plan = {.cap = std::min(budget, room_),
                   .at_cap = budget <= room_ ? FinishReason::kLength : FinishReason::kContext,
                   .force_answer = options.force_answer,
                   .reserve = model_.texts.answer_reserve};
  response.force_open = route_ == Route::kReason && !opened_;
  response.thinking = opened_;
  if (!options.ignore_eos) response.stop_ids = model_.stop_ids;
  response.stop = options.stop;
  if (options.on_text && level == 0) {
    response.on_text = [this, index](std::string_view text, bool thought) {
      question_.options.on_text(index, text, thought);
    };
  }
  return response;
}

// A shadow that is not done and has nothing else to force than its stream is the same so far.
void QuestionRun::Follow(Stream& stream, std::span<const int32_t> tokens, bool forced) {
  for (size_t level = 1; level < stream.shadows.size(); ++level) {
    auto& shadow = stream.shadows[level];
    if (shadow == nullptr) continue;
    if (forced && !tokens.empty()) shadow->TakeForced();
    if (!forced) shadow->Push(tokens);
    const bool same = !shadow->done() && std::ranges::equal(shadow->forced(), stream.response.forced());
    if (!same) Branch(stream, level, std::move(shadow));
  }
}

void QuestionRun::Branch(const Stream& stream, size_t level, std::unique_ptr<Response> response) {
  auto fork = std::make_unique<Stream>(*stream.sequence, std::move(response));
  fork->index = stream.index;
  fork->level = level;
  fork->inherited = static_cast<int64_t>(fork->response.tokens().size());
  while (!fork->response.forced().empty()) fork->response.TakeForced();
  const std::vector<int32_t>& tokens = fork->response.tokens();
  const int64_t held = fork->sequence->length() - result_.prompt_tokens;
  fork->feed.assign(tokens.begin() + held, tokens.end());
  if (question_.options.sampling.repetition_penalty != 1.0) {
    fork->seen = *prompt_;
    fork->seen.insert(fork->seen.end(), tokens.begin(), tokens.end());
  }
  const auto common = std::min(static_cast<int64_t>(stream.drawn.size()), fork->inherited);
  fork->drawn.assign(stream.drawn.begin(), stream.drawn.begin() + common);
  fork->first_token_seconds = stream.first_token_seconds;
  fork->last_token_seconds = stream.last_token_seconds;
  streams_.push_back(std::move(fork));
  if (streams_.back()->response.done()) EndResponse(*streams_.back());
}

// `logits` follow everything that the stream's sequence holds.
void QuestionRun::Advance(Stream& stream, std::span<const float> logits) {
  Response& response = stream.response;
  const auto feed_forced = [&] {
    while (!response.forced().empty()) {
      const auto forced = response.TakeForced();
      stream.feed.insert(stream.feed.end(), forced.begin(), forced.end());
      Follow(stream, forced, true);
    }
  };
  feed_forced();
  if (!response.done() && stream.feed.empty()) {
    const auto position = static_cast<uint64_t>(stream.sequence->length());
    const auto next = sampler_.Sample(logits, stream.seen,
                                      question_.options.first_stream + static_cast<uint64_t>(stream.index), position);
    if (!next.ok()) {
      Fail(next.error());
      return;
    }
    stream.last_token_seconds = Seconds();
    if (stream.first_token_seconds == 0) stream.first_token_seconds = stream.last_token_seconds;
    const size_t before = response.tokens().size();
    response.Push({&next->token, 1});
    const bool taken = response.tokens().size() > before;
    if (taken) stream.feed.push_back(next->token);
    Follow(stream, {&next->token, 1}, false);
    if (question_.options.keep_log_probs) {
      // An end token that something is forced after has not ended it.
      const bool ended = !taken && response.done();
      if (ended) stream.end_token = next->token;
      if (taken || ended) {
        stream.drawn.resize(before, std::nanf(""));
        stream.drawn.push_back(LogProbability(logits, next->token, question_.options.sampling.temperature));
      }
    }
    feed_forced();
  }
  if (!stream.seen.empty()) stream.seen.insert(stream.seen.end(), stream.feed.begin(), stream.feed.end());
  if (response.done()) EndResponse(stream);
}

bool QuestionRun::Verifies() const {
  using Verify = AnswerOptions::Verify;
  const auto tokens = static_cast<int64_t>(model_.verification.size());
  if (tokens == 0 || question_.options.verify == Verify::kNever) return false;
  if (result_.prompt_tokens + tokens > model_.engine->context()) return false;
  return question_.options.verify == Verify::kAlways || result_.streams.size() > 1;
}

void QuestionRun::EndResponse(Stream& stream) {
  if (stream.counts()) {
    stream.extracted = ExtractAnswer(stream.response.text(), {.truncated = stream.response.truncated()});
    if (stream.extracted) stream.answer = Answer(stream.extracted->text);
  }
  // Without an answer it has no say, whatever the verifier thinks of it.
  stream.verifies = Verifies() && stream.counts() && (stream.extracted || question_.options.keep_states);
  if (!stream.feed.empty() && (stream.verifies || question_.sequence != nullptr)) {
    stream.state = Stream::State::kFlushing;
  } else if (stream.verifies) {
    stream.state = Stream::State::kVerifying;
  } else {
    EndStream(stream);
  }
}

void QuestionRun::EndStream(Stream& stream) {
  stream.state = Stream::State::kDone;
  // Its keys and values are needed only by a conversation that goes on.
  if (question_.sequence == nullptr) stream.sequence.reset();
}

void QuestionRun::StopIfDecided() {
  if (!question_.options.early_stop || streams_.size() < 2) return;
  int64_t open = 0;
  int64_t decoding = 0;
  bool news = false;
  for (const auto& stream : streams_) {
    if (stream->state != Stream::State::kDone) ++open;
    if (stream->state == Stream::State::kDecoding) ++decoding;
    if (stream->state != Stream::State::kDone || stream->voted) continue;
    stream->voted = news = true;
    if (stream->counts()) vote_.Add({stream->answer, stream->weight()});
  }
  if (decoding == 0 || !news || !vote_.Decided(open)) return;
  for (const auto& stream : streams_) {
    if (stream->state != Stream::State::kDecoding) continue;
    result_.tokens_saved_at_most +=
        std::min(question_.options.budget, room_) - static_cast<int64_t>(stream->response.tokens().size());
    stream->response.Finish(FinishReason::kDecided);
    EndStream(*stream);
  }
}

void QuestionRun::Cancel() {
  if (phase_ == Phase::kPrompt) {
    // Nothing was generated: one empty response says so.
    prompt_sequence_.reset();
    result_.route = route_;
    result_.prompt_tokens = static_cast<int64_t>(prompt_->size());
    ResponseOptions options;
    options.tokenizer = model_.tokenizer;
    streams_.push_back(
        std::make_unique<Stream>(model_.engine->NewSequence(), std::make_unique<Response>(std::move(options))));
    result_.streams.resize(1);
  }
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = *streams_[i];
    for (size_t level = 1; level < stream.shadows.size(); ++level) {
      if (stream.shadows[level] == nullptr) continue;
      stream.shadows[level]->Finish(FinishReason::kCancelled);
      Branch(stream, level, std::move(stream.shadows[level]));
    }
    if (stream.state == Stream::State::kDecoding) stream.response.Finish(FinishReason::kCancelled);
    EndStream(stream);
  }
  phase_ = Phase::kDone;
}

void QuestionRun::EndStep() {
  if (done()) return;
  const AnswerOptions& options = question_.options;
  if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) {
    Cancel();
    return;
  }
  if (phase_ != Phase::kStreams) return;
  StopIfDecided();
  const bool all_done = std::all_of(streams_.begin(), streams_.end(),
                                    [](const auto& stream) { return stream->state == Stream::State::kDone; });
  if (options.on_progress) {
    std::vector<StreamProgress> progress;
    for (const auto& stream : streams_) {
      if (stream->level != 0) continue;
      const Response& response = stream->response;
      progress.push_back({static_cast<int64_t>(response.tokens().size()), response.thinking(), response.done()});
    }
    options.on_progress(progress);
  }
  if (all_done) phase_ = Phase::kDone;
}

void QuestionRun::Fail(Error error) {
  error_ = std::move(error);
  phase_ = Phase::kDone;
}

int64_t QuestionRun::live_streams() const {
  if (phase_ == Phase::kDone) return 0;
  if (phase_ == Phase::kPrompt) return question_.options.parallel;
  return std::count_if(streams_.begin(), streams_.end(),
                       [](const auto& stream) { return stream->state != Stream::State::kDone; });
}

int64_t QuestionRun::generated_tokens() const {
  int64_t tokens = 0;
  for (const auto& stream : streams_) {
    tokens += static_cast<int64_t>(stream->response.tokens().size()) - stream->inherited;
  }
  return tokens;
}

// The streams of one budget, their vote, and the response to show.
void QuestionRun::FillResult(size_t level, AnswerResult* result) {
  std::vector<Ballot> ballots;
  std::vector<int> voters;  // stream of each ballot
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = *streams_[i];
    if (stream.level != level) continue;
    const Response& response = stream.response;
    StreamResult& out = result->streams[static_cast<size_t>(stream.index)];
    out.text = response.text();
    out.reasoning = response.reasoning();
    out.tokens = response.tokens();
    out.reasoning_tokens = response.reasoning_tokens();
    out.finish = response.finish();
    out.answer_forced = response.answer_forced();
    out.truncated = response.truncated();
    out.answer = stream.extracted;
    out.verifier_score = stream.score;
    out.weight = stream.weight();
    out.seconds = stream.last_token_seconds - stream.first_token_seconds;
    out.verification_state = std::move(stream.verification_state);
    if (question_.options.keep_log_probs) {
      out.end_token = stream.end_token;
      out.drawn = std::move(stream.drawn);
      out.drawn.resize(out.tokens.size() + (out.end_token >= 0 ? 1 : 0), std::nanf(""));
    }
    if (stream.first_token_seconds > 0 && (result->timings.first_token_seconds == 0 ||
                                           stream.first_token_seconds < result->timings.first_token_seconds)) {
      result->timings.first_token_seconds = stream.first_token_seconds;
    }
    if (!stream.counts()) continue;
    ballots.push_back({stream.answer, stream.weight()});
    voters.push_back(static_cast<int>(stream.index));
  }
  result->vote = Vote(ballots);
  for (size_t c = 0; c < result->vote.candidates.size(); ++c) {
    for (int& ballot : result->vote.candidates[c].ballots) {
      ballot = voters[static_cast<size_t>(ballot)];  // from here on, indices of streams
      result->streams[static_cast<size_t>(ballot)].candidate = static_cast<int>(c);
    }
  }
  if (result->vote.has_winner()) result->answer = result->vote.candidates[0].answer;

  // The response that is shown, by what it is and not by its number.
  const auto better = [&](size_t a, size_t b) {
    const StreamResult& x = result->streams[a];
    const StreamResult& y = result->streams[b];
    if ((x.candidate == 0) != (y.candidate == 0)) return x.candidate == 0;
    if (x.weight != y.weight) return x.weight > y.weight;
    if (x.truncated != y.truncated) return y.truncated;
    if (x.text.size() != y.text.size()) return x.text.size() < y.text.size();
    return x.text < y.text;
  };
  for (size_t i = 1; i < result->streams.size(); ++i) {
    if (better(i, static_cast<size_t>(result->chosen))) result->chosen = static_cast<int64_t>(i);
  }
}

Result<AnswerResult> QuestionRun::Finish() {
  if (error_) return *error_;
  const size_t streams = result_.streams.size();
  for (size_t level = 1; level <= question_.options.smaller_budgets.size(); ++level) {
    AnswerResult smaller;
    smaller.route = result_.route;
    smaller.score = result_.score;
    smaller.threshold = result_.threshold;
    smaller.prompt_tokens = result_.prompt_tokens;
    smaller.streams.resize(streams);
    FillResult(level, &smaller);
    result_.smaller.push_back(std::move(smaller));
  }
  FillResult(0, &result_);
  if (question_.sequence != nullptr) {
    Stream& chosen = *streams_[static_cast<size_t>(result_.chosen)];
    if (chosen.sequence) {
      *question_.sequence = *std::move(chosen.sequence);
      // Without the verification.
      question_.sequence->Truncate(result_.prompt_tokens + static_cast<int64_t>(chosen.response.tokens().size()));
    }
  }
  result_.timings.total_seconds = Seconds();
  result_.timings.decode_seconds = result_.timings.total_seconds - result_.timings.prefill_seconds;
  return std::move(result_);
}

}  // namespace pith
