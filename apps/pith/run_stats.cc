#include "run_stats.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/progress.h"

namespace pith {

double RunClock::SecondsSinceProgramStart() const {
  // Field 22 of /proc/self/stat: the start in clock ticks after boot. The name in field 2 may hold spaces.
  std::ifstream in("/proc/self/stat");
  std::stringstream text;
  text << in.rdbuf();
  const std::string stat = text.str();
  const size_t after_name = stat.rfind(')');
  timespec now{};
  if (after_name == std::string::npos || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  std::istringstream fields(stat.substr(after_name + 1));
  std::string field;
  for (int i = 3; i <= 22 && fields >> field; ++i) {
  }
  const double started = std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - started;
}

uint64_t PeakRss() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

namespace {

double Rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

double Generated(const AnswerResult& result) { return static_cast<double>(result.generated_tokens()); }

OrderedJson StreamJson(const StreamResult& stream) {
  OrderedJson json{{"answer", nullptr},
                   {"text", stream.text},
                   {"reasoning", stream.reasoning},
                   {"finish_reason", FinishReasonName(stream.finish)},
                   {"truncated", stream.truncated},
                   {"answer_forced", stream.answer_forced},
                   {"tokens", stream.tokens.size()},
                   {"reasoning_tokens", stream.reasoning_tokens},
                   {"answer_tokens", stream.answer_tokens()},
                   {"verifier_score", nullptr},
                   {"candidate", nullptr},
                   {"seconds", stream.seconds}};
  if (stream.answer) json["answer"] = stream.answer->text;
  if (stream.verifier_score) json["verifier_score"] = *stream.verifier_score;
  if (stream.candidate >= 0) json["candidate"] = stream.candidate;
  return json;
}

OrderedJson VoteJson(const VoteResult& vote) {
  OrderedJson json{
      {"candidates", OrderedJson::array()}, {"no_answer", vote.no_answer}, {"tie", vote.tie}, {"tie_rule", kTieRule}};
  for (const VoteCandidate& candidate : vote.candidates) {
    json["candidates"].push_back(
        {{"answer", candidate.answer}, {"weight", candidate.weight}, {"streams", candidate.ballots}});
  }
  return json;
}

}  // namespace

OrderedJson RunStats::Usage() const {
  int64_t reasoning = 0;
  for (const StreamResult& stream : result.streams) reasoning += stream.reasoning_tokens;
  const int64_t completion = result.generated_tokens();
  return {{"prompt_tokens", result.prompt_tokens},
          {"cached_tokens", result.cached_tokens},
          {"completion_tokens", completion},
          {"reasoning_tokens", reasoning},
          {"answer_tokens", completion - reasoning},
          {"prefill_tokens", result.prefill_tokens},
          {"prefill_tokens_saved", result.prefill_tokens_saved},
          {"verification_tokens", result.verification_tokens},
          {"tokens_saved_at_most", result.tokens_saved_at_most}};
}

OrderedJson RunStats::Timings() const {
  const AnswerTimings& timings = result.timings;
  return {{"ready_s", ready_seconds},
          {"first_token_s", timings.first_token_seconds},
          {"prefill_s", timings.prefill_seconds},
          {"decode_s", timings.decode_seconds},
          {"prefill_tokens_per_second", Rate(static_cast<double>(result.prefill_tokens), timings.prefill_seconds)},
          {"decode_tokens_per_second", Rate(Generated(result), timings.decode_seconds)},
          {"peak_rss_bytes", PeakRss()}};
}

std::string RunStats::Line() const {
  const AnswerTimings& timings = result.timings;
  char text[400];
  std::snprintf(text, sizeof(text),
                "[%s | prompt %lld tokens at %.1f/s | answer %lld tokens at %.1f/s | first token %.2f s after start "
                "(ready in %.2f s) | %s in memory]",
                model.engine().weights().description.c_str(), static_cast<long long>(result.prompt_tokens),
                Rate(static_cast<double>(result.prefill_tokens), timings.prefill_seconds),
                static_cast<long long>(result.generated_tokens()), Rate(Generated(result), timings.decode_seconds),
                ready_seconds + timings.first_token_seconds, ready_seconds, HumanBytes(PeakRss()).c_str());
  return text;
}

OrderedJson AnswerJson(const AnswerResult& result, const RunStats& stats) {
  const StreamResult& best = result.best();
  OrderedJson json{{"text", best.text},
                   {"reasoning", best.reasoning},
                   {"answer", nullptr},
                   {"route", RouteName(result.route)},
                   {"score", nullptr},
                   {"threshold", nullptr},
                   {"finish_reason", FinishReasonName(best.finish)},
                   {"truncated", best.truncated},
                   {"answer_forced", best.answer_forced},
                   {"chosen", result.chosen},
                   {"streams", OrderedJson::array()},
                   {"vote", VoteJson(result.vote)},
                   {"usage", stats.Usage()},
                   {"timings", stats.Timings()}};
  if (result.answer) json["answer"] = *result.answer;
  if (result.score) {
    json["score"] = *result.score;
    json["threshold"] = result.threshold;
  }
  for (const StreamResult& stream : result.streams) json["streams"].push_back(StreamJson(stream));
  return json;
}

}  // namespace pith
