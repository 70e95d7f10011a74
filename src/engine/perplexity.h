// Perplexity of a model on a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "engine/engine.h"

namespace pith {

struct PerplexityOptions {
  int64_t window = 2048;   // tokens per window; windows do not overlap and see nothing of each other
  int64_t max_tokens = 0;  // only the first so many tokens; 0 = all
  std::function<void(int64_t done, int64_t total)> on_progress;  // tokens
};

struct PerplexityResult {
  double perplexity = 0;  // exp(mean negative log-likelihood)
  double nll = 0;         // the mean, in nats
  double nll_error = 0;   // standard error of the mean over tokens
  // The same over tokens with more than half a window before them: what llama.cpp's perplexity tool scores. 0 when
  // there are none.
  double late_perplexity = 0;
  int64_t late_scored = 0;
  int64_t tokens = 0;  // tokens read
  int64_t scored = 0;  // tokens with a prediction: all but the first of each window
  double seconds = 0;
};

// Every token of a window but its first is scored, given all tokens before it in the window. A last window of fewer
// than two tokens is left out. kInvalidArgument when nothing can be scored.
Result<PerplexityResult> Perplexity(Engine& engine, std::span<const int32_t> tokens, const PerplexityOptions& options);

}  // namespace pith
