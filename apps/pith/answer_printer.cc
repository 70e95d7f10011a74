#include "answer_printer.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace pith {
namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

AnswerPrinter::AnswerPrinter(AnswerOptions& options, bool quiet)
    : quiet_(quiet),
      budget_(options.budget),
      color_(isatty(STDOUT_FILENO) != 0),
      terminal_(isatty(STDERR_FILENO) != 0) {
  if (quiet_) return;
  options.on_route = [parallel = options.parallel, this](Route route, std::optional<double> score) {
    // Only one response can be shown as it comes: the only one, or the one of a question that the switcher found easy.
    show_text_ = parallel == 1 || (score && route == Route::kDirect);
  };
  options.on_text = [this](int64_t, std::string_view text, bool thought) {
    if (show_text_) Text(text, thought);
  };
  options.on_progress = [this](std::span<const StreamProgress> streams) {
    if (!show_text_ && terminal_) Progress(streams);
  };
}

void AnswerPrinter::Text(std::string_view text, bool thought) {
  if (color_ && thought != dim_) std::fputs(thought ? "\033[2m" : "\033[0m\n", stdout);
  dim_ = thought;
  printed_ = true;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void AnswerPrinter::Progress(std::span<const StreamProgress> streams) {
  const double now = Now();
  if (now - last_draw_ < 0.1) return;
  last_draw_ = now;
  std::fprintf(stderr, "\r\033[K%s", StreamsLine(streams, budget_, 78).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void AnswerPrinter::ClearProgress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

void AnswerPrinter::Finish(const AnswerResult& answer) {
  if (quiet_) return;
  ClearProgress();
  if (!printed_) {
    if (!answer.best().reasoning.empty()) Text(answer.best().reasoning, true);
    if (!answer.best().text.empty()) Text(answer.best().text, false);
  }
  if (dim_ && color_) std::fputs("\033[0m", stdout);
  std::fputs("\n", stdout);
  std::fflush(stdout);
  if (terminal_ && answer.streams.size() > 1) std::fprintf(stderr, "[%s]\n", VoteLine(answer).c_str());
}

std::string StreamsLine(std::span<const StreamProgress> streams, int64_t budget, size_t width) {
  size_t done = 0;
  std::string each;
  for (const StreamProgress& stream : streams) {
    done += stream.done ? 1 : 0;
    each += " " + std::to_string(stream.tokens) + (stream.done ? "." : stream.thinking ? "t" : "");
  }
  std::string line = std::to_string(done) + " of " + std::to_string(streams.size()) + " done | of " +
                     std::to_string(budget) + " tokens:" + each;
  if (line.size() > width) line.resize(width);
  return line;
}

std::string VoteLine(const AnswerResult& answer) {
  std::string line;
  for (const VoteCandidate& candidate : answer.vote.candidates) {
    char weight[64];
    std::snprintf(weight, sizeof(weight), "%.2f", candidate.weight);
    line += (line.empty() ? "" : ", ") + std::to_string(candidate.ballots.size()) +
            (line.empty() ? " of " + std::to_string(answer.streams.size()) : "") + " for " + candidate.answer +
            " (weight " + weight + ")";
  }
  if (answer.vote.no_answer > 0) {
    line += (line.empty() ? "" : ", ") + std::to_string(answer.vote.no_answer) + " without an answer";
  }
  if (answer.vote.tie) line += std::string("; a tie, decided by ") + kTieRule;
  return line;
}

}  // namespace pith
