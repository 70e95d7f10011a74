// Grading: no text crashes it or takes long, an answer equals itself, candidates are compared alike in both orders.
//
// The input is a key and a response with a byte 0x1F between them.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "grade/answer_form.h"
#include "grade/grade.h"
#include "grade/work_budget.h"

namespace {

constexpr double kMaxMilliseconds = 50;

double CpuMilliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Whether two answers compare alike in both orders, without the rule that has a direction. What is too hard in one
// order may be decided in the other before the work is used up.
bool IsSymmetric(const pith::AnswerForm& a, const pith::AnswerForm& b) {
  pith::grade::WorkBudget there(pith::grade::kCompareUnits), back(pith::grade::kCompareUnits);
  const pith::grade::Sameness forward = pith::CompareForms(a, b, {}, &there);
  const pith::grade::Sameness backward = pith::CompareForms(b, a, {}, &back);
  return forward == backward || forward == pith::grade::Sameness::kUnknown ||
         backward == pith::grade::Sameness::kUnknown;
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
  // SameAnswer orders its arguments, so this looks at what it is made of.
  const auto gold_form = pith::MakeAnswerForm(result.gold->text);
  const auto predicted_form = pith::MakeAnswerForm(result.predicted->text);
  if (gold_form != nullptr && predicted_form != nullptr && !IsSymmetric(*gold_form, *predicted_form)) std::abort();
  (void)pith::LooksTruncated(response);
  pith::ExtractOptions cut;
  cut.truncated = true;
  (void)pith::ExtractAnswer(response, cut);
  return 0;
}
