// Grading: no text crashes it or takes long, an answer equals itself, candidates are compared alike in both orders.
//
// The input is a key and a response with a byte 0x1F between them.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "grade/grade.h"

namespace {

constexpr double kMaxMilliseconds = 50;

double CpuMilliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Whether a text may hold an inequality, spelled in whatever way.
bool MayBeDirected(std::string_view text) {
  if (text.find_first_of("<>!") != std::string_view::npos) return true;
  for (const std::string_view command : {"\\l", "\\g", "\\n", "\xE2"}) {
    if (text.find(command) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t middle = text.find('\x1f');
  const std::string_view gold = text.substr(0, middle);
  const std::string_view response = middle == std::string_view::npos ? text : text.substr(middle + 1);

  static double slowest = 0;
  const double begin = CpuMilliseconds();
  const pith::GradeResult result = pith::Grade(gold, response);
  const double spent = CpuMilliseconds() - begin;
  if (spent > slowest) {
    slowest = spent;
    if (std::getenv("PITH_FUZZ_TIMES") != nullptr) std::fprintf(stderr, "slowest so far: %.2f ms\n", slowest);
  }
  if (spent > kMaxMilliseconds) {
    std::fprintf(stderr, "%.1f ms of CPU for one pair\n", spent);
    std::abort();
  }
  if (!result.gold || !result.predicted) {
    if (result.correct()) std::abort();
    return 0;
  }
  const pith::Answer a(result.gold->text);
  const pith::Answer b(result.predicted->text);
  if (!a.empty() && pith::CompareAnswers(a, a) != pith::Verdict::kEqual) std::abort();
  if (!b.empty() && pith::CompareAnswers(b, b) != pith::Verdict::kEqual) std::abort();
  // SameAnswer orders its arguments, so this looks at what it is made of. One rule has a direction: inequalities.
  if (!MayBeDirected(result.gold->text) && !MayBeDirected(result.predicted->text)) {
    const pith::Verdict forward = pith::CompareAnswers(a, b), backward = pith::CompareAnswers(b, a);
    const bool hard = forward == pith::Verdict::kTooHard || backward == pith::Verdict::kTooHard;
    if (forward != backward && !hard) std::abort();
  }
  (void)pith::LooksTruncated(response);
  pith::ExtractOptions cut;
  cut.truncated = true;
  (void)pith::ExtractAnswer(response, cut);
  return 0;
}
