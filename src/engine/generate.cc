#include "engine/generate.h"

#include <chrono>

#include "model/stop_strings.h"

namespace pith {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Splits generated text in thoughts and answer at the closing tag, and applies stop strings to the answer.
class TextRouter {
 public:
  TextRouter(const GenerateOptions& options, GenerateResult* result)
      : options_(options),
        result_(result),
        close_({std::string(kThinkClose)}),
        stops_(options.stop),
        thinking_(options.reason) {}

  bool thinking() const { return thinking_; }
  bool stopped() const { return stops_.stopped(); }

  void Push(std::string_view piece) {
    if (!thinking_) {
      Answer(stops_.Push(piece));
      return;
    }
    // The matcher says where the tag is; what follows it in this piece is the beginning of the answer.
    seen_ += piece;
    Thought(close_.Push(piece));
    if (!close_.stopped()) return;
    thinking_ = false;
    const size_t at = seen_.find(kThinkClose);
    std::string rest = seen_.substr(at + kThinkClose.size());
    seen_.clear();
    Answer(stops_.Push(rest));
  }

  void Flush() {
    if (thinking_) {
      Thought(close_.Flush());
    } else {
      Answer(stops_.Flush());
    }
  }

 private:
  void Thought(const std::string& text) {
    if (text.empty()) return;
    result_->reasoning += text;
    if (options_.on_text) options_.on_text(text, true);
  }

  void Answer(std::string text) {
    // The line breaks between the closing tag and the answer belong to neither.
    if (options_.reason && result_->text.empty()) text.erase(0, std::min(text.find_first_not_of('\n'), text.size()));
    if (text.empty()) return;
    result_->text += text;
    if (options_.on_text) options_.on_text(text, false);
  }

  const GenerateOptions& options_;
  GenerateResult* result_;
  StopMatcher close_;
  StopMatcher stops_;
  bool thinking_;
  std::string seen_;  // thoughts so far
};

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kContext: return "context";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "stop";
}

Result<GenerateResult> Generate(TextModel& model, Sequence& sequence, const std::vector<int32_t>& prompt,
                                const GenerateOptions& options) {
  if (prompt.empty()) return Error{ErrorCode::kInvalidArgument, "the prompt is empty"};
  if (options.max_tokens < 1) return Error{ErrorCode::kInvalidArgument, "max-tokens must be at least 1"};
  PITH_ASSIGN(Sampler sampler, Sampler::Create(options.sampling));
  Engine& engine = model.engine();
  const auto start = Clock::now();
  const auto cancelled = [&] { return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed); };

  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());
  // At least the last prompt token is computed again: its logits are wanted.
  const int64_t keep = std::min(sequence.CommonPrefix(prompt, 0, result.prompt_tokens), result.prompt_tokens - 1);
  sequence.Truncate(keep);
  result.cached_tokens = keep;
  const Adapter* adapter = options.adapter;
  PrefillOptions prefill;
  prefill.cancel = options.cancel;
  if (options.on_prefill) {
    prefill.on_progress = [&](int64_t done) { options.on_prefill(keep + done, result.prompt_tokens); };
  }
  auto output = engine.Prefill(sequence, std::span(prompt).subspan(static_cast<size_t>(keep)), nullptr, prefill);
  if (!output.ok() && output.error().code == ErrorCode::kCancelled) {
    result.finish = FinishReason::kCancelled;
    return result;
  }
  PITH_RETURN_IF_ERROR(output);
  result.prefill_seconds = SecondsSince(start);

  std::vector<int32_t> forced;
  if (options.reason) {
    PITH_ASSIGN(forced, model.tokenizer()->Encode(kThinkOpen, {.parse_special = true, .special_ranges = {}}));
    if (static_cast<int64_t>(forced.size()) > options.max_tokens)
      forced.resize(static_cast<size_t>(options.max_tokens));
  }
  IncrementalDetokenizer detokenizer(model.tokenizer());
  TextRouter router(options, &result);
  std::vector<int32_t> seen(prompt);
  const auto decode_start = Clock::now();
  const auto step = [&](std::span<const int32_t> tokens) -> Status {
    const StepItem item{&sequence, tokens, adapter, Rows::kLast, Rows::kNone};
    output = engine.Step({&item, 1});
    return output.ok() ? Status() : Status(output.error());
  };
  const auto finish = [&](FinishReason reason) {
    router.Push(detokenizer.Flush());
    router.Flush();
    result.finish = reason;
    result.decode_seconds = SecondsSince(decode_start);
    return result;
  };

  if (!forced.empty()) {
    if (sequence.length() + static_cast<int64_t>(forced.size()) > engine.context())
      return finish(FinishReason::kContext);
    PITH_RETURN_IF_ERROR(step(forced));
    result.tokens = forced;
    result.reasoning_tokens = static_cast<int64_t>(forced.size());
    seen.insert(seen.end(), forced.begin(), forced.end());
  }
  while (true) {
    if (static_cast<int64_t>(result.tokens.size()) >= options.max_tokens) return finish(FinishReason::kLength);
    if (cancelled()) return finish(FinishReason::kCancelled);
    PITH_ASSIGN(const SampledToken next,
                sampler.Sample(output->LogitsRow(0), seen, options.stream, static_cast<uint64_t>(sequence.length())));
    if (result.first_token_seconds == 0) result.first_token_seconds = SecondsSince(start);
    if (!options.ignore_eos && model.IsStop(next.token)) return finish(FinishReason::kStop);
    result.tokens.push_back(next.token);
    seen.push_back(next.token);
    if (router.thinking()) ++result.reasoning_tokens;
    router.Push(detokenizer.Push(next.token));
    if (router.stopped()) return finish(FinishReason::kStop);
    if (sequence.length() + 1 > engine.context()) return finish(FinishReason::kContext);
    // The last token allowed needs no logits, but its keys and values: the next turn of a chat builds on them.
    PITH_RETURN_IF_ERROR(step({&result.tokens.back(), 1}));
  }
}

}  // namespace pith
