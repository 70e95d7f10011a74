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

OrderedJson RunStats::Usage() const {
  const auto completion = static_cast<int64_t>(result.tokens.size());
  return {{"prompt_tokens", result.prompt_tokens},
          {"cached_tokens", result.cached_tokens},
          {"completion_tokens", completion},
          {"reasoning_tokens", result.reasoning_tokens},
          {"answer_tokens", completion - result.reasoning_tokens}};
}

namespace {
double Rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }
}  // namespace

OrderedJson RunStats::Timings() const {
  return {{"ready_s", ready_seconds},
          {"first_token_s", result.first_token_seconds},
          {"prefill_s", result.prefill_seconds},
          {"decode_s", result.decode_seconds},
          {"prefill_tokens_per_second",
           Rate(static_cast<double>(result.prompt_tokens - result.cached_tokens), result.prefill_seconds)},
          {"decode_tokens_per_second", Rate(static_cast<double>(result.tokens.size()), result.decode_seconds)},
          {"peak_rss_bytes", PeakRss()}};
}

std::string RunStats::Line() const {
  char text[400];
  std::snprintf(text, sizeof(text),
                "[%s | prompt %lld tokens at %.1f/s | answer %lld tokens at %.1f/s | first token %.2f s after start "
                "(ready in %.2f s) | %s in memory]",
                model.engine().weights().description.c_str(), static_cast<long long>(result.prompt_tokens),
                Rate(static_cast<double>(result.prompt_tokens - result.cached_tokens), result.prefill_seconds),
                static_cast<long long>(result.tokens.size()),
                Rate(static_cast<double>(result.tokens.size()), result.decode_seconds),
                ready_seconds + result.first_token_seconds, ready_seconds, HumanBytes(PeakRss()).c_str());
  return text;
}

}  // namespace pith
