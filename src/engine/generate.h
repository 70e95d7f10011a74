// One answer to one prompt: prefill on what a sequence already holds, decode, stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/sampler.h"
#include "engine/text_model.h"

namespace pith {

// The tags between which a reasoning mode thinks. They are text, not tokens: most vocabularies have no token for them.
inline constexpr std::string_view kThinkOpen = "<think>\n";
inline constexpr std::string_view kThinkClose = "</think>";

struct GenerateOptions {
  SamplingParams sampling;
  uint64_t stream = 0;            // which stream of random numbers
  int64_t max_tokens = 512;       // all generated tokens, forced ones too; >= 1
  std::vector<std::string> stop;  // stop strings; they act on the visible answer, not on thoughts
  // Reasoning mode: `<think>\n` is forced as the first response tokens. The prompt is always prefilled by the base; the
  // adapter, if any, is on from the first response token (rule 1: one definition of the mask).
  bool reason = false;
  const Adapter* adapter = nullptr;
  bool ignore_eos = false;
  // Text as it is generated; `thought` tells which part it belongs to. Tags are not passed on.
  std::function<void(std::string_view text, bool thought)> on_text;
  std::function<void(int64_t done, int64_t total)> on_prefill;
  const std::atomic<bool>* cancel = nullptr;
};

enum class FinishReason { kStop, kLength, kContext, kCancelled };
const char* FinishReasonName(FinishReason reason);  // "stop", "length", "context", "cancelled"

struct GenerateResult {
  std::string text;             // the visible answer
  std::string reasoning;        // what was between the tags
  std::vector<int32_t> tokens;  // all generated tokens, forced ones too, without the stop token
  FinishReason finish = FinishReason::kStop;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found in the sequence
  int64_t reasoning_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  double first_token_seconds = 0;  // from the call to the first token of the response
};

// Generates after `prompt`. `sequence` is made to hold exactly the prompt first: positions that already match (same
// tokens, by the base) are kept, the rest is dropped and computed. Afterwards it holds prompt and response, so that the
// next turn of a chat reuses them. Cancelling is not an error: what was generated is returned.
Result<GenerateResult> Generate(TextModel& model, Sequence& sequence, const std::vector<int32_t>& prompt,
                                const GenerateOptions& options);

}  // namespace pith
