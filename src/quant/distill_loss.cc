#include "quant/distill_loss.h"

#include <cmath>

#include "kernels/backward.h"

namespace pith::quant {

double JensenShannon(float* teacher, float* student, int64_t vocab, float weight) {
  const SoftmaxStats teacher_stats = SoftmaxWithStats(teacher, vocab, 1.0F);
  const SoftmaxStats student_stats = SoftmaxWithStats(student, vocab, 1.0F);
  if (!std::isfinite(teacher_stats.log_sum) || !std::isfinite(student_stats.log_sum)) return NAN;
  // ln(P / M) = ln 2 - ln(1 + Q / P); where one of them is nothing beside the other its term is nothing too.
  const float ln2 = std::log(2.0F);
  double of_teacher = 0, of_student = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    const float p = teacher[i], q = student[i];
    const float sum = p + q;
    float g = 0;  // ln(Q / M)
    if (q > 0.0F) g = ln2 + std::log(q / sum);
    if (p > 0.0F) of_teacher += static_cast<double>(p * (ln2 + std::log(p / sum)));
    of_student += static_cast<double>(q * g);
    teacher[i] = g;
  }
  const auto mean = static_cast<float>(of_student);  // sum Q g
  for (int64_t i = 0; i < vocab; ++i) student[i] *= 0.5F * weight * (teacher[i] - mean);
  return 0.5 * (of_teacher + of_student);
}

}  // namespace pith::quant
