#include "engine/perplexity.h"

#include <chrono>
#include <cmath>
#include <string>

#include "kernels/sampling.h"

namespace pith {

Result<PerplexityResult> Perplexity(Engine& engine, std::span<const int32_t> tokens, const PerplexityOptions& options) {
  if (options.window < 2 || options.window > engine.context()) {
    return Error{ErrorCode::kInvalidArgument,
                 "the window must be 2 to " + std::to_string(engine.context()) + " tokens (the model's context)"};
  }
  if (options.max_tokens > 0 && static_cast<int64_t>(tokens.size()) > options.max_tokens) {
    tokens = tokens.first(static_cast<size_t>(options.max_tokens));
  }
  const auto start = std::chrono::steady_clock::now();
  const auto total = static_cast<int64_t>(tokens.size());
  PerplexityResult result;
  double sum = 0;
  double squares = 0;
  double late_sum = 0;
  for (int64_t window = 0; window + 1 < total; window += options.window) {
    const int64_t end = std::min(total, window + options.window);
    Sequence sequence = engine.NewSequence();
    for (int64_t at = window; at < end;) {
      const int64_t n = std::min(engine.options().prefill_chunk, end - at);
      const StepItem item{&sequence, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(n)), nullptr,
                          Rows::kAll, Rows::kNone};
      PITH_ASSIGN(const StepOutput output, engine.Step({&item, 1}));
      std::vector<double> losses(static_cast<size_t>(n));
      engine.pool().Run(n, [&](int64_t i, int) {
        if (at + i + 1 >= end) return;
        const auto logits = output.LogitsRow(i);
        const float most = MaxValue(logits.data(), output.vocab);
        const int32_t target = tokens[static_cast<size_t>(at + i + 1)];
        losses[static_cast<size_t>(i)] = std::log(SumExp(logits.data(), output.vocab, most)) -
                                         (static_cast<double>(logits[static_cast<size_t>(target)]) - most);
      });
      for (int64_t i = 0; i < n && at + i + 1 < end; ++i) {
        const double loss = losses[static_cast<size_t>(i)];
        sum += loss;
        squares += loss * loss;
        ++result.scored;
        if (at + i + 1 - window > options.window / 2) {
          late_sum += loss;
          ++result.late_scored;
        }
      }
      at += n;
      if (options.on_progress) options.on_progress(at, total);
    }
    result.tokens = end;
  }
  if (result.scored == 0) return Error{ErrorCode::kInvalidArgument, "the text has fewer than two tokens"};
  const auto n = static_cast<double>(result.scored);
  result.nll = sum / n;
  result.perplexity = std::exp(result.nll);
  if (result.late_scored > 0) result.late_perplexity = std::exp(late_sum / static_cast<double>(result.late_scored));
  result.nll_error = std::sqrt(std::max(0.0, squares / n - result.nll * result.nll) / n);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace pith
